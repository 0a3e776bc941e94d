// SPDX-License-Identifier: Apache-2.0
/* Regular expressions over names of modules, in configs of quantised checkpoints. */
#include "engine/tokenizer/name_pattern.h"

#include "engine/base/mem.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

enum { MATCH_LIMIT = 1000 * 1000 }; // chosen: names are short

struct name_pattern {
    pcre2_code *code;
};

enum status name_pattern_compile(const char *pattern, struct name_pattern **out, struct err *err)
{
    int error;
    PCRE2_SIZE at;
    *out = NULL;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED,
                                     &error, &at, NULL);
    if (!code) {
        PCRE2_UCHAR text[200];
        pcre2_get_error_message(error, text, sizeof text);
        return err_set(err, ERR_FORMAT, "the pattern \"%.200s\" does not compile: %s", pattern,
                       (const char *)text);
    }
    *out = xcalloc(1, sizeof **out);
    (*out)->code = code;
    return OK;
}

void name_pattern_free(struct name_pattern *p)
{
    if (p) {
        pcre2_code_free(p->code);
        free(p);
    }
}

/* Backtracking is limited, because the pattern comes from a file. */
bool name_pattern_matches(const struct name_pattern *p, const char *name)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    int n = PCRE2_ERROR_NOMEMORY;
    if (data && context) {
        pcre2_set_match_limit(context, MATCH_LIMIT);
        n = pcre2_match(p->code, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, context);
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return n >= 0;
}
