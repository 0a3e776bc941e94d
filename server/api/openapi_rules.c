// SPDX-License-Identifier: Apache-2.0
/* The rules in a body's schema that relate several members: which of them replace others, and which
 * exclude each other. */
#include "engine/base/optional.h"
#include "server/api/openapi_parts.h"

#include "server/call/members.h"

#define THERE(key) "'" key "':{'not':{'type':'null'}}"
#define NONE(key) "'" key "':{'type':'null'}"
/* The two lists of /v1/score are given under this pair of names, and no other name is used. */
#define PAIR(first, second, a, b, c, d, e)                                                         \
    "{'required':['" first "','" second "'],'properties':{" THERE(first) "," THERE(                \
        second) "," NONE(a) "," NONE(b) "," NONE(c) "," NONE(d) "," NONE(e) "}}"

#define FILLED                                                                                     \
    "{'anyOf':[{'type':['null','object']},{'type':'string','minLength':1},{'type':'array','items'" \
    ":{'anyOf':[{'type':['integer','array','object']},{'type':'string','minLength':1}]}}]}"

/* A rule is in the schema of each form that has the member. */
static const struct {
    const char *key;
    unsigned forms;
    const char *schema;
} rules[] = {
    /* A single rule, because Schemathesis combines the alternatives of all rules. */
    {"stream_options", ~0u,
     "{'anyOf':[{'required':['stream'],'properties':{'stream':{'const':true},"
     "'prompt_logprobs':{'type':'null'}}},"
     "{'properties':{'stream':{'enum':[false,null]},'stream_options':{'type':'null'}}}]}"},
    /* Without the tokens that a tokenizer adds, an empty text has none. */
    {"add_special_tokens", FORM_EMBEDDINGS | FORM_NATIVE | FORM_NATIVE_EMBED,
     "{'anyOf':[{'properties':{'add_special_tokens':{'enum':[null,true]}}},{'properties':{"
     "'input':" FILLED ",'content':" FILLED ",'prompt':" FILLED "}}]}"},
    {"previous_response_id", FORM_RESPONSES,
     "{'anyOf':[{'properties':{'previous_response_id':{'type':'null'}}},"
     "{'properties':{'conversation':{'type':'null'}}}]}"},
    {"detokenize", FORM_TOKENS,
     "{'anyOf':[{'properties':{'detokenize':{'enum':[null,true]}}},"
     "{'properties':{'stop':{'enum':[null,[]]},'output_mode':{'enum':[null,'tokens']}}}]}"},
    {"echo", FORM_COMPLETIONS,
     "{'anyOf':[{'required':['echo'],'properties':{'echo':{'const':true}}},"
     "{'properties':{'max_tokens':{'not':{'const':0}}}}]}"},
    {"top_logprobs",
     FORM_CHAT | FORM_CHAT_BATCH | FORM_TOKENIZE_CHAT | FORM_OLLAMA_CHAT | FORM_OLLAMA_GENERATE,
     "{'anyOf':[{'required':['logprobs'],'properties':{'logprobs':{'const':true}}},"
     "{'properties':{'top_logprobs':{'enum':[0,null]}}}]}"},
    /* Penalties cover all tokens. */
    {"penalize_nl", ~0u,
     "{'anyOf':[{'properties':{'penalize_nl':{'enum':[null,true]}}},"
     "{'properties':{'repetition_penalty':{'enum':[null,1]},'repeat_penalty':{'enum':[null,1]},"
     "'frequency_penalty':{'enum':[null,0]},'presence_penalty':{'enum':[null,0]}}}]}"},
    {"tool_choice", FORM_MESSAGES | FORM_COUNT_TOKENS,
     "{'anyOf':[{'required':['tools'],'properties':{'tools':{'type':'array','minItems':1}}},"
     "{'properties':{'tool_choice':{'type':'null'}}}]}"},
    {"generate_chunk", ~0u,
     "{'anyOf':[{'required':['generate_chunk'],'properties':{'generate_chunk':{'type':'object'}}},"
     "{'properties':{'stream':{'enum':[false,null]}}}]}"},
    /* "functions" would do as well, but with a third alternative Schemathesis fails to generate. */
    {"tool_choice", FORM_CHAT | FORM_CONTEXT | FORM_TOKENIZE_CHAT | FORM_OLLAMA_CHAT,
     "{'anyOf':[{'required':['tools'],'properties':{'tools':{'type':'array','minItems':1}}},"
     "{'properties':{'tool_choice':{'enum':[null,'none']},'function_call':{'enum':[null,'none']}}"
     "}]}"},
    {"data_1", FORM_SCORE,
     "{'anyOf':[" PAIR(
         "text_1", "text_2", "queries", "documents", "items", "data_1",
         "data_2") "," PAIR("queries", "documents", "text_1", "text_2", "items", "data_1",
                            "data_2") "," PAIR("queries", "items", "text_1", "text_2", "documents",
                                               "data_1", "data_2") "," PAIR("data_1", "data_2",
                                                                            "text_1", "text_2",
                                                                            "queries", "documents",
                                                                            "items") "]}"},
};

static bool stands_for(const struct member *m, const struct member *required)
{
    return m->instead_of && strcmp(m->instead_of, required->key) == 0;
}

bool openapi_may_be_another(const struct member *required, unsigned form)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        if ((m->forms & form) && stands_for(m, required)) {
            return true;
        }
    }
    return false;
}

/* The member is present, and not null. */
static void put_presence(struct buf *b, const struct member *m)
{
    put_json(b, "{'required':['");
    buf_puts(b, m->key);
    put_json(b, "'],'properties':{'");
    buf_puts(b, m->key);
    put_json(b, "':{'not':{'type':'null'}}}}");
}

/* Writes the rule that the required member, or one that can replace it, must be present. If some
 * of these exclude each other, the rule asks for exactly one of them. */
static void put_stand_ins(struct buf *b, const struct member *m, unsigned form)
{
    bool rivals = false;
    const struct member *other;
    struct buf all;
    buf_init(&all, 1 << 16);
    for (size_t i = 0; (other = member_at(i)) != NULL; i++) {
        if ((other->forms & form) && stands_for(other, m)) {
            rivals = rivals || other->is_rival;
            buf_putc(&all, ',');
            put_presence(&all, other);
        }
    }
    put_json(b, rivals ? "{'oneOf':[" : "{'anyOf':[");
    put_presence(b, m);
    buf_put(b, all.data, all.n_bytes);
    buf_puts(b, "]}");
    buf_deinit(&all);
}

static void put_separator(struct buf *b, bool *any)
{
    put_json(b, *any ? "," : ",'allOf':[");
    *any = true;
}

void openapi_put_rules(struct buf *b, unsigned form)
{
    bool any = false;
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        if ((m->forms & form) && m->required && openapi_may_be_another(m, form)) {
            put_separator(b, &any);
            put_stand_ins(b, m, form);
        }
    }
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if ((rules[i].forms & form) && member_find(rules[i].key, form)) {
            put_separator(b, &any);
            put_json(b, rules[i].schema);
        }
    }
    buf_puts(b, text_if(any, "]"));
}
