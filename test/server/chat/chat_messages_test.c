// SPDX-License-Identifier: Apache-2.0
/* The form in which messages reach a template: content as text or parts, arguments, reasoning,
 * roles and continued answers, as the template uses them. */
#include "server/chat/jinja/jinja.h"
#include "test/server/chat/fold.h"
#include "test/server/chat/rendered.h"

#define PLAIN "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

/* Clients send content as parts, but many templates expect a string. Whether a template handles
 * parts is found out by how it uses `content`. */
/* A template may fail on null content before it refuses what is really wrong. */
TEST(the_error_is_not_about_null_content_that_could_be_empty)
{
    static const char source[] =
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('No tools!') }}"
        "{% endif %}{{ m.content + '.' }}{% endfor %}";
    CHECK_STR(render(source, "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                             "\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
                             "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
                             "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"b\"}]"),
              "!No tools!");
}

TEST(text_parts_are_joined_for_templates_that_want_strings)
{
    const char *parts =
        USER("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]");
    CHECK_STR(
        render("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}", parts),
        "<user>[a\nb]");
    CHECK_STR(render("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                     "{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}",
                     parts),
              "([a])([b])");
}

TEST(strings_become_parts_for_templates_that_want_parts)
{
    CHECK_STR(render("{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}"
                     "{{ p.text }}{% endif %}{% endfor %}{% endfor %}",
                     USER("\"hello\"")),
              "[hello]");
}

#define CALL(content, arguments)                                                                   \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":" content ","      \
    "\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":" arguments \
    "}}]}]"
#define WITH_CALLS(arguments)                                                                      \
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}" arguments            \
    "{% endfor %}{% endfor %}"

/* Templates expect arguments as an object or as a string. What the template does with them
 * decides, and the text of numbers (1.0) survives either way. */
TEST(arguments_get_the_form_that_the_template_prints_correctly)
{
    const char *text = CALL("\"\"", "\"{\\\"a\\\": 1.0}\"");
    CHECK_STR(render(WITH_CALLS("{{ c.function.arguments | tojson }}"), text), "[q]{\"[a]\": 1.0}");
    CHECK_STR(render(WITH_CALLS("{{ 'x' + c.function.arguments }}"), text), "[q]x[{\"a\": 1.0}]");
    CHECK_STR(render(WITH_CALLS("{{ c.function.arguments }}"), text), "[q{\"a\": 1.0}]");
    CHECK_STR(render(WITH_CALLS(
                         "{% for k, v in c.function.arguments|items %}{{ k }}={{ v }}{% endfor %}"),
                     text),
              "[qa]=1.0");
    CHECK_STR(render(WITH_CALLS("{{ 'x' + c.function.arguments }}"), CALL("\"\"", "{\"a\":1}")),
              "[q]x{\"[a]\": 1}");
    CHECK_STR(
        render(WITH_CALLS("{{ c.function.arguments | tojson }}"), CALL("\"\"", "\"no json\"")),
        "[q]\"[no json]\"");
}

/* An assistant message with calls has content null. Python would print None or fail when
 * adding strings, so it becomes "" there; a template that tests for none still sees none. */
TEST(null_content_is_empty_where_it_would_fail_or_print_none)
{
    CHECK_STR(render(WITH_CALLS("!"), CALL("null", "{}")), "[q]!");
    CHECK_STR(
        render("{% for m in messages %}{{ 'x' + m.content }}{% endfor %}", CALL("null", "{}")),
        "x[q]x");
    CHECK_STR(render("{% for m in messages %}{{ m.content if m.content is string else "
                     "m.content | tojson }}!{% endfor %}",
                     CALL("null", "{}")),
              "[q]!!");
    CHECK_STR(
        render("{% for m in messages %}{{ m.content is none }}{% endfor %}", CALL("null", "{}")),
        "FalseTrue");
}

/* A template that prints only content would leave the model without its own calls. They are
 * appended in the model's format, whose markers are not input, where that has the notation of JSON
 * or Python. */
TEST(calls_are_part_of_the_content_for_templates_that_leave_them_out)
{
#define ONLY_CONTENT(sign) "{# tools #}{{ '" sign "' if tools }}" PLAIN
    const char *arguments = "\"{\\\"a\\\": 1, \\\"b\\\": {\\\"c\\\": [true, null, \\\"d\\\"]}}\"";
    char call[500];
    snprintf(call, sizeof call, CALL("null", "%s"), arguments);
    CHECK_STR(render(ONLY_CONTENT("List of tools: ["), call),
              "<user>[q]<assistant><|tool_call_start|>[[f]([a]=1, [b]={\"[c]\": [True, None, "
              "\"[d]\"]})]<|tool_call_end|>");
    CHECK_STR(render(ONLY_CONTENT("<tool_call>"), CALL("\"x\"", "{\"a\": \"</tool_call>\"}")),
              "<user>[q]<assistant>[x]\n<tool_call>\n{\"name\": \"[f]\", \"arguments\": "
              "{\"[a]\": \"[</tool_call>]\"}}\n</tool_call>");
    CHECK_STR(render(ONLY_CONTENT("<arg_key>"), CALL("null", "{}")), "<user>[q]<assistant>");
    CHECK_STR(render(ONLY_CONTENT("<tool_call>"), CALL("\"x\"", "\"no json\"")),
              "<user>[q]<assistant>[x]\n<tool_call>\n{\"name\": \"[f]\", \"arguments\": "
              "[no json]}\n</tool_call>");
    CHECK_STR(render("{# <tool_call> #}{% for m in messages %}{% if m.content is none %}CALLS"
                     "{{ m.tool_calls[0].function.arguments }}{% else %}{{ m.content }}{% endif %}"
                     "{% endfor %}",
                     CALL("null", "\"{}\"")),
              "[q]CALLS[{}]"); // it has a place of its own for them
}

/* Content may be a list of parts, or become one: calls belong to its last text. */
TEST(calls_follow_content_in_parts)
{
#define EACH_PART                                                                                  \
    "{# <tool_call> #}{{ tools }}{% for m in messages %}{% for p in m.content %}"                  \
    "{% if p.type == 'text' %}({{ p.text }}){% endif %}{% endfor %}{% endfor %}"
    const char *text = "[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"y\"}]";
    const char *written = "<tool_call>\n{\"name\": \"[f]\", \"arguments\": {}}\n</tool_call>";
    char call[500], shown_call[500];
    snprintf(call, sizeof call, CALL("%s", "{}"), text);
    snprintf(shown_call, sizeof shown_call, "None([q])([x])([y]\n%s)", written);
    CHECK_STR(render(EACH_PART, call), shown_call);
    snprintf(shown_call, sizeof shown_call, "None([q])([x])(\n%s)", written);
    CHECK_STR(
        render(EACH_PART, CALL("[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image\"}]", "{}")),
        shown_call);
    snprintf(shown_call, sizeof shown_call, "None([q])([x]\n%s)", written);
    CHECK_STR(render(EACH_PART, CALL("\"x\"", "{}")), shown_call);
    snprintf(shown_call, sizeof shown_call, "None([q])(%s)", written);
    CHECK_STR(render(EACH_PART, CALL("null", "{}")), shown_call);
    CHECK_STR(render(EACH_PART, CALL("[]", "{}")), shown_call);
}

/* Appended calls are calls to the format's parser, even if text precedes them. */
TEST(appended_calls_parse_as_calls)
{
    static const char *const signs[][2] = {
        {"llama3_json", "<|python_tag|>"},
        {"xlam", "calls in a single JSON array"},
        {"pythonic", "[func_name1(params_name1=params_value1"},
        {"functionary_v32", ">>>all"},
        {"hermes", "<tool_call>"},
        {"mistral", "[TOOL_CALLS]"},
        {"lfm2", "List of tools: ["},
        {"phi4_mini_json", "functools"},
    };
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        for (int with_text = 0; with_text < 2; with_text++) {
            char source[300];
            snprintf(source, sizeof source,
                     "{# tools %s #}{%% for m in messages[1:] %%}{{ m.content }}{%% endfor %%}",
                     signs[i][1]);
            struct chat_template *t;
            struct chat_output out = {0};
            REQUIRE(chat_template_compile(source, strlen(source), NULL, &t, NULL) == OK);
            const char *messages =
                with_text ? CALL("\"I look.\"", "{\"n\": 1}") : CALL("null", "{\"n\": 1}");
            struct chat_input in = {.messages_json = messages, .messages_bytes = strlen(messages)};
            REQUIRE(chat_template_render(t, &in, &out, NULL) == OK);
            PARSES(signs[i][0], out.text, with_text ? "I look." : "", "|f#:{\"n\": 1}");
            chat_output_deinit(&out);
            chat_template_free(t);
        }
    }
}

/* Mistral's templates reject ids that are not nine letters and digits, and so all ids of this
 * server and of OpenAI. */
TEST(ids_are_short_for_templates_that_insist)
{
#define IDS(condition)                                                                             \
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length " condition " %}"   \
    "{{ raise_exception('no') }}{% endif %}{{ c.id }},{% endfor %}{{ m.tool_call_id }}{% endfor "  \
    "%}"
#define WITH_ID(id)                                                                                \
    "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"" id                      \
    "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":"    \
    "\"tool\","                                                                                    \
    "\"tool_call_id\":\"" id "\",\"content\":\"r\"}]"
    const char *ours = WITH_ID("call_626ee4d30fe759e3");
    CHECK_STR(render(IDS("!= 9"), ours), "[30fe759e3],[30fe759e3]");
    CHECK_STR(render(IDS("< 9"), ours), "[30fe759e3],[30fe759e3]");
    CHECK_STR(render(IDS("!= 9"), WITH_ID("abcdefghi")), "[abcdefghi],[abcdefghi]");
    CHECK_STR(render(IDS("!= 9"), WITH_ID("c-1")), "[0000000c1],[0000000c1]");
    CHECK_STR(render(IDS("== 0"), ours), "[call_626ee4d30fe759e3],[call_626ee4d30fe759e3]");
}

/* Descriptions and parameters are optional, but some templates need them. */
TEST(tools_are_complete_for_templates_that_fail_otherwise)
{
    const char *tools =
        "[{\"function\":{\"name\":\"f\",\"parameters\":null}},{\"function\":{\"name\":"
        "\"g\",\"description\":\"d\",\"parameters\":{\"properties\":{\"a\":{}}}}}]";
    struct chat_input in = {.messages_json = USER("\"q\""), .tools_json = tools};
    CHECK_STR(render_in("{% for t in tools %}{{ t.function.name + ':' + t.function.description }}"
                        "{% for p in t.function.parameters.properties %}({{ p }}){% endfor %}"
                        "{% endfor %}",
                        in),
              "[f]:[g]:[d]([a])");
    CHECK_STR(render_in("{% for t in tools %}{{ t.function.name }}{{ t.function.description }}"
                        "{% endfor %}",
                        in),
              "[fgd]"); // it does not fail
    CHECK_STR(render_in("{{ raise_exception('no') }}{{ tools }}", in), "!no");
}

/* Types of the Responses API and refusals become ordinary text parts. */
TEST(parts_of_the_other_apis_are_text)
{
    const char *each = "{% for p in messages[0].content %}{{ p.type ~ p.text }}{% endfor %}";
    const char *parts = "[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},"
                        "{\"type\":\"refusal\",\"refusal\":\"b\"},{\"type\":\"output_text\","
                        "\"text\":\"c\"}]}]";
    CHECK_STR(render("{% for m in messages %}{{ 'x' + m.content }}{% endfor %}", parts),
              "x[a\nb\nc]");
    CHECK_STR(render(each, parts), "text[a]text[b]text[c]");
}

TEST(a_call_without_arguments_has_none)
{
    CHECK_STR(render(WITH_CALLS("{% for k, v in c.function.arguments.items() %}!{% endfor %}"),
                     CALL("\"\"", "\"\"")),
              "[q]");
}

/* Three names for the same text are in use; the template sees the one it mentions. Some
 * templates raise if reasoning and content are both present. */
TEST(reasoning_uses_the_name_that_the_template_knows)
{
#define THOUGHT(key, content)                                                                      \
    "[{\"role\":\"assistant\",\"" key "\":\"t\",\"content\":" content                              \
    ",\"tool_calls\":[{\"type\":"                                                                  \
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]"
    const char *thinking = "{% for m in messages %}{% if m.thinking %}{% if m.content %}{{ "
                           "raise_exception('both') }}{% endif %}T{{ m.thinking }}{% endif %}"
                           "{{ m.content }}{% endfor %}";
    CHECK_STR(render(thinking, THOUGHT("reasoning", "\"\"")), "T[t]");
    CHECK_STR(render(thinking, THOUGHT("reasoning_content", "null")), "T[t]");
    CHECK_STR(render(thinking, THOUGHT("thinking", "\"\"")), "T[t]");
    CHECK_STR(render(thinking, THOUGHT("thinking\":null,\"reasoning", "\"\"")), "T[t]");
    CHECK_STR(render(thinking, THOUGHT("reasoning", "\"c\"")), "[c]"); // it prints only one of them
    CHECK_STR(render("{% for m in messages %}{{ m.reasoning }}{{ m.content }}{% endfor %}",
                     THOUGHT("reasoning_content", "\"c\"")),
              "[tc]");
    CHECK_STR(render("{% for m in messages %}{% if think %}{{ m.reasoning_content }}{% else %}{{ "
                     "'reasoning_content' in m }}{% endif %}{% endfor %}",
                     THOUGHT("reasoning", "\"\"")),
              "True");
    CHECK_STR(render("{% for m in messages %}{{ m.keys() | list | length }}{% endfor %}",
                     THOUGHT("reasoning", "\"\"")),
              "4");
#undef THOUGHT
}

/* Otherwise an older template would silently drop the system prompt of a newer client. */
TEST(developer_becomes_system_where_the_template_drops_it)
{
    const char *messages = "[{\"role\":\"developer\",\"content\":\"d\"}]";
    CHECK_STR(
        render("{% for m in messages %}{% if m.role == 'system' %}S{{ m.content }}{% elif m.role =="
               " 'user' %}U{{ m.content }}{% endif %}{% endfor %}",
               messages),
        "S[d]");
    CHECK_STR(render(PLAIN, messages), "<developer>[d]");
}

/* continue_final_message: the prompt ends inside the last message, so that the model
 * continues it; that point is found although the template trims or appends text. */
TEST(the_last_message_can_be_continued)
{
    struct chat_input in = {.messages_json = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
                                             "\"assistant\",\"content\":\"The answer \"}]",
                            .continue_final_message = true,
                            .add_generation_prompt = true};
    CHECK_STR(render_in("{% for m in messages %}<{{ m.role }}>{{ m.content }}</e>{% endfor %}{% if "
                        "add_generation_prompt %}<assistant>{% endif %}",
                        in),
              "<user>[q]</e><assistant>[The answer ]");
    CHECK_STR(render_in("{% for m in messages %}{{ m.content | trim }}</e>{% endfor %}", in),
              "[q]</e>[The answer]");
    CHECK(render_in("{{ messages[0].content }}", in)[0] == '!');
    /* The template may write the message's text again after it, and the message may be empty. */
    static const char *const texts[] = {"e", ">", "\\n", "", "  "};
    static const char *const seen[] = {"[e]", "[>]", "[\n]", "", "[  ]"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char messages[200], whole[64];
        snprintf(messages, sizeof messages, "[{\"role\":\"assistant\",\"content\":\"%s\"}]",
                 texts[i]);
        snprintf(whole, sizeof whole, "<assistant>\n%s", seen[i]);
        in.messages_json = messages;
        CHECK_STR(render_in("{% for m in messages %}<{{ m.role }}>{{ '\n' ~ m.content ~ '</e>\n' }}"
                            "{% endfor %}",
                            in),
                  whole);
        CHECK_STR(render_in("{% for m in messages %}<{{ m.role }}>{{ '\n' ~ m.content | trim ~ "
                            "'</e>\n' }}{% endfor %}",
                            in),
                  strspn(texts[i], " \\n") == strlen(texts[i]) ? "<assistant>\n" : whole);
    }
}

TEST(broken_json_is_the_clients_mistake)
{
    CHECK(strncmp(render(PLAIN, "[{\"role\":}]"), "!messages: ", 11) == 0);
    CHECK(render(PLAIN, "[")[0] == '!');
    CHECK(render_in(PLAIN, (struct chat_input){.messages_json = "[]", .tools_json = "[1"})[0] ==
          '!');
}

/* Python prints 1e2 as 100.0 and keeps integers of any size; models were trained with
 * prompts made that way. */
TEST(numbers_keep_their_text)
{
    CHECK_STR(
        render_in("{{ l }}{{ l|tojson }}",
                  (struct chat_input){.kwargs_json = "{\"l\":[1,1.0,-0,1e2,"
                                                     "123456789012345678901234567890,1.5e-7]}"}),
        "[1, 1.0, 0, 100.0, 123456789012345678901234567890, 1.5e-07]"
        "[1, 1.0, 0, 100.0, 123456789012345678901234567890, 1.5e-07]");
}

/* chat_template_text is searched to detect what a template supports; words in comments must not
 * count. */
TEST(words_of_a_template_are_found_outside_comments)
{
    struct jinja_template *t;
    struct err err;
    const char *source = "{# hidden #}<think>{{ enable_thinking }}{{ 'quoted' }}";
    REQUIRE(jinja_compile(source, strlen(source), &t, &err) == OK);
    CHECK(jinja_mentions(t, "<think>") && jinja_mentions(t, "enable_thinking"));
    CHECK(jinja_mentions(t, "quoted") && !jinja_mentions(t, "hidden"));
    jinja_free(t);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
