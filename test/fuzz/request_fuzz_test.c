// SPDX-License-Identifier: Apache-2.0
/* Request bodies: the first byte selects the endpoint, and the rest is the body. The result is a
 * request that the engine can run, or an error with a message. */
#include "server/call/prepare.h"
#include "server/cli/config_load.h"

#include "engine/base/assert.h"
#include "test/fuzz/fuzz.h"

static struct config config;
static struct call_model model;
static struct engine_info info = {
    .hidden = 8, .pooled_width = 8, .max_model_len = 64, .n_eos = 1, .eos = {2}};

/* The demo model's configuration and template; no engine. */
static void open_model(void)
{
    const char *argv[] = {"serve", "models/demo"};
    struct err err = {""};
    info.vocab = 4096;
    info.defaults = sampling_params_default();
    if (config_load(&config, 2, (char **)argv, NULL, &err) != OK ||
        call_model_open(&model, &config, &info, &err) != OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

/* False for the kinds for which the engine has nothing to run: turning ids into text, loading a
 * model, rendering a template. */
static bool has_prompts(enum request_kind kind)
{
    return kind != KIND_DETOKENIZE && kind != KIND_OLLAMA_LOAD && kind != KIND_APPLY_TEMPLATE;
}

/* Checks what the engine assumes about a request. */
static void check_runs(const struct request *r)
{
    ASSERT(r->n_prompts > 0 && r->n >= 1);
    for (size_t i = 0; i < r->n_prompts; i++) {
        struct sampling_params p = r->params;
        p.max_tokens = r->prompts[i].max_tokens;
        ASSERT(r->prompts[i].n > 0);
        bool runs = r->generates || r->pools;
        ASSERT(!runs || sampling_params_check(&p, info.vocab, NULL) == OK);
        ASSERT(!runs || r->prompts[i].n + p.max_tokens <= info.max_model_len);
    }
}

/* Like a body from HTTP, the text ends with a NUL that does not belong to the JSON. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!model.names) {
        open_model();
    }
    if (size < 1) {
        return 0;
    }
    char *text = malloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0'; // as in a body from http_body
    struct request r = {.kind = (enum request_kind)(data[0] % N_REQUEST_KINDS),
                        .model = &model,
                        .text = text,
                        .n_bytes = size - 1,
                        .seed = 1};
    prepare_request(&r);
    if (r.error.status) {
        ASSERT(r.error.status >= 400 && r.error.status < 600 && r.error.message[0]);
    } else if (has_prompts(r.kind)) {
        check_runs(&r);
    }
    request_deinit(&r);
    free(text);
    return 0;
}

#ifndef LIBFUZZER
/* The first byte is the kind of request in octal. */
int main(void)
{
    static const char *const seeds[] = {
        "\010{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],\"stop\":[\"a\"]}",
        "\010{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
        "\"c\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],\"n\":2,\"functions\":[{\"name\":"
        "\"g\"}],\"chat_template_kwargs\":{\"a\":1}}",
        "\001{\"prompt\":[[1,2],[3]],\"echo\":true,\"logprobs\":3,\"max_tokens\":0}",
        "\001{\"prompt\":[\"a\",\"b\"],\"logit_bias\":{\"5\":-1},\"seed\":-9223372036854775808,"
        "\"bad_words\":[\"x\"],\"truncate_prompt_tokens\":-1,\"temperature\":0.5}",
        "\002{\"input\":[5,6,7],\"encoding_format\":\"base64\"}",
        "\003{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"q\"}]}"
        ","
        "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"o\"}],\"instructions\":"
        "\"i\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"reasoning\":{\"effort\":"
        "\"low\"}}",
        "\005{\"prompt\":\"a b\",\"return_token_strs\":true}",
        "\001{\"prompt\":[\"a\\u0000\",\"\\\\u0000\"],\"n_predict\":-1,\"mirostat\":0}",
        "\006{\"tokens\":[1,2,3]}",
        "\007{\"prompt_token_ids\":[5,6],\"bad_words\":[[1],[2,3]],\"logprobs\":true,"
        "\"temperature\":9}",
        "\007{\"prompt\":\"a\",\"pool\":\"mean\",\"prompt_logprobs\":2,\"model\":\"x\",\"seed\":1}",
    };
    int rc = fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 60000);
    call_model_close(&model);
    config_deinit(&config);
    return rc;
}
#endif
