// SPDX-License-Identifier: Apache-2.0
/* The schemas of /openapi.json. The bodies of a model's requests are made from the table of request
 * members; other bodies are written out. */
#include "engine/base/optional.h"
#include "server/api/openapi_parts.h"

#include "server/call/members.h"
#include "server/jobs/batches.h"
#include "server/jobs/lines.h"

#include <stdio.h>

/* Bodies that are not requests to a model. */
#define METADATA                                                                                   \
    "{'type':['object','null'],'additionalProperties':{'type':'string','maxLength':512},"          \
    "'propertyNames':{'maxLength':64},'maxProperties':16}"
#define STORED_ITEMS                                                                               \
    "'maxItems':20,'items':{'type':'object','required':['role','content'],'properties':{'type':{"  \
    "'enum':['message',null]},'role':{'enum':['user','assistant','system','developer']},"          \
    "'content':{'type':['string','array']}}}}"
static const char other_bodies[] = // ends before the list of endpoints in BatchRequest
    ",'FileForm':{'type':'object','required':['file','purpose'],'properties':{'file':{'type':'"
    "string'},"
    "'purpose':{'type':'string','enum':['" BATCH_PURPOSE
    "']},'expires_after[anchor]':{'type':'string','enum':["
    "'created_at']},'expires_after[seconds]':{'type':'integer','minimum':3600,'maximum':2592000}},"
    "'dependentRequired':{'expires_after[anchor]':['expires_after[seconds]'],"
    "'expires_after[seconds]':['expires_after[anchor]']}},"
    "'MetadataRequest':{'type':'object','properties':{'metadata':" METADATA "}},"
    "'ItemsRequest':{'type':'object','required':['items'],'properties':{'items':{'type':'array'"
    "," STORED_ITEMS "}},'ConversationRequest':{'type':'object','properties':{'metadata':" METADATA
    ",'items':{'type':['array','null']," STORED_ITEMS "}},"
    "'BatchRequest':{'type':'object','required':['input_file_id','endpoint','completion_window'],"
    "'properties':{'input_file_id':{'type':'string'},'endpoint':{'type':'string','enum':[";
static const char batch_rest[] =
    "]},'completion_window':{'type':'string','enum':['" BATCH_WINDOW "']},'metadata':" METADATA
    ",'output_expires_after':{'type':["
    "'object','null'],'required':['anchor','seconds'],'properties':{'anchor':{'type':'string','"
    "enum':["
    "'created_at']},'seconds':{'type':'integer','minimum':3600,'maximum':2592000}}}}}";

static void put_other_bodies(struct buf *b)
{
    put_json(b, other_bodies);
    for (size_t i = 0; job_endpoint(i); i++) {
        buf_puts(b, text_if(i > 0, ","));
        put_text(b, job_endpoint(i));
    }
    put_json(b, batch_rest);
}

/* The bodies, with the forms whose members they may have. */
static const struct {
    const char *name;
    unsigned form;
} bodies[] = {
    {"ChatRequest", FORM_CHAT},
    {"ChatsRequest", FORM_CHAT_BATCH},
    {"LabelsRequest", FORM_LABELS},
    {"SystemoneRequest", FORM_SYSTEMONE},
    {"DecisionsRequest", FORM_DECISIONS},
    {"ClassifyTexts", FORM_CLASSIFY},
    {"PoolingTexts", FORM_POOLING},
    {"PooledMessages", FORM_POOL_CHAT},
    {"CohereEmbedRequest", FORM_COHERE_EMBED},
    {"CompletionRequest", FORM_COMPLETIONS},
    {"TokensRequest", FORM_TOKENS},
    {"ParseContext", FORM_CONTEXT},
    {"DerenderChatRequest", FORM_DERENDER_CHAT},
    {"DerenderRequest", FORM_DERENDER},
    {"MessagesRequest", FORM_MESSAGES},
    {"CountTokensRequest", FORM_COUNT_TOKENS},
    {"EmbeddingTexts", FORM_EMBEDDINGS},
    {"ResponseRequest", FORM_RESPONSES},
    {"ScoreRequest", FORM_SCORE},
    {"NativeRequest", FORM_NATIVE},
    {"InfillRequest", FORM_INFILL},
    {"NativeEmbedRequest", FORM_NATIVE_EMBED},
    {"OllamaChatRequest", FORM_OLLAMA_CHAT},
    {"OllamaGenerateRequest", FORM_OLLAMA_GENERATE},
    {"OllamaEmbedRequest", FORM_OLLAMA_EMBED},
    {"RerankRequest", FORM_RERANK},
    {"TokenizeText", FORM_TOKENIZE_TEXT},
    {"TokenizeMessages", FORM_TOKENIZE_CHAT},
    {"DetokenizeRequest", FORM_DETOKENIZE},
};

unsigned openapi_forms(void)
{
    unsigned forms = 0;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        forms |= bodies[i].form;
    }
    return forms;
}

/* Writes the words of "a|b|c" as items of an array, with or without quotes. */
static void put_words(struct buf *b, const char *words, bool quoted)
{
    const char *quote = text_if(quoted, "\"");
    while (*words) {
        size_t n = strcspn(words, "|");
        buf_puts(b, quote);
        buf_put(b, words, n);
        buf_puts(b, quote);
        words += n + (words[n] == '|');
        if (*words) {
            buf_puts(b, ",");
        }
    }
}

/* Writes the type. null counts as absent, so it is allowed unless the member is required. */
static void put_type(struct buf *b, const char *type, const struct member *m)
{
    put_json(b, m->required ? ",'type':'" : ",'type':['");
    buf_puts(b, type);
    put_json(b, m->required ? "'" : "','null']");
}

static void put_id(struct buf *b, const struct openapi_facts *facts)
{
    put_json(b, "{'type':'integer','minimum':0");
    if (facts->info) {
        put_bound(b, "maximum", facts->info->vocab - 1);
    }
    buf_putc(b, '}');
}

static void put_ids(struct buf *b, const struct openapi_facts *facts)
{
    put_json(b, "{'type':'array','minItems':1,'items':");
    put_id(b, facts);
    buf_putc(b, '}');
}

/* Writes the part of a pattern that matches n digits. */
static void put_any_digits(struct buf *b, int n)
{
    if (n > 0) {
        buf_printf(b, "[0-9]{%d}", n);
    }
}

/* Writes 'propertyNames' for an object whose keys are token ids: a pattern that matches the numbers
 * below `most`. */
static void put_id_names(struct buf *b, int64_t most)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)most);
    put_json(b, ",'propertyNames':{'pattern':'^(0");
    for (int k = 1; k < n; k++) { // numbers with fewer digits
        buf_puts(b, "|[1-9]");
        put_any_digits(b, k - 1);
    }
    for (int k = 0; k < n; k++) { // numbers with the same digits before this one, which is smaller
        int least = k == 0;
        if (digits[k] - '0' > least) {
            buf_printf(b, "|%.*s[%d-%c]", k, digits, least, digits[k] - 1);
            put_any_digits(b, n - 1 - k);
        }
    }
    put_json(b, ")$'}");
}

/* True if the model is known, but this server cannot tell its reasoning from its answers. */
static bool has_no_reasoning(const struct openapi_facts *facts)
{
    return facts->model && !call_model_limits_reasoning(facts->model);
}

/* A list with a maximum length; the schema of its items follows. */
static void put_list(struct buf *b, int64_t most)
{
    put_json(b, ",{'type':'array','minItems':1,'maxItems':");
    buf_put_int(b, most);
    put_json(b, ",'items':");
}

/* A list of texts and ids: one prompt if it has an id, otherwise one for each text. Or a list of
 * texts and of such lists. */
static void put_mixed(struct buf *b, int64_t most, const char *text,
                      const struct openapi_facts *facts)
{
    put_list(b, most);
    put_json(b, "{'anyOf':[");
    put_json(b, text);
    buf_putc(b, ',');
    put_id(b, facts);
    put_json(b, "]}}");
    put_list(b, most);
    put_json(b, "{'anyOf':[");
    put_json(b, text);
    put_json(b, ",{'type':'array','minItems':1,'items':{'anyOf':[{'type':'string'},");
    put_id(b, facts);
    put_json(b, "]}}]}}");
}

/* True if a text without characters is a valid prompt. */
static bool may_be_empty(const struct member *m, const struct openapi_facts *facts)
{
    size_t n_before = 0, n_after = 0;
    if (m->empty_if_added && facts->model && facts->model->tok) {
        tokenizer_n_around(facts->model->tok, &n_before, &n_after);
    }
    return m->may_be_empty || n_before + n_after > 0;
}

/* A prompt is text, ids, or a list of either. */
static void put_prompts(struct buf *b, const struct member *m, int64_t most,
                        const struct openapi_facts *facts)
{
    const char *text;
    if (may_be_empty(m, facts)) {
        text = "{'type':'string'}";
    } else {
        text = "{'type':'string','minLength':1}";
    }
    put_json(b, ",'anyOf':[");
    put_json(b, text);
    buf_putc(b, ',');
    put_ids(b, facts);
    if (m->mixes) {
        put_mixed(b, most, text, facts);
    } else {
        put_list(b, most);
        put_json(b, text);
        buf_putc(b, '}');
        put_list(b, most);
        put_ids(b, facts);
        buf_putc(b, '}');
    }
    put_json(b, m->required ? "]" : ",{'type':'null'}]");
}

/* Writes the bounds of a number. */
static void put_range(struct buf *b, const struct member *m)
{
    if (!m->schema) {
        put_key(b, "minimum");
        buf_put_double(b, m->low);
        put_key(b, "maximum");
        buf_put_double(b, m->high);
    }
}

/* The type, range and choices of a member. A nullable member may also be null. */
static void put_value(struct buf *b, const struct member *m, const struct openapi_facts *facts)
{
    static const char *const types[] = {
        [MEMBER_BOOL] = "boolean",  [MEMBER_INT] = "integer",   [MEMBER_REAL] = "number",
        [MEMBER_STRING] = "string", [MEMBER_OBJECT] = "object", [MEMBER_ARRAY] = "array",
    };
    int64_t least = member_min(m, facts->config), most = member_max(m, facts->config);
    switch (m->type) {
    case MEMBER_ANY: break;
    case MEMBER_BOOL:
    case MEMBER_STRING:
    case MEMBER_OBJECT:
    case MEMBER_ARRAY:
        put_type(b, types[m->type], m);
        if (m->has_ids && facts->info) {
            put_id_names(b, facts->info->vocab);
        }
        break;
    case MEMBER_INT:
        if (m->schema) {
            break;
        }
        if (m->limits_reasoning && has_no_reasoning(facts)) {
            put_json(b, ",'enum':[null,-1]");
            break;
        }
        if (m->may_be_false) {
            put_json(b, ",'anyOf':[{'enum':[false]},{'type':['integer','null']");
        } else {
            put_type(b, types[m->type], m);
        }
        if (m->is_dimension && facts->info) {
            least = most = facts->info->pooled_width;
        }
        if (m->is_within && facts->info) {
            most = facts->info->max_model_len;
        }
        put_bound(b, "minimum", least);
        put_bound(b, "maximum", most);
        buf_puts(b, text_if(m->may_be_false, "}]"));
        break;
    case MEMBER_REAL:
        put_type(b, types[m->type], m);
        put_range(b, m);
        break;
    case MEMBER_CHOICE:
        put_json(b, ",'enum':[null,");
        put_words(b, m->choices, true);
        buf_putc(b, ']');
        break;
    case MEMBER_STRINGS:
        put_json(b, ",'anyOf':[{'type':'null'},{'type':'string','minLength':1},"
                    "{'type':'array','maxItems':");
        buf_put_int(b, most);
        put_json(b, ",'items':{'type':'string','minLength':1}}]");
        break;
    case MEMBER_IDS:
        put_type(b, "array", m);
        put_json(b, m->may_be_empty ? ",'items':" : ",'minItems':1,'items':");
        put_id(b, facts);
        break;
    case MEMBER_PROMPTS: put_prompts(b, m, most, facts); break;
    }
    if (m->schema) {
        buf_putc(b, ',');
        put_json(b, m->schema);
    }
}

/* Refused members are listed with the values that are accepted because they request nothing. */
static void put_member(struct buf *b, const struct member *m, const struct openapi_facts *facts)
{
    static const char *const before[] = {
        [MEMBER_READ] = "",
        [MEMBER_IGNORED] = "Without effect: ",
        [MEMBER_REFUSED] = "Not supported: ",
    };
    put_text(b, m->key);
    put_json(b, ":{'description':'");
    buf_puts(b, before[m->use]);
    buf_puts(b, m->about); // contains nothing that JSON would escape
    buf_putc(b, '"');
    if (m->use == MEMBER_REFUSED) {
        put_json(b, *m->off ? ",'enum':[null," : ",'enum':[null");
        put_words(b, m->off, false);
        buf_putc(b, ']');
    } else {
        put_value(b, m, facts);
    }
    buf_putc(b, '}');
}

static void put_required(struct buf *b, unsigned form)
{
    bool first = true;
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        if ((m->forms & form) && m->required && !openapi_may_be_another(m, form)) {
            put_json(b, first ? ",'required':[" : ",");
            put_text(b, m->key);
            first = false;
        }
    }
    buf_puts(b, first ? "" : "]");
}

/* The schema of a body: every row of members[] that has its form. */
static void put_body(struct buf *b, unsigned form, const struct openapi_facts *facts)
{
    bool first = true;
    const struct member *m;
    put_json(b, "{'type':'object','properties':{");
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        if ((m->forms & form) && !m->unlisted) {
            if (!first) {
                buf_puts(b, ",");
            }
            put_member(b, m, facts);
            first = false;
        }
    }
    put_json(b, "},'additionalProperties':");
    if (facts->config->strict_parameters) {
        buf_puts(b, "false");
    } else {
        buf_puts(b, "true");
    }
    put_required(b, form);
    openapi_put_rules(b, form);
    buf_putc(b, '}');
}

void openapi_put_components(struct buf *b, const struct openapi_facts *facts)
{
    put_json(b, "'securitySchemes':{'bearer':{'type':'http','scheme':'bearer'},"
                "'header':{'type':'apiKey','in':'header','name':'x-api-key'}},"
                "'schemas':{'Error':{'type':'object','required':['error'],'properties':{'error':{"
                "'type':'object','required':['message','type','param','code'],'properties':{"
                "'message':{'type':'string'},'type':{'type':'string'},"
                "'param':{'type':['string','null']},'code':{'type':['string','null']}}}}},"
                "'TypedError':{'type':'object','required':['type','error'],'properties':{"
                "'type':{'const':'error'},'error':{'type':'object','required':['type','message'],"
                "'properties':{'type':{'type':'string'},'message':{'type':'string'},"
                "'details':{'type':'object'}}},"
                "'request_id':{'type':['string','null']}}},"
                "'PlainError':{'type':'object','required':['error'],'properties':{'error':{"
                "'type':'string'}}},"
                "'MessageError':{'type':'object','required':['message'],'properties':{'message':{"
                "'type':'string'},'id':{'type':['string','null']}}},"
                "'CohereChatRequest':{'type':'object','required':['messages'],'properties':{"
                "'model':{'type':['string','null']},'messages':{'type':'array','minItems':1,"
                "'items':{'type':'object','required':['role','content'],'properties':{'role':{"
                "'enum':['system','user','assistant']},'content':{'type':'string'}}}},"
                "'stream':{'type':['boolean','null']},'max_tokens':{'type':['integer','null'],"
                "'minimum':1,'maximum':64},'temperature':{'type':['number','null'],'minimum':0,"
                "'maximum':1},'p':{'type':['number','null'],'minimum':0.01,'maximum':0.99},'k':{"
                "'type':['integer','null'],'minimum':0,'maximum':500},'seed':{'type':['integer',"
                "'null'],'minimum':0,'maximum':1000000},'logprobs':{'type':['boolean','null']}}},"
                "'RenderedResponse':{'allOf':[{'$ref':'#/components/schemas/ResponseRequest'},{"
                "'type':'object','properties':{'previous_response_id':{'type':'null'},"
                "'conversation':{'type':'null'}}}]},"
                "'CompactRequest':{'allOf':[{'$ref':'#/components/schemas/ResponseRequest'},{"
                "'type':'object','properties':{'stream':{'enum':[false,null]},'background':{"
                "'enum':[false,null]}}}]},"
                "'LoadAdapterRequest':{'type':'object','required':['lora_name','lora_path'],"
                "'properties':{'lora_name':{'type':'string','minLength':1},'lora_path':{'type':"
                "'string','minLength':1},'load_inplace':{'type':['boolean','null']}}},"
                "'UnloadAdapterRequest':{'type':'object','required':['lora_name'],'properties':{"
                "'lora_name':{'type':'string','minLength':1}}},"
                "'OllamaShowRequest':{'type':'object','required':['model'],'properties':{'model':{"
                "'type':'string'}}},"
                "'OllamaOldEmbedRequest':{'type':'object','required':['prompt'],'properties':{"
                "'model':{'type':['string','null']},'prompt':{'type':'string','minLength':1}}},"
                "'PredictRequest':{'type':'object','required':['instances'],'properties':{"
                "'instances':{'type':'array','items':{"
                "'$ref':'#/components/schemas/AnyRequest'}}}},"
                "'AnyRequest':{'anyOf':[{'$ref':'#/components/schemas/ChatRequest'},"
                "{'$ref':'#/components/schemas/CompletionRequest'},"
                "{'$ref':'#/components/schemas/EmbeddingRequest'},"
                "{'$ref':'#/components/schemas/RerankRequest'},"
                "{'$ref':'#/components/schemas/ScoreRequest'}]},"
                "'EitherCompletion':{'anyOf':[{'allOf':[{"
                "'$ref':'#/components/schemas/CompletionRequest'},{'required':['model'],"
                "'properties':{'model':{'type':'string'}}}]},{'allOf':[{"
                "'$ref':'#/components/schemas/NativeRequest'},{'properties':{'model':{"
                "'type':'null'}}}]}]},"
                "'EmbeddingRequest':{'anyOf':[{'$ref':'#/components/schemas/EmbeddingTexts'},"
                "{'$ref':'#/components/schemas/PooledMessages'}]},"
                "'ClassifyRequest':{'anyOf':[{'$ref':'#/components/schemas/ClassifyTexts'},"
                "{'$ref':'#/components/schemas/PooledMessages'}]},"
                "'PoolingRequest':{'anyOf':[{'$ref':'#/components/schemas/PoolingTexts'},"
                "{'$ref':'#/components/schemas/PooledMessages'}]},"
                "'TokenizeRequest':{'anyOf':[{'$ref':'#/components/schemas/TokenizeText'},"
                "{'$ref':'#/components/schemas/TokenizeMessages'}]}");
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        put_key(b, bodies[i].name);
        put_body(b, bodies[i].form, facts);
    }
    put_other_bodies(b);
    put_key(b, "TokenId");
    put_id(b, facts);
    buf_putc(b, '}');
}
