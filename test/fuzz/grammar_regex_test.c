// SPDX-License-Identifier: Apache-2.0
/* Broken and random regular expressions: mixtures of the seeds below. */
#include "test/fuzz/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    grammar_fuzz(GRAMMAR_REGEX, data, size);
    return 0;
}

#ifndef LIBFUZZER
int main(void)
{
    static const char *const seeds[] = {
        "(a|b)*abb",          "^[^\\d\\s]{2,4}$|x+?", "\\p{L}[\\u4e00-\\u9fff]?",
        "(?i:Ab)(?s).",       "a{0,1000000}b",        "(a*)*(b?){3}c",
        "^a$|^(b|^c)d",       "((a{1,9}){1,9}){1,9}", "[[:alpha:]_-]+\\x41\\u{1F600}",
        "(?<n>a)(?=b)\\1\\b",
    };
    return fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 3000);
}
#endif
