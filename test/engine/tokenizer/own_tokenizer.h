// SPDX-License-Identifier: Apache-2.0
/* Loads a tokenizer of test/tokenizers by its name; on failure reports a failed check and returns
 * NULL. */
#ifndef SLUICE_TEST_ENGINE_TOKENIZER_OWN_TOKENIZER_H
#define SLUICE_TEST_ENGINE_TOKENIZER_OWN_TOKENIZER_H

#include "engine/tokenizer/tokenizer.h"

#include "test/check.h"

static inline struct tokenizer *load(const char *name)
{
    struct tokenizer *tok = NULL;
    struct err err = {0};
    char path[256];
    snprintf(path, sizeof path, "test/tokenizers/%s.json", name);
    if (tokenizer_load(path, &tok, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    return tok;
}

#endif
