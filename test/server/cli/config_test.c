// SPDX-License-Identifier: Apache-2.0
/* Configuration: flags, environment and file, their precedence, errors that help, and
 * tables of options that fit the structs they fill. */
#include "server/cli/config_load.h"

#include "engine/base/words.h"
#include "engine/device/kv_format.h"
#include "server/cli/config_table.h"
#include "server/cli/nodes_config.h"
#include "server/cli/vllm_flags.h"
#include "test/check.h"

#include <unistd.h>

/* Declares c, the configuration of these arguments, and st with err. */
#define LOAD(...)                                                                                  \
    const char *argv[] = {"serve", __VA_ARGS__};                                                   \
    struct config c;                                                                               \
    struct err err = {""};                                                                         \
    enum status st = config_load(&c, (int)(sizeof argv / sizeof argv[0]), (char **)argv, env, &err)

static const char *no_env[] = {NULL};
static char **env = (char **)no_env; // never written to

/* One file, which each test overwrites. */
static char *write_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/sluice_config_%d.yaml", (int)getpid());
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    return path;
}

/* Spellings of values: units, lists, negations, short names. */
TEST(flags_set_fields_and_the_rest_keeps_its_default)
{
    LOAD("models/demo", "--port=9001", "-tp", "2", "--max-model-len", "8k",
         "--no-enable-prefix-caching", "--served-model-name", "a", "b", "--host",
         "::", "--request-timeout", "2m", "--max-body-bytes", "4MiB");
    CHECK_STR(err.text, "");
    REQUIRE(st == OK);
    CHECK_STR(c.engine.model, "models/demo");
    CHECK_EQ(c.port, 9001);
    CHECK_EQ(c.engine.tensor_parallel_size, 2);
    CHECK_EQ(c.engine.max_model_len, 8000);
    CHECK(!c.engine.enable_prefix_caching);
    CHECK_EQ(c.served_model_name.n, 2);
    CHECK_STR(c.served_model_name.items[1], "b");
    CHECK_STR(c.host, "::");
    CHECK_NEAR(c.request_timeout, 120, 0);
    CHECK_EQ(c.max_body_bytes, 4 << 20);
    CHECK_NEAR(c.engine.gpu_memory_utilization, 0, 0);
    CHECK_EQ(c.engine.max_num_seqs, 0);
    config_deinit(&c);
}

/* A shell completes folder names with a slash; the last part of the folder is one of the model's
 * names. */
TEST(a_trailing_slash_is_not_part_of_the_models_name)
{
    LOAD("models/demo//");
    REQUIRE(st == OK);
    CHECK_STR(c.engine.model, "models/demo");
    config_deinit(&c);
    const char *root[] = {"serve", "/"};
    REQUIRE(config_load(&c, 2, (char **)root, env, &err) == OK);
    CHECK_STR(c.engine.model, "/");
    config_deinit(&c);
}

/* 8k is 8,000 and 8K is 8,192, as in vLLM. */
TEST(capital_units_are_binary)
{
    LOAD("m", "--max-model-len", "8K", "--max-num-seqs", "auto");
    REQUIRE(st == OK);
    CHECK_EQ(c.engine.max_model_len, 8192);
    config_deinit(&c);
}

/* Command line, environment, file, default: each overrides the next. Names of other
 * programs' variables are ignored, and lists may be written in all three YAML forms. */
TEST(flag_wins_over_environment_and_environment_over_file)
{
    char *path = write_file("# a comment\nmodel: from-file # why\nport: 1\nhost: 'file host'\n"
                            "max_num_seqs: 7\nserved-model-name:\n  - x\n  - \"y z\"\n"
                            "allowed-origins: [http://a, 'http://b']\nlog-level:\n");
    const char *some[] = {"SLUICE_PORT=2", "SLUICE_HOST=env", "SLUICE_SHARED=/nowhere", "HOME=/x",
                          NULL};
    env = (char **)some;
    LOAD("--config", path, "--port", "3");
    env = (char **)no_env;
    CHECK_STR(err.text, "");
    REQUIRE(st == OK);
    CHECK_EQ(c.port, 3);
    CHECK_STR(c.host, "env");
    CHECK_STR(c.engine.model, "from-file");
    CHECK_EQ(c.engine.max_num_seqs, 7);
    CHECK_EQ(c.served_model_name.n, 2);
    CHECK_STR(c.served_model_name.items[1], "y z");
    CHECK_EQ(c.allowed_origins.n, 2);
    CHECK_STR(c.allowed_origins.items[1], "http://b");
    CHECK_STR(c.log_level, "info");
    config_deinit(&c);
    unlink(path);
}

/* VLLM_API_KEY is used only if no other key is set; otherwise a forgotten one would be valid in
 * addition to the administrator's key. */
TEST(vllms_key_is_used_only_if_no_other_is_set)
{
    const char *some[] = {"VLLM_API_KEY=a", "VLLM_LOGGING_LEVEL=DEBUG", "VLLM_API_KEY_FILE=", NULL};
    env = (char **)some;
    {
        LOAD("m");
        REQUIRE(st == OK && c.api_key.n == 1);
        CHECK_STR(c.api_key.items[0], "a");
        CHECK(c.api_key_file == NULL);
        config_deinit(&c);
    }
    {
        LOAD("m", "--api-key", "b");
        REQUIRE(st == OK && c.api_key.n == 1);
        CHECK_STR(c.api_key.items[0], "b");
        config_deinit(&c);
    }
    const char *both[] = {"VLLM_API_KEY=a", "SLUICE_API_KEY=c", NULL};
    env = (char **)both;
    {
        LOAD("m");
        REQUIRE(st == OK && c.api_key.n == 1);
        CHECK_STR(c.api_key.items[0], "c");
        config_deinit(&c);
    }
    env = (char **)no_env;
}

#define REFUSED(words, ...)                                                                        \
    do {                                                                                           \
        LOAD(__VA_ARGS__);                                                                         \
        CHECK(st != OK);                                                                           \
        if (!strstr(err.text, words)) {                                                            \
            CHECK_FAIL("\"%s\" lacks \"%s\"", err.text, words);                                    \
        }                                                                                          \
        config_deinit(&c);                                                                         \
    } while (0)

/* The message names the nearest option, the range, or the allowed words; nobody should
 * need the manual to correct a flag. */
TEST(bad_flags_are_refused_with_a_hint)
{
    REFUSED("did you mean '--max-model-len'", "m", "--max-model-length", "5");
    REFUSED("unknown option '--prot'; did you mean '--port'?", "m", "--prot", "5");
    REFUSED("needs a value", "m", "--port");
    REFUSED("is not between", "m", "--port", "70000");
    REFUSED("whole number", "m", "--port", "12x");
    REFUSED("not a whole number", "m", "--port", "1.5");
    REFUSED("not one of auto|cuda|cpu", "m", "--device", "tpu");
    REFUSED("not one of", "m", "--device", "cud");
    REFUSED("|kimi_k2|", "m", "--tool-call-parser", "kimi"); // the list is complete
    REFUSED("|xlam", "m", "--tool-call-parser", "");
    REFUSED("|seed_oss|", "m", "--reasoning-parser", "thinking");
    REFUSED("not one of", "m", "--device", "auto|cuda");
    REFUSED("neither true", "m", "--deterministic=maybe");
    REFUSED("option speculative-config", "m", "--speculative-config", "{");
    REFUSED("not an object", "m", "--speculative-config", "[]");
    REFUSED("unexpected argument 'n'", "m", "n");
    REFUSED("must be given together", "m", "--ssl-keyfile", "x");
    REFUSED("'a.example' is not an origin", "m", "--allowed-origins", "https://b", "a.example");
    REFUSED("is not an origin", "m", "--allowed-origins", "https://b/");
    REFUSED("option api-key: the value is empty", "m", "--api-key", "");
    REFUSED("429 or 503", "m", "--overload-status", "500");
    REFUSED("/nonexistent", "m", "--config", "/nonexistent");
}

/* An error lists all names, however long the wrong one and the name of its file are. */
TEST(a_long_value_does_not_cut_the_list_of_choices)
{
    static const char *const names[] = {"tool-call-parser", "reasoning-parser"};
    for (size_t i = 0; i < 2; i++) {
        char line[400], value[300];
        memset(value, 'x', sizeof value - 1);
        value[sizeof value - 1] = '\0';
        snprintf(line, sizeof line, "%s: %s\n", names[i], value);
        LOAD("models/demo", "--config", write_file(line));
        CHECK_EQ(st, ERR_INVALID);
        const char *last = i ? "|step3p5|think" : "|xlam";
        CHECK(strlen(err.text) > strlen(last));
        CHECK_STR(err.text + strlen(err.text) - strlen(last), last);
        config_deinit(&c);
    }
}

/* Flags that have no effect on answers are accepted with as many words as in vLLM, so that the
 * following words are read correctly. */
TEST(command_lines_of_vllm_run_unchanged)
{
    LOAD("m", "--dtype", "half", "--allowed-origins", "[\"*\"]", "-O3", "--compilation-config",
         "{\"level\": 3}", "-cc.level=2", "-O", "1", "--reasoning-parser", "deepseek_r1",
         "--tool-call-parser", "openai", "--trust-remote-code", "--swap-space", "4",
         "--collect-detailed-traces", "model", "worker", "--no-enable-lora", "--enable-lora=False",
         "-tp", "2", "-n", "1", "-r", "0", "--hf-token", "--disable-uvicorn-access-log",
         "--tokenizer-mode", "auto", "--tokenizer_revision", "main", "--limit-mm-per-prompt.image",
         "2", "--no-async-scheduling", "-asc", "2", "--middleware", "", "--port", "9");
    CHECK_STR(err.text, "");
    REQUIRE(st == OK);
    CHECK_STR(c.engine.model, "m");
    CHECK_STR(c.engine.dtype, "float16");
    CHECK_EQ(c.allowed_origins.n, 1);
    CHECK_STR(c.allowed_origins.items[0], "*");
    CHECK_STR(c.reasoning_parser, "deepseek_r1");
    CHECK_STR(c.tool_call_parser, "openai");
    CHECK_EQ(c.engine.tensor_parallel_size, 2);
    CHECK_EQ(c.nnodes, 1);
    CHECK_EQ(c.node_rank, 0);
    CHECK_EQ(c.port, 9);
    CHECK(!c.enable_log_requests);
    config_deinit(&c);
}

/* --speculative-config.key and its relatives build up a JSON object. */
TEST(members_of_an_object_can_be_set_one_by_one)
{
    LOAD("m", "--spec-method", "ngram", "--spec-tokens", "4",
         "--speculative-config.prompt_lookup_min=2", "--default-chat-template-kwargs", "{\"a\": 1}",
         "--default-chat-template-kwargs.b.c", "it's", "-sc.x", "[1, {}]");
    CHECK_STR(err.text, "");
    REQUIRE(st == OK);
    CHECK_STR(c.engine.speculative_config, "{\"method\": \"ngram\", \"num_speculative_tokens\": 4, "
                                           "\"prompt_lookup_min\": 2, \"x\": [1, {}]}");
    CHECK_STR(c.default_chat_template_kwargs, "{\"a\": 1, \"b\": {\"c\": \"it's\"}}");
    config_deinit(&c);
}

TEST(reasoning_is_switched_by_a_word)
{
    static const char *const words[][2] = {{"on", "{\"enable_thinking\":true}"},
                                           {"off", "{\"enable_thinking\":false}"},
                                           {"auto", "{\"enable_thinking\":true}"}};
    for (int i = 0; i < 3; i++) {
        LOAD("m", i ? "--reasoning" : "-rea", words[i][0]);
        REQUIRE(st == OK);
        CHECK_STR(c.default_chat_template_kwargs, words[i][1]);
        config_deinit(&c);
    }
    REFUSED("default-chat-template-kwargs", "m", "--reasoning", "maybe");
}

TEST(older_flags_of_positions_are_overrides)
{
    LOAD("m", "--rope-scaling", "{\"rope_type\": \"yarn\", \"factor\": 4.0}", "--rope-theta", "1e6",
         "--hf-overrides.text_config.x", "true");
    CHECK_STR(err.text, "");
    REQUIRE(st == OK);
    CHECK_STR(c.engine.hf_overrides,
              "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}, "
              "\"rope_theta\": 1e6, \"text_config\": {\"x\": true}}");
    config_deinit(&c);
}

TEST(a_member_is_set_once_and_only_in_an_object)
{
    REFUSED("'method' is set twice", "m", "--spec-method", "ngram", "-sc.method", "eagle");
    REFUSED("'b.d' is set twice", "m", "--default-chat-template-kwargs.b.c", "1",
            "--default-chat-template-kwargs.b.d", "1");
    REFUSED("unknown option", "m", "--port.x", "1");
    REFUSED("unknown option '--max-model-lne'; did you mean '--max-model-len'?", "m",
            "--max-model-lne=8192");
    REFUSED("needs a value", "m", "--spec-method");
}

/* As on vLLM's command lines, or as JSON. */
TEST(adapters_have_a_name_and_a_folder)
{
    LOAD("m", "--enable-lora", "--max-lora-rank", "64", "--lora-modules", "a=b", "c=d=e",
         "{\"name\": \"f\", \"path\": \"/g,h\", \"base_model_name\": \"m\"}", "--port", "9");
    CHECK_STR(err.text, "");
    REQUIRE(st == OK && c.engine.n_adapters == 3);
    CHECK_STR(c.engine.adapter_names[1], "c");
    CHECK_STR(c.engine.adapter_dirs[1], "d=e");
    CHECK_STR(c.engine.adapter_names[2], "f");
    CHECK_STR(c.engine.adapter_dirs[2], "/g,h");
    config_deinit(&c);
}

TEST(adapters_without_a_name_of_their_own_are_refused)
{
    REFUSED("neither NAME=FOLDER nor", "m", "--lora-modules", "a");
    REFUSED("neither NAME=FOLDER nor", "m", "--lora-modules", "a=");
    REFUSED("neither NAME=FOLDER nor", "m", "--lora-modules", "{\"name\":\"a\"}");
    REFUSED("the name 'a' occurs twice", "m", "--lora-modules", "a=b,a=c");
    REFUSED("the name 'x' occurs twice", "m", "--served-model-name", "x", "--lora-modules", "x=c");
}

/* The reason follows the flag and its value; in a file, with the line. */
TEST(what_would_change_answers_is_refused_with_the_reason)
{
    REFUSED("lora-target-modules: 'q_proj' is not supported: adapters", "m",
            "--lora-target-modules", "q_proj");
    REFUSED("return-sampling-mask: 'true' is not supported", "m", "--return-sampling-mask");
    REFUSED("always read from tokenizer.json", "m", "--tokenizer-mode=deepseek_v32");
    REFUSED("start several servers behind a load balancer", "m", "--data-parallel-size=4");
    REFUSED("plugins cannot be loaded", "m", "--middleware", "a.b");
    REFUSED("not one of", "m", "--reasoning-parser", "identity");
    char *path = write_file("disable-log-stats: true\nenable-lora: False\nignore-patterns:\n- a\n"
                            "port: 7\nlogits-processors:\n  - a.b\n");
    REFUSED(":7: option logits-processors: 'a.b' is not supported: plugins", "m", "--config", path);
    unlink(path);
}

/* Each name has one owner, and a flag is translated to an existing option. */
TEST(flags_of_vllm_are_not_options)
{
    for (size_t i = 0; i < n_vllm_flags; i++) {
        const struct vllm_flag *f = &vllm_flags[i];
        bool clash = f->harmless && f->becomes;
        for (size_t k = 0; k < n_option_rows; k++) {
            clash = clash || strcmp(option_rows[k].name, f->name) == 0;
        }
        for (size_t k = 0; k < n_option_aliases; k++) {
            clash = clash || strcmp(option_aliases[k].alias, f->name) == 0 ||
                    (f->alias && strcmp(option_aliases[k].alias, f->alias) == 0);
        }
        for (size_t k = 0; k < n_vllm_flags; k++) {
            const struct vllm_flag *g = &vllm_flags[k];
            clash = clash || (k != i && strcmp(f->name, g->name) == 0) ||
                    (k != i && f->alias && g->alias && strcmp(f->alias, g->alias) == 0);
        }
        if (clash || !f->why[0]) {
            CHECK_FAIL("%s", f->name);
        }
    }
    CHECK(n_vllm_flags > 200);
}

/* A file of five lines with one mistake names that line. An option that is given twice is a
 * mistake, too: in YAML, one would win silently. */
TEST(bad_lines_are_refused_with_their_number)
{
    char *path = write_file("model: x\nprot: 5\n");
    REFUSED(":2: unknown option 'prot'; did you mean 'port'?", "--config", path);
    write_file("model: x\n\nport 5\n");
    REFUSED(":3: expected", "--config", path);
    write_file("port: many\n");
    REFUSED(":1: option port", "--config", path);
    write_file("model: x\nport: 5\ntensor-parallel-size: 1\ntp: 2\n");
    REFUSED(":4: option tensor-parallel-size occurs twice in this file", "--config", path);
    write_file("model: x\nserved-model-name: [a]\nserved_model_name: [b]\n");
    REFUSED(":3: option served-model-name occurs twice in this file", "--config", path);
    write_file("model: 'x\n");
    REFUSED(":1: option model: unclosed quotation mark", "--config", path);
    write_file("model: \"x\" y\n");
    REFUSED("or text after the closing one", "--config", path);
    write_file("served-model-name: ['a,b']\n");
    REFUSED(":1: option served-model-name: unclosed quotation mark", "--config", path);
    write_file("served-model-name:\n- \"a\n");
    REFUSED(":2: option served-model-name: unclosed quotation mark", "--config", path);
    write_file("model: x\nspeculative-config:\n  method: ngram\n");
    REFUSED(":3: expected 'key: value' without indentation; an object", "--config", path);
    unlink(path);
}

/* In a namespace with a Service called "sluice", Kubernetes sets SLUICE_PORT=tcp://ADDRESS:PORT.
 * Any other text is still refused. */
TEST(the_address_of_a_service_is_not_a_port)
{
    const char *linked[] = {"SLUICE_PORT=tcp://10.96.0.7:80", "SLUICE_PORT_80_TCP_PROTO=tcp",
                            "SLUICE_SERVICE_HOST=10.96.0.7", NULL};
    env = (char **)linked;
    {
        LOAD("m");
        CHECK_STR(err.text, "");
        REQUIRE(st == OK);
        CHECK_EQ(c.port, 8000);
        CHECK_STR(c.host, "127.0.0.1");
        config_deinit(&c);
    }
    const char *wrong[] = {"SLUICE_PORT=http://10.96.0.7:80", NULL};
    env = (char **)wrong;
    REFUSED("environment SLUICE_PORT: option port", "m");
    env = (char **)no_env;
}

/* Files edited on Windows. */
TEST(a_byte_order_mark_and_windows_line_ends_are_ignored)
{
    char *path = write_file("\xEF\xBB\xBFmodel: 'x' # why\r\nport: 5\r\n");
    LOAD("--config", path);
    CHECK_STR(err.text, "");
    REQUIRE(st == OK);
    CHECK_STR(c.engine.model, "x");
    CHECK_EQ(c.port, 5);
    config_deinit(&c);
    unlink(path);
}

/* --print-config gives a file with the same meaning, without secrets. */
TEST(printed_configuration_reads_back_the_same)
{
    LOAD("m", "--served-model-name", "a,b", "--speculative-config", "{\"method\": \"ngram\"}",
         "--api-key", "secret", "--seed", "-5", "--host", "::", "--drain-delay", "250ms");
    REQUIRE(st == OK);
    struct buf first, second;
    buf_init(&first, 1 << 20);
    buf_init(&second, 1 << 20);
    config_print(&c, false, &first);
    CHECK(!strstr(first.data, "secret"));
    char *path = write_file(first.data);
    config_deinit(&c);
    const char *again[] = {"serve", "--config", path, "--api-key", "secret"};
    st = config_load(&c, 5, (char **)again, (char **)no_env, &err);
    CHECK_STR(err.text, "");
    REQUIRE(st == OK);
    config_print(&c, false, &second);
    CHECK_STR(second.data, first.data);
    buf_clear(&second);
    config_print(&c, true, &second);
    CHECK(strstr(second.data, "drain-delay: 0.25\n") && !strstr(second.data, "port"));
    config_deinit(&c);
    buf_deinit(&first);
    buf_deinit(&second);
    unlink(path);
}

/* "engine.max_model_len" is max-model-len. */
static bool is_named_alike(const struct option_row *row)
{
    const char *dot = strrchr(row->field, '.'), *field = dot ? dot + 1 : row->field;
    size_t i = 0;
    while (row->name[i] && (row->name[i] == '-' ? '_' : row->name[i]) == field[i]) {
        i++;
    }
    return row->name[i] == field[i];
}

/* The size that a field must have for its type. */
static size_t size_of_type(enum option_type type)
{
    switch (type) {
    case OPTION_LIST: return sizeof(struct string_list);
    case OPTION_BOOL: return sizeof(bool);
    case OPTION_REAL:
    case OPTION_SECONDS: return sizeof(double);
    case OPTION_BYTES: return sizeof(int64_t);
    default: return sizeof(char *);
    }
}

/* The tables address struct fields by offset; a row whose type is wider than its field
 * would overwrite its neighbour. And a field is named after its option. */
TEST(rows_match_the_size_and_name_of_their_fields)
{
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        bool is_short = row->type == OPTION_INT && row->n_bytes == sizeof(int32_t);
        bool fits;
        if (is_short) {
            fits = row->min >= INT32_MIN && row->max <= INT32_MAX;
        } else {
            fits = row->n_bytes == size_of_type(row->type);
        }
        if (!is_named_alike(row) || !fits) {
            CHECK_FAIL("row %s, field %s", row->name, row->field);
        }
        CHECK(!(row->secret && row->same_on_nodes));
    }
}

/* What this node would send to the others when they compare configurations. */
static void identity_of(struct buf *out, const char *flag, const char *value)
{
    LOAD("test/golden/llama-3", "--load-format", "dummy", flag, value);
    CHECK_STR(err.text, "");
    REQUIRE(st == OK);
    buf_init(out, 1 << 16);
    CHECK(nodes_identity(&c, out, &err) == OK);
    config_deinit(&c);
}

/* --kv-cache-dtype offers the formats that there are, "auto" and the plain dtypes. */
TEST(kv_formats_are_those_of_the_engine)
{
    const struct option_row *o = option_rows;
    while (strcmp(o->name, "kv-cache-dtype") != 0) {
        REQUIRE(++o < option_rows + n_option_rows);
    }
    int n = 0;
    for (size_t i = 0; kv_choice_at(i); i++, n++) {
        CHECK(words_find(o->choices, kv_choice_at(i)->name) >= 0);
    }
    for (const char *p = o->choices; (p = strchr(p, '|')) != NULL; p++) {
        n--;
    }
    CHECK_EQ(n, -3); // the option has 4 more words ("auto", three dtypes), and one bar less than
                     // words
    for (int i = 0; i < 3; i++) {
        static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
        CHECK(words_find(o->choices, kv_choice_plain(dtypes[i])->name) > 0);
    }
}

/* Nodes must agree on the size of blocks, since it determines the pool; each chooses its own number
 * of threads. */
TEST(nodes_compare_the_options_that_their_rows_mark)
{
    struct buf a, b, same;
    identity_of(&a, "--block-size", "16");
    identity_of(&b, "--block-size", "32");
    identity_of(&same, "--threads", "2");
    CHECK(strstr(a.data, "block-size: 16\n") && strstr(b.data, "block-size: 32\n"));
    CHECK(strstr(same.data, "enforce-eager: false\n") && !strstr(same.data, "threads"));
    buf_deinit(&a);
    buf_deinit(&b);
    buf_deinit(&same);
}

/* llama.cpp's --ctx-size is for all sequences together, unless these share one cache. */
TEST(a_command_line_of_llama_cpp_divides_the_context)
{
    LOAD("m", "--ctx-size", "8192", "--parallel", "4", "--alias", "b,a");
    REQUIRE(st == OK);
    CHECK_EQ(c.engine.max_model_len, 2048);
    CHECK_STR(c.conventions, "llama.cpp");
    CHECK_STR(c.served_model_name.items[0], "a");
    config_deinit(&c);
}

static void check_context(int n, const char **argv, const char *conventions, int64_t len)
{
    struct config c;
    struct err err = {""};
    REQUIRE(config_load(&c, n, (char **)argv, env, &err) == OK);
    CHECK_STR(c.conventions, conventions);
    CHECK_EQ(c.engine.max_model_len, len);
    config_deinit(&c);
}

TEST(other_command_lines_do_not_divide_the_context)
{
    const char *shared[] = {"serve", "m", "-c", "8192", "-np", "4", "--kv-unified"};
    const char *longest[] = {"serve", "m", "--max-model-len", "8192", "-np", "4"};
    const char *vllm[] = {"serve", "m", "-c", "8192", "-np", "4", "--conventions", "vllm"};
    check_context(7, shared, "llama.cpp", 8192);
    check_context(6, longest, "llama.cpp", 8192);
    check_context(8, vllm, "vllm", 8192);
}

/* An option without a line in --help cannot be found by users. */
TEST(aliases_name_rows_and_help_names_all)
{
    struct buf help;
    buf_init(&help, 1 << 20);
    config_help(&help);
    for (size_t i = 0; i < n_option_rows; i++) {
        CHECK(strstr(help.data, option_rows[i].name) != NULL);
    }
    for (size_t i = 0; i < n_option_aliases; i++) {
        bool found = false;
        for (size_t j = 0; j < n_option_rows; j++) {
            found = found || strcmp(option_rows[j].name, option_aliases[i].name) == 0;
        }
        CHECK(found);
    }
    buf_deinit(&help);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
