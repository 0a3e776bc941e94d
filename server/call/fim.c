// SPDX-License-Identifier: Apache-2.0
/* The tokens of fill-in-the-middle prompts, which every family names differently. */
#include "server/call/fim.h"

#include <string.h>

/* The spellings of the tokens by family. */
static const struct form {
    const char *prefix, *suffix, *middle; // `middle` is NULL if the prefix comes last
} forms[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, // Qwen Coder, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},       // SantaCoder, Refact
    {"<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>",
     "<\uff5cfim\u2581end\uff5c>"},                            // DeepSeek
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"}, // GLM
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"},             // Code Llama
    {"[PREFIX]", "[SUFFIX]", NULL},                            // Codestral
};

static int32_t find(const struct tokenizer *tok, const char *text)
{
    if (text) {
        return tokenizer_find(tok, text, strlen(text));
    }
    return -1;
}

static int32_t find_any(const struct tokenizer *tok, const char *const *texts, size_t n)
{
    int32_t id = -1;
    for (size_t i = 0; i < n && id < 0; i++) {
        id = find(tok, texts[i]);
    }
    return id;
}

/* A model supports fill-in-the-middle if its tokenizer has a prefix, a suffix and a middle token;
 * the tokens for files and repositories are optional. */
void fim_open(struct fim *f, const struct tokenizer *tok)
{
    static const char *const repositories[] = {"<|repo_name|>", "<repo_name>", "<reponame>"};
    static const char *const files[] = {"<|file_sep|>", "<file_sep>", "<file_separator>"};
    static const char *const ends[] = {"<|fim_pad|>",   "<fim_pad>",          "<|file_sep|>",
                                       "<|repo_name|>", "<|file_separator|>", "\u2581<EOT>"};
    *f = (struct fim){.middle = -1, .repository = -1, .file = -1};
    for (size_t i = 0; tok && !f->there && i < sizeof forms / sizeof forms[0]; i++) {
        f->prefix = find(tok, forms[i].prefix);
        f->suffix = find(tok, forms[i].suffix);
        f->middle = find(tok, forms[i].middle);
        f->suffix_first = !forms[i].middle;
        f->there = f->prefix >= 0 && f->suffix >= 0 && (f->middle >= 0 || f->suffix_first);
    }
    if (!f->there) {
        return;
    }
    f->repository = find_any(tok, repositories, sizeof repositories / sizeof repositories[0]);
    f->file = find_any(tok, files, sizeof files / sizeof files[0]);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0] && f->n_ends < FIM_MAX_ENDS; i++) {
        int32_t id = find(tok, ends[i]);
        f->ends[f->n_ends] = id;
        f->n_ends += id >= 0;
    }
}
