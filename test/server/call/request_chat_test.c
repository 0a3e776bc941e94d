// SPDX-License-Identifier: Apache-2.0
/* Conversations: messages, tools, and the template that makes a prompt of them. */
#include "test/server/call/request_bed.h"

/* Each refusal names the member by its path, down to the index in an array, as OpenAI's
 * errors do. The error code shows that the reason is the right one. */
TEST(messages_and_tools_are_checked)
{
    REFUSES(KIND_CHAT, "{}", "missing_required_parameter", "messages");
    REFUSES(KIND_CHAT, "{\"messages\":[]}", "empty_array", "messages");
    REFUSES(KIND_CHAT, "{\"messages\":[5]}", "invalid_type", "messages[0]");
    REFUSES(KIND_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "missing_required_parameter",
            "messages[0].role");
    REFUSES(KIND_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "missing_required_parameter",
            "messages[0].content");
    REFUSES(KIND_CHAT, "{\"messages\":[{\"role\":\"boss\",\"content\":\"x\"}]}", "invalid_value",
            "messages[0].role");
    REFUSES(KIND_CHAT, "{\"messages\":[{\"role\":\"\",\"content\":\"x\"}]}", "invalid_value",
            "messages[0].role");
    REFUSES(KIND_CHAT, "{\"messages\":[{\"role\":\"a b\",\"content\":\"x\"}]}", "invalid_value",
            "messages[0].role");
    REFUSES(KIND_CHAT, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}",
            "missing_required_parameter", "messages[0].tool_call_id");
#define PARTS(parts) "{\"messages\":[{\"role\":\"user\",\"content\":[" parts "]}]}"
    REFUSES(KIND_CHAT, PARTS("{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\"}"),
            "missing_required_parameter", "messages[0].content[1].text");
    REFUSES(KIND_CHAT, PARTS("{\"type\":\"text\",\"text\":5}"), "invalid_type",
            "messages[0].content[0].text");
    REFUSES(KIND_CHAT, PARTS("{}"), "missing_required_parameter", "messages[0].content[0].type");
    REFUSES(KIND_CHAT, PARTS("\"hi\""), "invalid_type", "messages[0].content[0]");
#define CALLS(calls) "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[" calls "]}]}"
    REFUSES(KIND_CHAT, CALLS("{\"function\":{\"name\":\"f\",\"arguments\":\"\"}},{}"),
            "missing_required_parameter", "messages[0].tool_calls[1].function.name");
    REFUSES(KIND_CHAT, CALLS("{\"function\":{\"name\":5}}"), "invalid_type",
            "messages[0].tool_calls[0].function.name");
    REFUSES(KIND_CHAT, CALLS("{\"function\":{\"name\":\"f\",\"arguments\":[]}}"), "invalid_type",
            "messages[0].tool_calls[0].function.arguments");
    REFUSES(KIND_CHAT, CALLS("5"), "invalid_type", "messages[0].tool_calls[0]");
    REFUSES(KIND_CHAT,
            "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[],\"function_call\":{"
            "\"name\":\"f\",\"arguments\":{}}}]}",
            "invalid_value", "messages[0].function_call");
    REFUSES(KIND_RESPONSES, "{\"input\":[{\"role\":\"user\"}]}", "missing_required_parameter",
            "input[0].content");
    REFUSES(KIND_RESPONSES, "{\"input\":[{\"type\":{},\"role\":\"user\",\"content\":\"a\"}]}",
            "invalid_type", "input[0].type");
    REFUSES(KIND_RESPONSES, "{\"input\":\"a\",\"n\":2}", "integer_above_max_value", "n");
    REFUSES(KIND_RESPONSES,
            "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]}",
            "missing_required_parameter", "input[0].content[0].text");
    REFUSES(KIND_CHAT, "{" HI ",\"tools\":[]}", "empty_array", "tools");
    REFUSES(KIND_TOKENIZE,
            "{" HI ",\"tools\":[],\"functions\":[{\"name\":\"f\",\"parameters\":[]}]}",
            "invalid_type", "functions[0].parameters");
    REFUSES(KIND_OLLAMA_CHAT,
            "{" HI ",\"tools\":[],\"functions\":[{\"name\":\"f\",\"parameters\":[]}]}",
            "invalid_type", "functions[0].parameters");
    REFUSES(KIND_CHAT, "{" HI ",\"tools\":[{\"type\":\"custom\"}]}", "missing_required_parameter",
            "tools[0].custom");
    REFUSES(KIND_CHAT, "{" HI ",\"tools\":[{\"type\":\"web_search\"}]}", "unsupported_value",
            "tools[0].type");
    REFUSES(KIND_CHAT, "{" HI ",\"tools\":[{\"type\":{},\"function\":{\"name\":\"f\"}}]}",
            "invalid_type", "tools[0].type");
    REFUSES(KIND_CHAT, "{" HI ",\"tools\":[{\"function\":{}}]}", "missing_required_parameter",
            "tools[0].function.name");
    REFUSES(KIND_CHAT, "{" HI ",\"tool_choice\":\"auto\"}", "invalid_value", "tool_choice");
    REFUSES(KIND_CHAT, "{" HI TOOL ",\"tool_choice\":\"always\"}", "invalid_value", "tool_choice");
    REFUSES(KIND_CHAT, "{" HI TOOL ",\"tool_choice\":{\"type\":\"allowed_tools\"}}",
            "invalid_value", "tool_choice");
    REFUSES(KIND_CHAT,
            "{" HI TOOL ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
            "\"g\"}}}",
            "invalid_value", "tool_choice");
    REFUSES(KIND_CHAT, "{" HI TOOL ",\"tool_choice\":{\"type\":\"mcp\"}}", "unsupported_value",
            "tool_choice");
}

/* Input items of the Responses API become messages of a chat, which is the only form that
 * templates know: reasoning and calls of one turn join one assistant message. */
TEST(responses_become_messages)
{
    {
        ACCEPTS(KIND_RESPONSES, "{\"instructions\":\"be \\\"x\\\"\",\"input\":\"hi\"}");
        CHECK_STR(r.messages, "[{\"role\":\"system\",\"content\":\"be \\\"x\\\"\"},"
                              "{\"role\":\"user\",\"content\":\"hi\"}]");
        DONE();
    }
    {
        ACCEPTS(KIND_RESPONSES,
                "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
                "\"q\"}]},{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\","
                "\"text\":\"hm\"}]},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\","
                "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\","
                "\"output\":\"ok\"}]}");
        CHECK_STR(r.messages,
                  "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},"
                  "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\","
                  "\"tool_calls\":[{\"type\":\"function\",\"id\":\"c1\",\"function\":{\"name\":"
                  "\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\","
                  "\"content\":\"ok\"}]");
        DONE();
    }
    REFUSES(KIND_RESPONSES, "{}", "missing_required_parameter", "input");
    REFUSES(KIND_RESPONSES, "{\"input\":[{\"type\":\"computer_call\",\"id\":\"x\"}]}",
            "unsupported_value", "input[0].type");
    REFUSES(KIND_RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}",
            "missing_required_parameter", "text.format.schema");
}

/* Variables from the body, in the order in which later ones win: the server's for
 * thinking, documents, then chat_template_kwargs. The text is kept as written, since it
 * goes to the template, not to us. */
TEST(template_variables_are_joined)
{
    ACCEPTS(KIND_CHAT,
            "{" HI ",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{ \"a\": 1 },"
            "\"documents\":[]}");
    CHECK_STR(r.kwargs, "{\"reasoning_effort\":\"none\",\"enable_thinking\":false,"
                        "\"documents\":[],\"a\": 1 }");
    DONE();
}

/* Messages in turns of blocks become the messages of a chat. */
TEST(turns_of_blocks_are_a_chat)
{
    {
        ACCEPTS(KIND_MESSAGES,
                "{\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-"
                "header: 1\\nA\"},"
                "{\"type\":\"text\",\"text\":\"B\"}],\"messages\":["
                "{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":["
                "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},"
                "{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{\"a\":1}}]},"
                "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\","
                "\"content\":\"r\"}]}]}");
        CHECK_STR(
            r.messages,
            "[{\"role\":\"system\",\"content\":\"A\\nB\"},{\"role\":\"user\",\"content\":\"one\"},"
            "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\",\"tool_calls\":["
            "{\"type\":"
            "\"function\",\"id\":\"t\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},"
            "{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"t\"}]");
        CHECK_EQ(r.n_stripped_lines, 1);
        CHECK_EQ(r.prompts[0].max_tokens, 5);
        CHECK(r.add_generation_prompt && !r.continue_final_message);
        DONE();
    }
    {
        ACCEPTS(KIND_MESSAGES,
                "{\"max_tokens\":100000,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                "{\"role\":\"assistant\",\"content\":\"It is\"}]}");
        CHECK(!r.add_generation_prompt && r.continue_final_message);
        CHECK_EQ(r.prompts[0].max_tokens, info.max_model_len - r.prompts[0].n);
        DONE();
    }
    REFUSES(KIND_MESSAGES, "{" HI "}", "missing_required_parameter", "max_tokens");
    REFUSES(
        KIND_MESSAGES,
        "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
        "unsupported_value", "messages[0].content[0].type");
    REFUSES(KIND_COUNT_TOKENS, "{" HI ",\"tool_choice\":{\"type\":\"any\"}}", "invalid_value",
            "tool_choice");
}

/* Roles that the API does not define are passed to the template. */
TEST(roles_that_the_template_accepts)
{
    static const char open[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    static const char deaf[] =
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
#define BOSS                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"boss\",\"content\":\"x\"}]" \
    "}"
    struct err err;
    REFUSES(KIND_CHAT, BOSS, "invalid_value", "messages[1].role"); // the model's template raises
    struct chat_template *own = model.template;
    REQUIRE(chat_template_compile(open, strlen(open), "open", &model.template, &err) == OK);
    {
        ACCEPTS(KIND_CHAT, BOSS);
        CHECK_STR(r.prompts[0].text, "<user>hi<boss>x");
        DONE();
    }
    {
        ACCEPTS(KIND_RESPONSES, "{\"input\":\"a\",\"messages\":[5,{\"role\":\"boss\"}]}");
        DONE();
    }
    chat_template_free(model.template);
    REQUIRE(chat_template_compile(deaf, strlen(deaf), "deaf", &model.template, &err) == OK);
    {
        ACCEPTS(KIND_CHAT, BOSS); // as other servers do
        CHECK_STR(r.prompts[0].text, "hi");
        DONE();
    }
    config.strict_parameters = true;
    REFUSES(KIND_CHAT, BOSS, "invalid_value", "messages[1].role");
    config.strict_parameters = false;
    chat_template_free(model.template);
    model.template = own;
}

/* If the template refuses, the error names the endpoint's own member. */
TEST(messages_that_the_template_refuses)
{
    static const char strict[] = "{{ raise_exception('no') }}";
    struct err err;
    open_model();
    struct chat_template *own = model.template;
    REQUIRE(chat_template_compile(strict, strlen(strict), "strict", &model.template, &err) == OK);
    REFUSES(KIND_CHAT, "{" HI "}", "invalid_messages", "messages");
    REFUSES(KIND_TOKENIZE, "{" HI "}", "invalid_messages", "messages");
    REFUSES(KIND_RESPONSES, "{\"input\":\"a\"}", "invalid_messages", "input");
    REFUSES(KIND_RESPONSES_INPUT_TOKENS, "{\"input\":\"a\"}", "invalid_messages", "input");
    chat_template_free(model.template);
    model.template = own;
}

int main(int argc, char **argv)
{
    return request_main(argc, argv);
}
