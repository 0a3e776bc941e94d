// SPDX-License-Identifier: Apache-2.0
/* Members of requests: types, bounds, and what is refused. */
#include "server/call/format.h"
#include "test/server/call/request_bed.h"

/* The tables of prepare.c and call.c have a row for each kind. */
TEST(every_kind_is_read_and_answered)
{
    for (int kind = 0; kind < N_REQUEST_KINDS; kind++) {
        char *text;
        struct request r = prepared((enum request_kind)kind, "{\"prompt\":\"a\"}", &text);
        bool answered = call_format_of((enum request_kind)kind) && call_format_of(r.kind);
        if (r.error.status >= 500 || (!answered && kind != KIND_GENERATE)) {
            CHECK_FAIL("kind %d: %s", kind, r.error.message);
        }
        request_deinit(&r);
        free(text);
    }
}

/* Text that is not a JSON object: empty, an array, text after the object, invalid UTF-8,
 * and nesting deeper than any request needs. */
TEST(bodies_that_are_not_objects)
{
    REFUSES(KIND_CHAT, "", "json_parse_error", "");
    REFUSES(KIND_CHAT, "[1]", "json_parse_error", "");
    REFUSES(KIND_CHAT, "{\"a\":1} x", "json_parse_error", "");
    REFUSES(KIND_CHAT, "{\"a\":\"\\ud800\xff\"}", "json_parse_error", "");
    REFUSES(KIND_CHAT,
            "{\"messages\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
            "[[[[[[[[[[[[",
            "json_parse_error", "");
}

/* U+0000 is valid JSON, but our names are C strings: a string in which it cannot be kept
 * is refused with its own code, not as a syntax error. */
TEST(a_nul_in_a_string_is_not_a_syntax_error)
{
    REFUSES(KIND_CHAT, "{" HI ",\"request_id\":\"a\\u0000\"}", "invalid_value", "request_id");
    REFUSES(KIND_CHAT, "{\"messages\":[{\"role\":\"us\\u0000er\",\"content\":\"a\"}]}",
            "invalid_value", "messages[0].role");
    REFUSES(KIND_RESPONSES, "{\"input\":[{\"role\":\"us\\u0000er\",\"content\":\"a\"}]}",
            "invalid_value", "input[0].role");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\\u0000\":\"a\"}", "missing_required_parameter", "prompt");
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":\"a\",\"\\u0000\":1,\"n\\u0000\":\"x\"}");
        CHECK_EQ(r.n_unknown, 2);
        DONE();
    }
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":\"a\\ud800\"}", "json_parse_error", "");
    ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":\"a\\\\u0000\"}");
    CHECK_STR(r.prompts[0].text, "a\\u0000");
    DONE();
}

/* Compares with the ids that the tokenizer alone gives for the text. */
static void check_ids_are(const struct request_prompt *p, const char *text, size_t n_bytes)
{
    struct ids ids;
    ids_init(&ids, 1 << 10);
    struct text_span span = {text, n_bytes, false};
    struct tokenizer_flags flags = {.add_special = false, .parse_special = true};
    REQUIRE(tokenizer_encode(model.tok, &span, 1, flags, &ids, NULL) == OK);
    CHECK_EQ(p->n, ids.n);
    CHECK(memcmp(p->ids, ids.v, ids.n * sizeof ids.v[0]) == 0);
    ids_deinit(&ids);
}

TEST(a_nul_in_a_stop_string_ends_at_it)
{
    ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":\"a\",\"stop\":[\"a\\u0000b\",\"\\u0000\"]}");
    CHECK_EQ(r.output.n_stop, 2);
    CHECK_EQ(r.output.stop_bytes[0], 3);
    CHECK(memcmp(r.output.stop[0], "a\0b", 3) == 0);
    CHECK_EQ(r.output.stop_bytes[1], 1);
    DONE();
}

TEST(a_nul_in_a_text_reaches_the_tokenizer)
{
    {
        ACCEPTS(KIND_TOKENIZE, "{\"prompt\":\"a\\u0000b\\u0000\",\"add_special_tokens\":false}");
        CHECK_EQ(r.prompts[0].text_bytes, 4);
        CHECK(memcmp(r.prompts[0].text, "a\0b\0", 4) == 0);
        check_ids_are(&r.prompts[0], "a\0b\0", 4);
        DONE();
    }
    {
        ACCEPTS(KIND_EMBEDDINGS, "{\"input\":[\"\\u0000\",\"\\\\u0000\",\"x\\n\"]}");
        CHECK_EQ(r.n_prompts, 3);
        CHECK_EQ(r.prompts[0].text_bytes, 1);
        CHECK_STR(r.prompts[1].text, "\\u0000");
        CHECK_STR(r.prompts[2].text, "x\n");
        DONE();
    }
    {
        ACCEPTS(KIND_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}");
        const struct request_prompt *p = &r.prompts[0];
        CHECK(memmem(p->text, p->text_bytes, "user\na\0b", 8) != NULL);
        check_ids_are(p, p->text, p->text_bytes);
        DONE();
    }
    {
        ACCEPTS(KIND_RESPONSES, "{\"input\":\"a\\u0000b\"}");
        CHECK(memmem(r.prompts[0].text, r.prompts[0].text_bytes, "user\na\0b", 8) != NULL);
        DONE();
    }
}

TEST(a_nul_in_a_bad_word_is_part_of_it)
{
    ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":\"a\",\"bad_words\":[\"a\\u0000b\"]}");
    const struct request_prompt word = {.ids = r.params.bad_word_tokens,
                                        .n = r.params.bad_word_lengths[0]};
    CHECK_EQ(r.params.n_bad_words, 2);
    check_ids_are(&word, "a\0b", 3);
    DONE();
}

/* {"k1":0,"k2":0,...,"temperature":-3}, with `n` keys in all. */
static void many_keys(struct buf *b, int n)
{
    buf_puts(b, "{");
    for (int i = 1; i < n; i++) {
        buf_printf(b, "\"k%d\":0,", i);
    }
    buf_puts(b, "\"temperature\":-3}");
}

/* Keys are indexed by a table of 256; the last key must be found at each of its sizes, and
 * more keys than that are refused, not ignored. */
TEST(the_last_of_many_keys_is_read_and_too_many_are_refused)
{
    static const int counts[] = {16, 17, 33, 255, 256, 257, 1000};
    for (int i = 0; i < 7; i++) {
        struct buf b;
        buf_init(&b, 1 << 20);
        many_keys(&b, counts[i]);
        bool fits = counts[i] <= 256;
        REFUSES(KIND_CHAT, b.data, fits ? "decimal_below_min_value" : "json_parse_error",
                fits ? "temperature" : "");
        buf_deinit(&b);
    }
}

/* Bounds and types with OpenAI's error codes. 1e400 overflows a double, 4294967297 an
 * int32_t: neither may wrap to something valid. */
TEST(scalars_out_of_range_name_their_parameter)
{
    REFUSES(KIND_CHAT, "{" HI ",\"temperature\":-1}", "decimal_below_min_value", "temperature");
    REFUSES(KIND_CHAT, "{" HI ",\"temperature\":\"1\"}", "invalid_type", "temperature");
    REFUSES(KIND_CHAT, "{" HI ",\"temperature\":1e400}", "decimal_above_max_value", "temperature");
    REFUSES(KIND_CHAT, "{" HI ",\"top_p\":1.5}", "decimal_above_max_value", "top_p");
    REFUSES(KIND_CHAT, "{" HI ",\"top_k\":-2}", "integer_below_min_value", "top_k");
    REFUSES(KIND_CHAT, "{" HI ",\"n\":0}", "integer_below_min_value", "n");
    REFUSES(KIND_CHAT, "{" HI ",\"n\":1.5}", "invalid_type", "n");
    REFUSES(KIND_CHAT, "{" HI ",\"n\":129}", "integer_above_max_value", "n");
    REFUSES(KIND_CHAT, "{" HI ",\"max_tokens\":0}", "integer_below_min_value", "max_tokens");
    REFUSES(KIND_CHAT, "{" HI ",\"max_tokens\":4294967297}", "integer_above_max_value",
            "max_tokens");
    REFUSES(KIND_CHAT, "{" HI ",\"max_tokens\":64}", "context_length_exceeded", "messages");
    REFUSES(KIND_CHAT, "{" HI ",\"stream\":1}", "invalid_type", "stream");
    REFUSES(KIND_CHAT, "{" HI ",\"stream_options\":{}}", "invalid_value", "stream_options");
    REFUSES(KIND_CHAT, "{" HI ",\"top_logprobs\":3}", "invalid_value", "top_logprobs");
    REFUSES(KIND_CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":21}", "integer_above_max_value",
            "top_logprobs");
    REFUSES(KIND_CHAT, "{" HI ",\"stop\":[\"\"]}", "invalid_value", "stop");
    REFUSES(KIND_CHAT, "{" HI ",\"stop\":5}", "invalid_type", "stop");
    REFUSES(KIND_CHAT, "{" HI ",\"logit_bias\":{\"x\":1}}", "invalid_value", "logit_bias");
    REFUSES(KIND_CHAT, "{" HI ",\"logit_bias\":{\"5\":1,\"-1\":1}}", "invalid_value", "logit_bias");
    REFUSES(KIND_CHAT, "{" HI ",\"logit_bias\":{\"5\":101}}", "decimal_above_max_value",
            "logit_bias");
    REFUSES(KIND_CHAT, "{" HI ",\"logit_bias\":{\"99999999\":1}}", "invalid_value", "logit_bias");
    REFUSES(KIND_CHAT, "{" HI ",\"min_tokens\":50,\"max_tokens\":9}", "invalid_value",
            "min_tokens");
    REFUSES(KIND_CHAT, "{" HI ",\"best_of\":3}", "unsupported_value", "best_of");
    REFUSES(KIND_CHAT, "{" HI ",\"cache_salt\":\"\"}", "invalid_value", "cache_salt");
    REFUSES(KIND_CHAT, "{" HI ",\"seed\":99999999999999999999}", "invalid_value", "seed");
    REFUSES(KIND_CHAT, "{" HI ",\"model\":\"other\"}", "model_not_found", "model");
    REFUSES(KIND_CHAT, "{" HI ",\"reasoning_effort\":\"vast\"}", "invalid_value",
            "reasoning_effort");
}

/* Features that are not implemented are refused by the member's name; if they were ignored, the
 * answer would be different without any notice. */
TEST(unsupported_features_are_refused_by_name)
{
    REFUSES(KIND_CHAT, "{" HI ",\"response_format\":{\"type\":\"grammar\"}}", "unsupported_value",
            "response_format");
    REFUSES(KIND_CHAT, "{" HI ",\"structured_outputs\":{\"structural_tag\":\"a\"}}",
            "invalid_grammar", "structured_outputs");
    REFUSES(KIND_CHAT, "{" HI ",\"chat_template\":\"x\"}", "unsupported_parameter",
            "chat_template");
    REFUSES(KIND_CHAT, "{" HI ",\"audio\":{\"voice\":\"x\"}}", "unsupported_parameter", "audio");
    REFUSES(KIND_CHAT, "{" HI ",\"modalities\":[\"text\",\"audio\"]}", "unsupported_value",
            "modalities");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":\"a\",\"suffix\":\"b\"}", "unsupported_value", "suffix");
    REFUSES(KIND_RESPONSES, "{\"input\":\"a\",\"use_beam_search\":true}", "unsupported_parameter",
            "use_beam_search");
    REFUSES(KIND_RESPONSES, "{\"input\":\"a\",\"previous_response_id\":\"resp_1\"}", "not_found",
            "previous_response_id");
    REFUSES(KIND_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}",
            "unsupported_parameter", "tools[0].type");
}

/* A string, an array of strings, ids, and an array of ids; and the default number of
 * tokens for each. */
TEST(prompts_in_all_four_forms)
{
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":\"hello\"}");
        CHECK_EQ(r.n_prompts, 1);
        CHECK(r.prompts[0].n > 0 && r.prompts[0].max_tokens == 16);
        CHECK_STR(r.prompts[0].text, "hello");
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":[\"a\",\"b c\"],\"n\":2,\"best_of\":2}");
        CHECK_EQ(r.n_prompts, 2);
        CHECK_STR(r.prompts[1].text, "b c");
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":[5, 6,7],\"max_tokens\":null}");
        CHECK_EQ(r.n_prompts, 1);
        CHECK_EQ(r.prompts[0].n, 3);
        CHECK_EQ(r.prompts[0].ids[2], 7);
        CHECK_EQ(r.prompts[0].max_tokens, 61);
        CHECK(!r.prompts[0].text);
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":[[5],[6,7]],\"max_tokens\":0,\"echo\":true,"
                                  "\"logprobs\":1}");
        CHECK_EQ(r.n_prompts, 2);
        CHECK_EQ(r.prompts[1].ids[1], 7);
        CHECK_EQ(r.prompts[1].max_tokens, 0);
        CHECK(r.params.prompt_logprobs && r.params.prompt_top_logprobs == 1);
        DONE();
    }
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":[]}", "empty_array", "prompt");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":[5,\"a\"]}", "invalid_type", "prompt");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":[[5],6]}", "invalid_type", "prompt");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":[99999999]}", "invalid_value", "prompt");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":[-1]}", "invalid_value", "prompt");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":\"\"}", "invalid_value", "prompt");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":[[]]}", "empty_array", "prompt");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":[1.5]}", "invalid_type", "prompt");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":{}}", "invalid_type", "prompt");
    REFUSES(KIND_OLLAMA_EMBED, "{\"input\":\"\"}", "invalid_value", "input");
    REFUSES(KIND_OLLAMA_OLD_EMBED, "{\"prompt\":\"\"}", "invalid_value", "prompt");
    REFUSES(KIND_EMBEDDINGS, "{\"input\":\"a\",\"dimensions\":3}", "unsupported_value",
            "dimensions");
}

/* Seeds beyond 2^53 would lose bits as doubles. null counts as absent; the last of equal
 * keys wins, as in Python's dict. */
TEST(numbers_keep_their_bits_and_null_is_absent)
{
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":\"a\",\"seed\":9007199254740993,\"n\":2.0,"
                                  "\"temperature\":null,\"stop\":null,\"logprobs\":null}");
        CHECK(r.params.seed == 9007199254740993ULL);
        CHECK_EQ(r.n, 2);
        CHECK_NEAR(r.params.temperature, 1, 0);
        CHECK(!r.logprobs);
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS,
                "{\"prompt\":\"a\",\"seed\":-3,\"top_p\":0,\"unknown\":{\"x\":[]}}");
        CHECK(r.params.seed == (uint64_t)-3);
        CHECK_EQ(r.params.top_k, 1);
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":\"a\"}");
        CHECK(r.params.seed == 9);
        CHECK_EQ(r.params.n_stop_ids, 1);
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":\"a\",\"ignore_eos\":true,\"stop_token_ids\":[7],"
                                  "\"stop\":[\"x\",\"y\"],\"n\":1,\"n\":3}");
        CHECK_EQ(r.params.n_stop_ids, 1);
        CHECK_EQ(r.params.stop_ids[0], 7);
        CHECK_EQ(r.output.n_stop, 2);
        CHECK_EQ(r.output.stop_bytes[1], 1);
        CHECK_EQ(r.n, 3); // the last of equal keys
        DONE();
    }
}

/* truncate_prompt_tokens keeps the end of the prompt. */
TEST(prompts_are_truncated_on_request)
{
    ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":[1,2,3,4,5],\"truncate_prompt_tokens\":2}");
    CHECK_EQ(r.prompts[0].n, 2);
    CHECK_EQ(r.prompts[0].ids[0], 4);
    DONE();
}

/* continuous_usage_stats alone has no effect, as in vLLM. */
TEST(usage_in_each_event_needs_include_usage)
{
    {
        ACCEPTS(KIND_CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":"
                           "true}}");
        CHECK(!r.include_usage && !r.continuous_usage);
        DONE();
    }
    {
        ACCEPTS(KIND_CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":"
                           "true,\"include_usage\":true}}");
        CHECK(r.include_usage && r.continuous_usage);
        DONE();
    }
}

/* Members that have no meaning for the endpoint are ignored if other endpoints know them. */
TEST(an_embedding_has_one_sample)
{
    ACCEPTS(KIND_EMBEDDINGS,
            "{\"input\":[\"a\",\"b\"],\"n\":7,\"prompt_logprobs\":3,\"min_tokens\":5}");
    CHECK_EQ(r.n, 1);
    CHECK(!r.params.prompt_logprobs);
    CHECK(r.pools && r.n_prompts == 2);
    DONE();
}

/* Sampling members have no meaning where nothing is generated, so their bounds are not
 * checked there either. */
TEST(sampling_members_mean_nothing_where_tokens_are_counted)
{
    ACCEPTS(KIND_TOKENIZE, "{" HI ",\"min_tokens\":5,\"max_tokens\":9}");
    CHECK(!r.generates && !r.pools && r.prompts[0].n > 0);
    DONE();
}

/* A text longer than any context is still counted, and refused with its length where the context
 * matters. */
TEST(a_text_beyond_every_context)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"prompt\":\"");
    for (int i = 0; i < 20000; i++) {
        buf_puts(&b, "word ");
    }
    buf_puts(&b, "\"}");
    {
        ACCEPTS(KIND_TOKENIZE, b.data);
        CHECK(r.prompts[0].n >= 20000);
        DONE();
    }
    char *text;
    struct request r = prepared(KIND_COMPLETIONS, b.data, &text);
    CHECK_STR(r.error.code, "context_length_exceeded");
    CHECK(strstr(r.error.message, "you requested at least ") != NULL);
    CHECK_EQ(r.error.n_prompt, 0);
    CHECK_EQ(r.error.n_context, 64);
    DONE();
    buf_deinit(&b);
}

/* Broken and mixed bodies never crash, and each refusal has a message. */
TEST(mutated_bodies_never_crash)
{
    static const char *const seeds[] = {
        "{" HI TOOL ",\"stop\":[\"a\"],\"logit_bias\":{\"5\":1},\"n\":2,\"seed\":5}",
        "{\"prompt\":[[1,2],[3]],\"echo\":true,\"logprobs\":3,\"stream\":true}",
        "{\"input\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","
        "\"name\":\"f\"}],\"reasoning\":{\"effort\":\"low\"}}",
    };
    static const char bytes[] = "{}[],:\"\\0159-.eEtfn ux\xc3\xff";
    static const enum request_kind kinds[] = {KIND_CHAT,       KIND_COMPLETIONS, KIND_RESPONSES,
                                              KIND_EMBEDDINGS, KIND_TOKENIZE,    KIND_DETOKENIZE,
                                              KIND_GENERATE};
    uint64_t x = 1;
    for (int i = 0; i < 20000; i++) {
        char body[512], *text;
        snprintf(body, sizeof body, "%s", seeds[i % 3]);
        size_t n = strlen(body);
        for (int k = 0; k < 1 + i % 4; k++) {
            x = x * 6364136223846793005ULL + 1442695040888963407ULL;
            size_t at = (x >> 33) % n;
            if ((x >> 20) % 3 == 0) {
                memmove(body + at, body + at + 1, n - at);
                n--;
            } else {
                body[at] = bytes[(x >> 50) % (sizeof bytes - 1)];
            }
        }
        struct request r = prepared(kinds[(x >> 40) % 7], body, &text);
        CHECK(r.error.status == 0 || r.error.message[0]);
        request_deinit(&r);
        free(text);
    }
}

/* Members of `sluice generate` only: scores, ids and pools. The others are read as in a server's
 * request. */
TEST(a_line_of_generate_has_members_of_its_own)
{
    {
        ACCEPTS(KIND_GENERATE,
                "{\"prompt_token_ids\":[5,6,7],\"logprobs\":true,\"prompt_logprobs\":3,"
                "\"temperature\":9,\"bad_words\":[[1],[2,3]],\"max_tokens\":5000,"
                "\"model\":\"another\",\"stop\":\"x\",\"max_token\":1}");
        CHECK(r.n_prompts == 1 && r.prompts[0].n == 3 && r.prompts[0].max_tokens == 61);
        CHECK(r.params.logprobs && r.params.top_logprobs == 0);
        CHECK(r.params.prompt_logprobs && r.params.prompt_top_logprobs == 3);
        CHECK(r.params.temperature == 9 && r.params.seed == 0 && r.output.n_stop == 1);
        CHECK(r.params.n_bad_words == 2 && r.params.bad_word_lengths[1] == 2);
        CHECK(r.n_unknown == 1);
        CHECK_STR(r.unknown, "max_token");
        DONE();
    }
    {
        ACCEPTS(KIND_GENERATE,
                "{\"prompt\":\"a\",\"pool\":\"last\",\"n\":3,\"min_tokens\":4,\"seed\":8}");
        CHECK(r.pools && !r.generates && r.pooling == POOL_LAST && r.n == 1);
        CHECK(r.params.min_tokens == 0 && r.params.seed == 8);
        DONE();
    }
    REFUSES(KIND_GENERATE, "{\"prompt\":\"a\",\"prompt_token_ids\":[1]}", "invalid_value",
            "prompt_token_ids");
    REFUSES(KIND_GENERATE, "{\"prompt_token_ids\":\"a\"}", "invalid_type", "prompt_token_ids");
    REFUSES(KIND_GENERATE, "{\"prompt\":\"a\",\"bad_words\":[[1],\"a\"]}", "invalid_type",
            "bad_words");
    REFUSES(KIND_GENERATE, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"grammar\"}}",
            "unsupported_value", "response_format");
}

int main(int argc, char **argv)
{
    return request_main(argc, argv);
}
