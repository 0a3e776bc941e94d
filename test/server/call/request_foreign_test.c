// SPDX-License-Identifier: Apache-2.0
/* Members that other servers have: those that are read, and those that are refused. */
#include "test/server/call/request_bed.h"

TEST(names_of_other_servers)
{
    {
        ACCEPTS(KIND_CHAT, "{" HI ",\"num_predict\":7,\"repeat_penalty\":1.5,\"random_seed\":4,"
                           "\"min_new_tokens\":2,\"n_cmpl\":3,\"no_stop_trim\":true,"
                           "\"temperature\":1000,\"best_of\":1}");
        CHECK_EQ(r.prompts[0].max_tokens, 7);
        CHECK_NEAR(r.params.repetition_penalty, 1.5, 0);
        CHECK_NEAR(r.params.temperature, 1000, 0);
        CHECK(r.params.seed == 4 && r.params.min_tokens == 2 && r.n == 3 && r.output.include_stop);
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":[1,2],\"n_predict\":-1}");
        CHECK_EQ(r.prompts[0].max_tokens, 62);
        CHECK(!r.max_is_asked);
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":[1,2],\"n_predict\":5,\"max_tokens\":3}");
        CHECK_EQ(r.prompts[0].max_tokens, 3); // the endpoint's own name counts
        DONE();
    }
    {
        ACCEPTS(KIND_COMPLETIONS, "{\"prompt\":[1,2],\"max_new_tokens\":5}");
        CHECK_EQ(r.prompts[0].max_tokens, 5);
        DONE();
    }
    {
        ACCEPTS(KIND_RESPONSES, "{\"input\":\"a\",\"max_tokens\":5,\"reasoning_effort\":\"low\","
                                "\"n\":1,\"logprobs\":true}");
        CHECK_EQ(r.prompts[0].max_tokens, 5);
        CHECK_STR(r.kwargs, "{\"reasoning_effort\":\"low\",\"enable_thinking\":true}");
        CHECK(r.params.logprobs);
        DONE();
    }
    {
        ACCEPTS(KIND_CHAT, "{" HI ",\"thinking\":{\"type\":\"disabled\"},\"reasoning\":{"
                           "\"effort\":\"high\"}}");
        CHECK_STR(r.kwargs, "{\"reasoning_effort\":\"high\",\"enable_thinking\":true,"
                            "\"enable_thinking\":false}");
        DONE();
    }
    {
        ACCEPTS(KIND_CHAT, "{" HI ",\"think\":true}");
        CHECK_STR(r.kwargs, "{\"enable_thinking\":true}");
        DONE();
    }
    {
        ACCEPTS(KIND_EMBEDDINGS, "{\"input\":\"a\",\"embd_normalize\":-1}");
        CHECK(!r.normalize);
        DONE();
    }
    {
        ACCEPTS(KIND_CHAT, "{" HI ",\"repeat_last_n\":64,\"penalize_nl\":false}");
        DONE();
    }
    REFUSES(KIND_CHAT, "{" HI ",\"repeat_last_n\":5,\"repeat_penalty\":1.1}", "unsupported_value",
            "repeat_last_n");
    {
        ACCEPTS(KIND_CHAT, "{" HI ",\"repeat_last_n\":0,\"repeat_penalty\":1.1,"
                           "\"presence_penalty\":1,\"frequency_penalty\":1}");
        CHECK(r.params.repetition_penalty == 1 && r.params.presence_penalty == 0 &&
              r.params.frequency_penalty == 0);
        DONE();
    }
    {
        ACCEPTS(KIND_CHAT, "{" HI ",\"repeat_last_n\":2147483647,\"repeat_penalty\":2}");
        CHECK(r.params.repetition_penalty == 2);
        DONE();
    }
    REFUSES(KIND_CHAT, "{" HI ",\"penalize_nl\":false,\"presence_penalty\":1}", "unsupported_value",
            "penalize_nl");
    REFUSES(KIND_CHAT, "{" HI ",\"n_predict\":0}", "integer_below_min_value", "n_predict");
    REFUSES(KIND_CHAT, "{" HI ",\"num_predict\":\"9\"}", "invalid_type", "num_predict");
    REFUSES(KIND_CHAT, "{" HI ",\"temperature\":1e31}", "decimal_above_max_value", "temperature");
    REFUSES(KIND_CHAT, "{" HI ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5}}",
            "unsupported_value", "thinking.budget_tokens");
    REFUSES(KIND_CHAT, "{" HI ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":0}}",
            "invalid_value", "thinking.budget_tokens");
    REFUSES(KIND_CHAT, "{" HI ",\"thinking\":{\"type\":\"some\"}}", "invalid_value",
            "thinking.type");
    REFUSES(KIND_CHAT, "{" HI ",\"reasoning\":{\"max_tokens\":5}}", "unsupported_parameter",
            "reasoning.max_tokens");
    REFUSES(KIND_RESPONSES, "{\"input\":\"a\",\"n\":2}", "integer_above_max_value", "n");
    REFUSES(KIND_EMBEDDINGS, "{\"input\":\"a\",\"embd_normalize\":0}", "unsupported_value",
            "embd_normalize");
}

/* A body of `form` with one more member. */
static char *body_with(unsigned form, const char *key, const char *value, size_t n_value,
                       enum request_kind *kind)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_puts(&b, "{");
    if (form & FORM_CHAT) {
        *kind = KIND_CHAT;
        buf_puts(&b, HI);
    } else if (form & FORM_COMPLETIONS) {
        *kind = KIND_COMPLETIONS;
        buf_puts(&b, "\"prompt\":\"a\"");
    } else if (form & FORM_RESPONSES) {
        *kind = KIND_RESPONSES;
        buf_puts(&b, "\"input\":\"a\"");
    } else if (form & FORM_OLLAMA_GENERATE) {
        *kind = KIND_OLLAMA_GENERATE;
        buf_puts(&b, "\"prompt\":\"a\"");
    } else if (form & FORM_OLLAMA_CHAT) {
        *kind = KIND_OLLAMA_CHAT;
        buf_puts(&b, HI);
    } else if (form & FORM_TOKENS) {
        *kind = KIND_TOKENS;
        buf_puts(&b, "\"token_ids\":[5]");
    } else if (form & FORM_CHAT_BATCH) {
        *kind = KIND_CHAT_BATCH;
        buf_puts(&b, "\"messages\":[[{\"role\":\"user\",\"content\":\"hi\"}]]");
    } else if (form & FORM_EMBEDDINGS) {
        *kind = KIND_EMBEDDINGS;
        buf_puts(&b, "\"input\":\"a\"");
    } else if (form & FORM_DERENDER_CHAT) {
        *kind = KIND_DERENDER_CHAT;
        buf_puts(&b, "\"generate_response\":{\"choices\":[{\"token_ids\":[5]}]}");
    } else if (form & FORM_SYSTEMONE) {
        *kind = KIND_SYSTEMONE;
        buf_puts(
            &b,
            "\"state\":\"a\",\"questions\":{\"q\":{\"type\":\"noul\",\"instructions\":\"b?\"}}");
    } else if (form & FORM_COHERE_EMBED) {
        *kind = KIND_COHERE_EMBED;
        buf_puts(&b, "\"texts\":[\"a\"]");
    } else {
        *kind = KIND_MESSAGES;
        buf_puts(&b, "\"max_tokens\":9," HI);
    }
    buf_printf(&b, ",\"%s\":", key);
    buf_put(&b, value, n_value);
    buf_puts(&b, "}");
    return b.data;
}

/* For each refused member of the table: a value that requests something, each value that requests
 * nothing (`off`), and null. */
TEST(refused_members_are_refused_unless_they_ask_for_nothing)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        enum request_kind kind;
        if (m->use != MEMBER_REFUSED) {
            continue;
        }
        const char *asks = m->type == MEMBER_STRING ? "\"x\"" : "123";
        if (m->type == MEMBER_BOOL) {
            asks = "true";
        }
        char *body = body_with(m->forms, m->key, asks, strlen(asks), &kind);
        REFUSES(kind, body, "unsupported_parameter", m->key);
        free(body);
        for (const char *word = m->off; *word;) {
            size_t n = strcspn(word, "|");
            body = body_with(m->forms, m->key, word, n, &kind);
            {
                ACCEPTS(kind, body);
                CHECK_EQ(r.n_unknown, 0);
                DONE();
            }
            free(body);
            word += n + (word[n] == '|');
        }
        body = body_with(m->forms, m->key, "null", 4, &kind);
        ACCEPTS(kind, body);
        DONE();
        free(body);
    }
}

/* Members of other servers that would change the answer and that we do not implement. */
TEST(values_that_change_the_answer_are_never_ignored)
{
    static const char *const asks[][2] = {
        {"lora", "[{\"id\":0,\"scale\":0.5}]"},
        {"lora_path", "\"a\""},
        {"options", "{\"seed\":1}"},
        {"extra_body", "{\"top_k\":1}"},
        {"typical_p", "0.9"},
        {"dry_multiplier", "0.8"},
        {"mirostat", "2"},
        {"xtc_probability", "0.5"},
        {"top_n_sigma", "1.5"},
        {"dynatemp_range", "0.1"},
        {"do_sample", "false"},
        {"separate_reasoning", "false"},
        {"reasoning_format", "\"none\""},
        {"kv_transfer_params", "{\"a\":1}"},
        {"ec_transfer_params", "{\"a\":1}"},
        {"vllm_xargs", "{\"a\":1}"},
        {"stop_sequences", "[\"x\"]"},
        {"num_beams", "4"},
        {"n_probs", "3"},
        {"instructions", "\"be nice\""},
        {"previous_response_id", "\"resp_1\""},
    };
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        enum request_kind kind;
        char *body = body_with(FORM_CHAT, asks[i][0], asks[i][1], strlen(asks[i][1]), &kind);
        REFUSES(kind, body, "unsupported_parameter", asks[i][0]);
        free(body);
    }
    REFUSES(KIND_MESSAGES, "{\"max_tokens\":9," HI ",\"logprob_token_ids\":[5]}",
            "unsupported_parameter", "logprob_token_ids");
    REFUSES(KIND_MESSAGES, "{\"max_tokens\":9," HI ",\"thinking_token_budget\":0}",
            "unsupported_parameter", "thinking_token_budget");
    REFUSES(KIND_CHAT, "{" HI ",\"thinking_token_budget\":0}", "unsupported_value",
            "thinking_token_budget"); // this model has no reasoning
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":\"a\",\"tools\":[{\"type\":\"function\"}]}",
            "unsupported_parameter", "tools");
    REFUSES(KIND_COMPLETIONS, "{\"prompt\":\"a\",\"top_logprobs\":3}", "unsupported_parameter",
            "top_logprobs");
}

int main(int argc, char **argv)
{
    return request_main(argc, argv);
}
