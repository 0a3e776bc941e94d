// SPDX-License-Identifier: Apache-2.0
/* Constraints on the answer, in the notation of each API. */
#include "test/server/call/request_bed.h"

/* Each notation of a constraint, and the grammar that results. */
TEST(constraints_of_all_apis)
{
    static const struct {
        const char *member, *param, *text;
        enum grammar_kind kind;
    } rows[] = {
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format",
         "{\"type\":\"object\"}", GRAMMAR_SCHEMA},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\" "
         ": "
         "{\"multipleOf\":0.10}}}",
         "response_format", "{\"multipleOf\":0.10}", GRAMMAR_SCHEMA},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"null\"}}",
         "response_format", "{\"type\":\"null\"}", GRAMMAR_SCHEMA},
        {"\"structured_outputs\":{\"json\":{\"const\":1}}", "structured_outputs", "{\"const\":1}",
         GRAMMAR_SCHEMA},
        {"\"structured_outputs\":{\"json\":\"{}\"}", "structured_outputs", "{}", GRAMMAR_SCHEMA},
        {"\"structured_outputs\":{\"choice\":[\"a.b\",\"(c|\"]}", "structured_outputs",
         "(a\\.b|\\(c\\|)", GRAMMAR_REGEX},
        {"\"structured_outputs\":{\"grammar\":\"root ::= \\\"a\\\"\"}", "structured_outputs",
         "root ::= \"a\"", GRAMMAR_GBNF},
        {"\"structured_outputs\":{\"grammar\":\"start: \\\"a\\\"\"}", "structured_outputs",
         "start: \"a\"", GRAMMAR_LARK},
        {"\"structured_outputs\":{\"json_object\":true}", "structured_outputs",
         "{\"type\":\"object\"}", GRAMMAR_SCHEMA},
        {"\"guided_json\":{\"const\":2}", "guided_json", "{\"const\":2}", GRAMMAR_SCHEMA},
        {"\"guided_regex\":\"a+\"", "guided_regex", "a+", GRAMMAR_REGEX},
        {"\"guided_choice\":[\"x\"]", "guided_choice", "(x)", GRAMMAR_REGEX},
        {"\"guided_grammar\":\"start: \\\"a\\\"\"", "guided_grammar", "start: \"a\"", GRAMMAR_LARK},
        {"\"grammar\":\"root ::= \\\"a\\\"\"", "grammar", "root ::= \"a\"", GRAMMAR_GBNF},
        {"\"ebnf\":\"root ::= \\\"a\\\"\"", "ebnf", "root ::= \"a\"", GRAMMAR_GBNF},
        {"\"json_schema\":{\"const\":3}", "json_schema", "{\"const\":3}", GRAMMAR_SCHEMA},
        {"\"regex\":\"b\"", "regex", "b", GRAMMAR_REGEX},
        {"\"format\":\"json\"", "format", "{\"type\":\"object\"}", GRAMMAR_SCHEMA},
        {"\"format\":{\"const\":4}", "format", "{\"const\":4}", GRAMMAR_SCHEMA},
        {"\"structural_tag\":{\"type\":\"any_text\"}", "structural_tag", "{\"type\":\"any_text\"}",
         GRAMMAR_TAGS},
        {"\"response_format\":{\"type\":\"structural_tag\",\"format\":{\"type\":\"any_text\"}}",
         "response_format", "{\"type\":\"structural_tag\",\"format\":{\"type\":\"any_text\"}}",
         GRAMMAR_TAGS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char body[512];
        snprintf(body, sizeof body, "{" HI ",%s}", rows[i].member);
        ACCEPTS(KIND_CHAT, body);
        CHECK_STR(r.constraint_param, rows[i].param);
        CHECK_EQ(r.constraint.kind, rows[i].kind);
        CHECK_EQ(r.constraint.n_bytes, strlen(rows[i].text));
        CHECK(memcmp(r.constraint.text, rows[i].text, r.constraint.n_bytes) == 0);
        CHECK(r.grammar != NULL);
        char *again;
        struct request twin = prepared(KIND_CHAT, body, &again);
        CHECK(twin.grammar == r.grammar); // compiled once
        request_deinit(&twin);
        free(again);
        DONE();
    }
    ACCEPTS(KIND_CHAT,
            "{" HI ",\"response_format\":{\"type\":\"text\"},\"structured_outputs\":{}}");
    CHECK(r.grammar == NULL);
    DONE();
}

/* Two constraints at once have no defined meaning; each error names the member of the API in use,
 * or the kind of source that does not compile. */
TEST(constraints_that_are_refused)
{
    REFUSES(KIND_CHAT, "{" HI ",\"guided_regex\":\"a\",\"guided_choice\":[\"b\"]}", "invalid_value",
            "guided_choice");
    REFUSES(KIND_CHAT, "{" HI ",\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"b\"]}}",
            "invalid_value", "structured_outputs");
    REFUSES(KIND_CHAT, "{" HI ",\"guided_choice\":[]}", "empty_array", "guided_choice");
    REFUSES(KIND_CHAT, "{" HI ",\"guided_choice\":[\"a\",1]}", "invalid_type", "guided_choice");
    REFUSES(KIND_CHAT, "{" HI ",\"guided_json\":[]}", "invalid_schema", "guided_json");
    REFUSES(KIND_CHAT, "{" HI ",\"guided_json\":\"{\"}", "invalid_schema", "guided_json");
    REFUSES(KIND_CHAT, "{" HI ",\"regex\":\"(\"}", "invalid_regex", "regex");
    REFUSES(KIND_CHAT, "{" HI ",\"regex\":\"(?=a)\"}", "invalid_regex", "regex");
    REFUSES(KIND_CHAT, "{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":5}}",
            "invalid_type", "response_format.json_schema");
    REFUSES(KIND_CHAT, "{" HI ",\"response_format\":{\"type\":\"json_schema\"}}",
            "missing_required_parameter", "response_format.json_schema.schema");
    REFUSES(KIND_CHAT,
            "{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
            "\"schema\":{\"$ref\":\"#/$defs/a\"}}}}",
            "invalid_schema", "response_format");
    REFUSES(KIND_CHAT, "{" HI ",\"format\":\"yaml\"}", "invalid_value", "format");
    REFUSES(KIND_CHAT, "{" HI ",\"structured_outputs\":{\"json_object\":false}}", "invalid_value",
            "structured_outputs");
}

int main(int argc, char **argv)
{
    return request_main(argc, argv);
}
