// SPDX-License-Identifier: Apache-2.0
/* Every flag of vLLM's `serve`, from a table that vllm_serve_table.py made from vLLM's source, and
 * those of llama-server, from its README: each is known, the default is accepted, and a refused
 * value has a reason. */
#include "server/cli/config_load.h"

#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/schedule/request.h"
#include "server/cli/config_table.h"
#include "server/cli/vllm_flags.h"
#include "test/check.h"

#include <unistd.h>

#define TABLE "test/server/cli/vllm_serve.txt"
#define LLAMA_TABLE "test/server/cli/llama_server.txt"

/* A line of the table: names with commas between them, what the flag takes, allowed words,
 * and vLLM's default; '-' stands for none. */
struct row {
    char names[200], takes[16], words[1200], initial[64];
};

static bool next_row(FILE *f, struct row *r)
{
    return fscanf(f, "%199s %15s %1199s %63s", r->names, r->takes, r->words, r->initial) == 4;
}

/* OK, or the text of the refusal. A name has two dashes, a short alias one. */
static enum status load(const char *name, const char *value, struct err *err)
{
    static char *no_env[] = {NULL};
    char flag[256];
    struct config c;
    bool is_short = strlen(name) <= 3 && strcmp(name, "uds") != 0;
    snprintf(flag, sizeof flag, "%s%s", is_short ? "-" : "--", name);
    const char *argv[] = {"serve", "m", flag, value};
    *err = (struct err){""};
    enum status st = config_load(&c, value ? 4 : 3, (char **)argv, no_env, err);
    if (st == OK) {
        config_deinit(&c);
    }
    return st;
}

static bool has(const char *text, const char *words)
{
    return strstr(text, words) != NULL;
}

/* A refusal says what is wrong with the value; it never calls the flag unknown. */
static void check(const char *name, const char *value, bool must_pass)
{
    struct err err;
    enum status st = load(name, value, &err);
    bool strange = has(err.text, "unknown option") || has(err.text, "unexpected argument") ||
                   has(err.text, "needs a value");
    if (st != OK && (must_pass || strange || strlen(err.text) < 20)) {
        CHECK_FAIL("--%s %s: %s", name, or_empty(value), err.text);
    }
}

/* A switch accepts --x=false; a flag that cannot be negated does not. */
static void check_default(const struct row *r, const char *name)
{
    bool is_switch = strcmp(r->takes, "flag") == 0 || strcmp(r->takes, "alone") == 0;
    char text[300];
    if (strcmp(r->initial, "-") == 0 || strcmp(name, "model") == 0) {
        return;
    }
    if (!is_switch) {
        check(name, r->initial, true);
    } else if (strcmp(r->initial, "True") == 0) {
        check(name, NULL, true);
    } else if (strcmp(r->takes, "flag") == 0) {
        snprintf(text, sizeof text, "no-%s", name);
        check(text, NULL, true);
    }
}

/* Each allowed word is either accepted or refused with a reason that concerns it. */
static void check_values(struct row *r, const char *name)
{
    bool alone = strcmp(r->takes, "flag") == 0 || strcmp(r->takes, "alone") == 0;
    if (alone || strcmp(r->takes, "maybe") == 0) {
        check(name, NULL, false);
        return;
    }
    if (strcmp(r->words, "-") == 0) {
        check(name, strcmp(name, "config") == 0 ? "/nonexistent/config.yaml" : "1", false);
        return;
    }
    char words[1200];
    snprintf(words, sizeof words, "%s", r->words);
    for (char *w = strtok(words, "|"); w; w = strtok(NULL, "|")) {
        check(name, w, false);
    }
}

static int check_table(const char *path)
{
    struct row r;
    int n = 0;
    FILE *f = fopen(path, "r");
    for (; f && next_row(f, &r); n++) {
        char *rest = r.names;
        for (char *name; (name = strsep(&rest, ",")) != NULL;) {
            check_default(&r, name);
            check_values(&r, name);
        }
    }
    if (f) {
        fclose(f);
    }
    return n;
}

/* A flag of a new version of vLLM fails here when the table is made again. */
TEST(every_flag_of_vllm_is_used_ignored_or_refused_with_a_reason)
{
    CHECK(check_table(TABLE) > 300);
}

TEST(every_flag_of_llama_server_is_used_ignored_or_refused_with_a_reason)
{
    CHECK(check_table(LLAMA_TABLE) > 200);
}

/* Flags that would change answers are not ignored, and defaults of requests are used. */
TEST(flags_of_llama_server_that_matter)
{
    struct err err;
    CHECK_EQ(load("mirostat", "2", &err), ERR_UNSUPPORTED);
    CHECK_EQ(load("lora", "a.gguf", &err), ERR_UNSUPPORTED);
    CHECK_EQ(load("grammar-file", "a.gbnf", &err), ERR_UNSUPPORTED);
    CHECK_EQ(load("rope-scale", "2", &err), ERR_UNSUPPORTED);
    CHECK_EQ(load("no-mmap", NULL, &err), OK);
    CHECK_EQ(load("temp", "hot", &err), OK); // its value is checked later, with the model's
                                             // defaults
    CHECK_EQ(load("pooling", "none", &err), OK);
    CHECK_EQ(load("spec-synth-rates", "0.5", &err), ERR_UNSUPPORTED);
}

/* The flags of llama.cpp's server for a draft model name our draft model. Without one, the number
 * of drafts has no effect. */
TEST(drafts_of_llama_server)
{
    static char *no_env[] = {NULL};
    const char *argv[] = {
        "serve",         "m", "--spec-type", "draft-simple", "--spec-draft-n-max", "99",
        "--model-draft", "d"};
    struct config c;
    struct err err = {""};
    REQUIRE(config_load(&c, 8, (char **)argv, no_env, &err) == OK);
    struct json *drafts;
    REQUIRE(json_parse(c.engine.speculative_config, strlen(c.engine.speculative_config), NULL,
                       &drafts, NULL) == OK);
    CHECK_STR(json_get_string(drafts, "model"), "d");
    CHECK_EQ(json_get_int(drafts, "num_speculative_tokens", 0), MAX_DRAFTS - 1);
    json_free(drafts);
    config_deinit(&c);
    REQUIRE(config_load(&c, 6, (char **)argv, no_env, &err) == OK);
    CHECK(c.engine.speculative_config == NULL);
    config_deinit(&c);
}

static enum vllm_takes takes_of(const struct row *r)
{
    static const char *const words[] = {
        [TAKES_VALUE] = "value", [TAKES_MAYBE] = "maybe", [TAKES_WORDS] = "words"};
    for (int i = TAKES_VALUE; i <= TAKES_WORDS; i++) {
        if (strcmp(r->takes, words[i]) == 0) {
            return (enum vllm_takes)i;
        }
    }
    return TAKES_NOTHING;
}

/* A flag that takes a value in vLLM takes one here; otherwise the following words would be
 * misread. */
TEST(flags_take_as_many_words_as_in_vllm)
{
    struct row r;
    FILE *f = fopen(TABLE, "r");
    REQUIRE(f);
    while (next_row(f, &r)) {
        r.names[strcspn(r.names, ",")] = '\0';
        enum vllm_takes takes = takes_of(&r);
        for (size_t i = 0; i < n_vllm_flags; i++) {
            if (strcmp(vllm_flags[i].name, r.names) == 0) {
                CHECK(vllm_flags[i].takes == takes);
            }
        }
        for (size_t i = 0; i < n_option_rows; i++) {
            bool is_bool = option_rows[i].type == OPTION_BOOL;
            if (strcmp(option_rows[i].name, r.names) == 0) {
                CHECK(is_bool == (takes == TAKES_NOTHING));
                CHECK(option_rows[i].type == OPTION_LIST || takes != TAKES_WORDS);
            }
        }
    }
    fclose(f);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
