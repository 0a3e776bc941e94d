// SPDX-License-Identifier: Apache-2.0
/* For the request tests: prepares request bodies as a server with the demo model does. */
#ifndef SLUICE_TEST_SERVER_CALL_REQUEST_BED_H
#define SLUICE_TEST_SERVER_CALL_REQUEST_BED_H

#include "engine/base/optional.h"
#include "server/call/members.h"
#include "server/call/prepare.h"
#include "server/cli/config_load.h"
#include "test/check.h"

static struct call_model model;
static struct config config;
static struct engine_info info = {
    .vocab = 4096, .hidden = 8, .pooled_width = 8, .max_model_len = 64, .n_eos = 1, .eos = {2}};

/* The model is opened once for all tests of a program; its context of 64 tokens makes
 * overlong prompts short. */
static void open_model(void)
{
    if (model.names) {
        return;
    }
    const char *argv[] = {"serve", "models/demo"};
    struct err err = {""};
    if (config_load(&config, 2, (char **)argv, NULL, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    info.defaults = sampling_params_default();
    if (call_model_open(&model, &config, &info, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    info.vocab = tokenizer_vocab_size(model.tok);
}

/* Prepares a body of exactly its size, so that ASan sees an overrun. */
static struct request prepared(enum request_kind kind, const char *body, char **text)
{
    open_model();
    size_t n = strlen(body);
    *text = malloc(n + 1);
    memcpy(*text, body, n + 1);
    struct request r = {.kind = kind, .model = &model, .text = *text, .n_bytes = n, .seed = 9};
    prepare_request(&r);
    return r;
}

/* The request is refused with this code and member; the message may be any text, but not empty. */
#define REFUSES(kind, body, code_, param_)                                                         \
    do {                                                                                           \
        char *text;                                                                                \
        struct request r = prepared(kind, body, &text);                                            \
        CHECK(r.error.status >= 400);                                                              \
        CHECK_STR(or_empty(r.error.code), code_);                                                  \
        CHECK_STR(r.error.param, param_);                                                          \
        CHECK(r.error.message[0] != '\0');                                                         \
        request_deinit(&r);                                                                        \
        free(text);                                                                                \
    } while (0)

/* Declares `r`, a prepared request; DONE ends its use. */
#define ACCEPTS(kind, body)                                                                        \
    char *text;                                                                                    \
    struct request r = prepared(kind, body, &text);                                                \
    CHECK_STR(r.error.message, "");                                                                \
    REQUIRE(r.error.status == 0)

#define DONE()                                                                                     \
    do {                                                                                           \
        request_deinit(&r);                                                                        \
        free(text);                                                                                \
    } while (0)

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOL ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]"

static int request_main(int argc, char **argv)
{
    int rc = check_main(argc, argv);
    call_model_close(&model);
    config_deinit(&config);
    return rc;
}

#endif
