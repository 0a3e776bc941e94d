// SPDX-License-Identifier: Apache-2.0
/* Broken and random Lark grammars: mixtures of the seeds below. */
#include "test/fuzz/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    grammar_fuzz(GRAMMAR_LARK, data, size);
    return 0;
}

#ifndef LIBFUZZER
int main(void)
{
    static const char *const seeds[] = {
        "%import common (INT, CNAME)\n%ignore \" \"\nstart: e\n?e: e \"+\" e | \"(\" e \")\" | INT "
        "-> n\n | CNAME\n",
        "start: p::0\np::_ : \"!\" %if is_ones([0:2])\n | \"a\" p::set_bit(0) %if "
        "and(bit_clear(0), lt([0:2], 3))\n"
        " | \"b\" p::incr([1:3])",
        "start: \"x\"i [A] B{2,3} (A|B)~1..2\nA: /[a-c]+/i\nB: \"0\"..\"9\" // c\n",
        "start: a\na: b \"c\" | \"d\"\nb: a | \"\" # left\n",
    };
    return fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 3000);
}
#endif
