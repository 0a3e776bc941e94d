// SPDX-License-Identifier: Apache-2.0
/* How a model scores pairs: the two tokens with which it answers. */
#include "server/call/scoring.h"

#include "engine/base/json.h"
#include "engine/base/log.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The format on which Qwen3-Reranker was trained. */
static const char qwen_pair[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the "
    "Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n<Instruct>: {{ instruction or 'Given a web search query, retrieve relevant "
    "passages that answer the query' }}\n"
    "<Query>: {{ messages[0].content }}\n<Document>: {{ messages[1].content }}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n{{ '' }}"; // templates drop a final line end

/* Templates for pairs look for a message with the role query. */
static bool is_for_pairs(const char *text)
{
    return strstr(text, "\"eq\", \"query\"") || strstr(text, "'eq', 'query'") ||
           strstr(text, "== \"query\"") || strstr(text, "== 'query'");
}

/* An answer must be a single token. */
static enum status answer_id(const struct tokenizer *tok, const char *text, int32_t *id,
                             struct err *err)
{
    struct ids ids;
    ids_init(&ids, 16);
    struct text_span span = {text, strlen(text), false};
    struct tokenizer_flags flags = {.add_special = false, .parse_special = true};
    enum status st = tokenizer_encode(tok, &span, 1, flags, &ids, NULL);
    bool one = st == OK && ids.n == 1;
    *id = one ? ids.v[0] : -1;
    ids_deinit(&ids);
    if (!one) {
        return err_set(err, ERR_INVALID, "'%.40s' is not one token of this model", text);
    }
    return OK;
}

/* vLLM's configuration: "classifier_from_token": ["no", "yes"] in the overrides, or in
 * config.json. */
static enum status read_answers(const struct config *config, const char *words[2], char room[2][64],
                                struct err *err)
{
    const char *text = config->engine.hf_overrides;
    struct json *root = NULL;
    if (!text || json_parse(text, strlen(text), NULL, &root, NULL) != OK) {
        return OK;
    }
    const struct json *list = json_get(root, "classifier_from_token");
    const struct json *no = json_first(list), *yes = no ? json_next(no) : NULL;
    enum status st = OK;
    if (list && (json_count(list) != 2 || !json_string(no) || !json_string(yes))) {
        st = err_set(err, ERR_UNSUPPORTED,
                     "hf-overrides: classifier_from_token should be two tokens, "
                     "such as [\"no\", \"yes\"]");
    } else if (list) {
        snprintf(room[0], 64, "%s", json_string(yes));
        snprintf(room[1], 64, "%s", json_string(no));
        words[0] = room[0];
        words[1] = room[1];
    }
    json_free(root);
    return st;
}

static bool is_named_reranker(const struct config *config)
{
    const char *name = config->engine.model, *last = strrchr(name, '/');
    return strcasestr(last ? last + 1 : name, "reranker") != NULL;
}

/* A reranker is recognised by its name; other models score pairs by their answer only if they are
 * configured to. */
enum status scoring_open(struct scoring *s, const struct config *config,
                         const struct tokenizer *tok, const struct chat_template *template,
                         const struct engine_info *info, struct err *err)
{
    char room[2][64];
    const char *words[2] = {NULL, NULL}, *wish = config->scoring;
    const bool headless = info->headless;
    *s = (struct scoring){0};
    TRY(labels_open(config->engine.model, info->n_labels, &s->labels, err));
    TRY(read_answers(config, words, room, err));
    bool asked = strcmp(wish, "yes-no") == 0 || words[0];
    if (strcmp(wish, "embeddings") == 0 || headless || !tok ||
        !(asked || is_named_reranker(config))) {
        if (asked && (headless || !tok)) {
            return err_set(err, ERR_INVALID, "scoring: yes-no needs a head and a tokenizer");
        }
        return OK;
    }
    if (!words[0]) {
        words[0] = "yes";
    }
    if (!words[1]) {
        words[1] = "no";
    }
    for (int i = 0; i < 2; i++) {
        enum status st = answer_id(tok, words[i], &s->answers[i], err);
        if (st != OK) {
            if (asked) {
                return err_prefix(err, st, "scoring");
            }
            return OK;
        }
    }
    const char *own = template ? chat_template_text(template) : "";
    const char *text = is_for_pairs(own) ? own : qwen_pair;
    TRY(chat_template_compile(text, strlen(text), config->engine.model, &s->pair, err));
    s->judges = true;
    log_info("pairs are scored by the tokens '%s' and '%s', formatted %s", words[0], words[1],
             text == own ? "by the chat template" : "as Qwen3-Reranker's");
    return OK;
}

void scoring_close(struct scoring *s)
{
    chat_template_free(s->pair);
    labels_close(&s->labels);
    *s = (struct scoring){0};
}
