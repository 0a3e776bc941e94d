// SPDX-License-Identifier: Apache-2.0
/* Broken and random JSON schemas: mixtures of the seeds below. */
#include "test/fuzz/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    grammar_fuzz(GRAMMAR_SCHEMA, data, size);
    return 0;
}

#ifndef LIBFUZZER
int main(void)
{
    static const char *const seeds[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3,"
        "\"exclusiveMaximum\":250},"
        "\"b\":{\"type\":\"string\",\"maxLength\":4,\"pattern\":\"^[a-c]+b\"}},\"required\":[\"b\","
        "\"c\"],"
        "\"additionalProperties\":{\"type\":[\"null\",\"boolean\"]},\"minProperties\":1}",
        "{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
        "t\"},\"maxItems\":3},"
        "{\"const\":{\"x\":[1,null]}}]}},\"allOf\":[{\"$ref\":\"#/$defs/"
        "t\"},{\"type\":[\"array\",\"object\"]}]}",
        "{\"oneOf\":[{\"type\":\"number\",\"multipleOf\":0.5,\"maximum\":9.25},{\"enum\":[\"a\","
        "\"ab\",\"\\u00e9\"]}]}",
        "{\"if\":{\"properties\":{\"k\":{\"const\":1}}},\"then\":{\"required\":[\"v\"]},"
        "\"properties\":{\"k\":{},\"v\":{}},"
        "\"dependentRequired\":{\"v\":[\"k\"]},\"type\":\"object\",\"not\":{\"required\":[\"w\"]}}",
        "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"format\":\"date-time\"},\"y$\":{"
        "\"not\":{\"type\":\"null\"}}},"
        "\"propertyNames\":{\"maxLength\":3},\"maxProperties\":2,\"unevaluatedProperties\":false}",
        "{\"type\":\"array\",\"prefixItems\":[true,{\"type\":\"null\"}],\"items\":{\"enum\":[1,2,3]"
        "},\"minItems\":2,"
        "\"contains\":{\"const\":2},\"uniqueItems\":true}",
        "{\"$schema\":\"http://json-schema.org/draft-07/"
        "schema#\",\"definitions\":{\"a\":{\"$id\":\"#x\"}},\"$ref\":\"#x\"}",
        "{}",
        "true",
    };
    return fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 3000);
}
#endif
