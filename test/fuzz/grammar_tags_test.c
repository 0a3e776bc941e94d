// SPDX-License-Identifier: Apache-2.0
/* Broken and random structural tags: mixtures of the seeds below. */
#include "test/fuzz/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    grammar_fuzz(GRAMMAR_TAGS, data, size);
    return 0;
}

#ifndef LIBFUZZER
int main(void)
{
    static const char *const seeds[] = {
        "{\"type\":\"triggered_tags\",\"triggers\":[\"<s>\"],\"tags\":[{\"begin\":\"<s>f(\","
        "\"content\":"
        "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\",\"properties\":{\"a\":{"
        "\"type\":"
        "\"integer\"}}}},\"end\":\")</s>\"}],\"at_least_one\":true,\"stop_after_first\":false}",
        "{\"type\":\"structural_tag\",\"definitions\":{\"a\":{\"type\":\"or\",\"elements\":[{"
        "\"type\":"
        "\"const_string\",\"value\":\"x\"},{\"type\":\"sequence\",\"elements\":[{\"type\":"
        "\"defined\","
        "\"name\":\"a\"},{\"type\":\"regex\",\"pattern\":\"[0-9]{1,3}\"}]}]}},\"format\":{\"type\":"
        "\"star\",\"content\":{\"type\":\"defined\",\"name\":\"a\"}}}",
        "{\"type\":\"tag\",\"begin\":\"a\",\"content\":{\"type\":\"any_text\",\"excludes\":[\"12\"]"
        "},"
        "\"end\":[\"</s>\",\"}}\"]}",
        "{\"type\":\"json_schema\",\"style\":\"qwen_xml\",\"json_schema\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"array\",\"items\":{\"enum\":"
        "[1,"
        "\"x\"]}}},\"required\":[\"b\"],\"additionalProperties\":{\"type\":\"null\"}}}",
        "{\"type\":\"json_schema\",\"style\":\"minimax_m3\",\"only_object\":true,\"json_schema\":{"
        "\"properties\":{\"a\":{\"$ref\":\"#\"},\"b\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":"
        "\"null\"}]}}}}",
        "{\"type\":\"text_argument\",\"name\":\"input\",\"style\":\"gemma4\",\"content\":{\"type\":"
        "\"grammar\",\"grammar\":\"root ::= [a-c]+ root? \\\"\\\\n\\\"\"}}",
        "{\"type\":\"any_tokens\",\"exclude_tokens\":[279,\"<s>\"]}",
        "{\"type\":\"any_tokens\",\"\":[279,\"<s!\"]}",
        "{\"type\":\"any_tokens\",\"exclude_token\\u0000\":[279]}",
        "{\"type\":\"repeat\",\"min\":1,\"max\":3,\"content\":{\"type\":\"token\",\"token\":278}}",
        "{\"structures\":[{\"begin\":\"<\",\"schema\":{},\"end\":\">\"}],\"triggers\":[\"<\"]}",
        "{\"type\":\"dispatch\",\"rules\":[[\"a\",{\"type\":\"optional\",\"content\":{\"type\":"
        "\"any_text\",\"max_chars\":3,\"starts_not\":\"b+\"}}]],\"loop\":false,\"excludes\":[\"z\"]"
        "}",
    };
    return fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 3000);
}
#endif
