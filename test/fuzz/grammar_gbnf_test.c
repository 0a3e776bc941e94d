// SPDX-License-Identifier: Apache-2.0
/* Broken and random GBNF grammars: mixtures of the seeds below. */
#include "test/fuzz/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    grammar_fuzz(GRAMMAR_GBNF, data, size);
    return 0;
}

#ifndef LIBFUZZER
int main(void)
{
    static const char *const seeds[] = {
        "root ::= expr (\",\" expr)*\nexpr ::= expr \"+\" t | t\nt ::= [0-9]+ | \"(\" root \")\"",
        "root ::= s\ns ::= s s s | s s | \"a\" | \"\"",
        "root ::= n root \"a\" | \"b\" # c\nn ::= \"x\"?\n",
        "root ::= ([^\"\\\\\\x00-\\x1f] | \"\\\\\" .){2,5} \"\\u00e9\"",
        "root ::= \"{\" ws (s \":\" root)? \"}\" ws\ns ::= \"\\\"\" [a-z]* \"\\\"\"\nws ::= | \" "
        "\" ws",
    };
    return fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 3000);
}
#endif
