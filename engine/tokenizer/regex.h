// SPDX-License-Identifier: Apache-2.0
/* Private to the tokenizer: compiled patterns. Only files of engine/tokenizer/ may include it.
 * Thread: a compiled regex is shared; a scratch belongs to one call. */
#ifndef SLUICE_ENGINE_TOKENIZER_REGEX_H
#define SLUICE_ENGINE_TOKENIZER_REGEX_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/tokenizer/impl.h"
#include "engine/tokenizer/unicode.h"

#include <pcre2.h>

/* Finds the first match at or after `from` like regex_find, without a regex. */
typedef int splitter_fn(const char *s, size_t n, size_t from, size_t *start, size_t *end);

struct regex {
    pcre2_code *code;
    bool has_jit;
    splitter_fn *splitter; // NULL: use `code`
};

/* The hand-written splitter for a well-known pattern, or NULL. */
splitter_fn *splitter_of(const char *pattern);
const char *splitter_pattern(size_t i); // the i-th well-known pattern; NULL past the last

/* Appends the PCRE2 equivalent of an Oniguruma pattern (Ruby syntax, UTF-8), with the character
 * classes of `tokenizers`; compile it with UTF, UCP and MULTILINE. ERR_UNSUPPORTED if it cannot be
 * expressed. */
enum status pattern_translate(const char *pattern, struct buf *out, struct err *err);

/* These append members of a class, as written inside brackets. class_put_named takes the name in
 * \p{..} (lower case, without spaces, '_' and '-'), class_put_posix the name in [:..:]; both return
 * false if the name is unknown. */
void class_put_range(struct buf *b, uint32_t from, uint32_t to);
void class_put_flags(struct buf *b, uint32_t any, uint32_t all); // any of, all of unicode_bit
void class_put_word(struct buf *b, bool in_class);               // \w
void class_put_property(struct buf *b, const char *name, uint32_t bit);
bool class_put_named(struct buf *b, const char *name);
bool class_put_posix(struct buf *b, const char *name);
bool class_is_script(const char *name); // for names of scripts that PCRE2 knows

/* The PCRE2 versions of regex_compile and regex_find, for tests that compare them with the
 * splitters. */
enum status regex_compile_pcre(const char *pattern, struct regex **out, struct err *err);
int regex_find_pcre(const struct regex *re, struct scratch *sc, const char *s, size_t n,
                    size_t from, size_t *start, size_t *end);
void regex_scratch_free(struct scratch *sc);

#endif
