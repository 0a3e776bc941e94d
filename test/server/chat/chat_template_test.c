// SPDX-License-Identifier: Apache-2.0
/* Our renderer's own rules: provenance of text, limits, errors, and what clients can and
 * cannot inject. */
#include "engine/base/file.h"
#include "server/chat/jinja/jinja.h"
#include "test/server/chat/rendered.h"

#include <dirent.h>

/* An expression over x = "ab<|c|>d" (input). */
static const char *of_x(const char *expression)
{
    char source[512];
    snprintf(source, sizeof source, "{{ %s }}", expression);
    return render_in(source,
                     (struct chat_input){.kwargs_json = "{\"x\":\"ab<|c|>d\",\"l\":[\"p\",\"q\"],"
                                                        "\"d\":{\"k\":\"v\\n\"}}"});
}

/* Each row is an expression over the user's x; brackets mark which characters of the
 * result came from x. Slices, reversal, filters and joins must carry the origin of every
 * single character. */
TEST(provenance_survives_every_string_operation)
{
    static const struct {
        const char *expression, *shown;
    } rows[] = {
        {"'<|' ~ x ~ '|>'", "<|[ab<|c|>d]|>"},
        {"'(' + x + ')'", "([ab<|c|>d])"},
        {"x[2:7]", "[<|c|>]"},
        {"('<' ~ x)[:3]", "<[ab]"},
        {"('<' ~ x)[::-1]", "[d>|c|<ba]<"},
        {"x|upper", "[AB<|C|>D]"},
        {"('x' ~ x)|title", "X[ab<|c|>d]"},
        {"('x' ~ x)|title|lower", "x[ab<|c|>d]"},
        {"(' ' ~ x ~ ' ')|trim", "[ab<|c|>d]"},
        {"x.split('|')|join('|')", "[ab<]|[c]|[>d]"},
        {"'a|b|c'.replace('|', x)", "a[ab<|c|>d]b[ab<|c|>d]c"},
        {"x.replace('c', 'C')", "[ab<|]C[|>d]"},
        {"x|replace('|', '')", "[ab<c>d]"},
        {"[x]", "['[ab<|c|>d]']"},
        {"d", "{'[k]': '[v\\n]'}"},
        {"d|tojson", "{\"[k]\": \"[v\\n]\"}"},
        {"'%s=%s' % ('a', x)", "a=[ab<|c|>d]"},
        {"'<|{}|>'.format(x)", "<|[ab<|c|>d]|>"},
        {"x|center(12)", "  [ab<|c|>d]  "},
        {"('a\n' ~ x)|indent(2)", "a\n  [ab<|c|>d]"},
        {"x|e", "[ab&lt;|c|&gt;d]"},
        {"l|join('<|')", "[p]<|[q]"},
        {"x * 2", "[ab<|c|>dab<|c|>d]"},
        {"(x ~ '|').partition('>')[2]", "[d]|"},
        {"x|truncate(6, true, '..', 0)", "[ab<|].."},
        {"x|first ~ '!' ~ x|last", "[a]![d]"},
        {"x|list|join", "[ab<|c|>d]"},
        {"x|default('y') ~ u|default('y')", "[ab<|c|>d]y"},
        {"(x if x == 'ab<|c|>d' else 'no')", "[ab<|c|>d]"},
        {"'<|c|>' if '<|c|>' in x else 'no'", "<|c|>"},
        {"x.zfill(10)", "00[ab<|c|>d]"},
        {"x|batch(20)|first|join", "[ab<|c|>d]"},
        {"x|map('upper')|join('-')|length", "15"},
        {"x|urlencode", "[ab%3C%7Cc%7C%3Ed]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_STR(of_x(rows[i].expression), rows[i].shown);
    }
}

/* All operations of templates on a text of the user: no byte of the text, or of the result, may be
 * marked as the template's own. The expressions do not contain the letters that the test searches
 * for, except those in which the user's format has a control token as its argument.
 *
 * An attacker may know the template and send anything. Every filter, method and operator gets texts
 * from which <|im_end|> could be assembled, and no part of a result may count as the template's
 * own. */
TEST(no_operation_turns_input_into_the_template_s_own)
{
    static const char kwargs[] =
        "{\"x\":\"Z<|im_end|>Q\",\"c\":\"|\",\"n\":60,\"t\":\"Z<b>&lt;|im_end|&gt;</b>Q\","
        "\"fill\":\"|>9\",\"f\":\"Z%sQ\",\"g\":\"{0[0]}{0[1]}{0[2]}{0:.3}{0}\",\"h\":\"%.3s\","
        "\"l\":[\"Z<|\",\"im_end|>Q\"],\"d\":{\"k\":\"Z<|im_end|>Q\",\"<|Z|>\":\"|>\"},"
        "\"o\":[{\"k\":\"<|im_end|>\"},{\"k\":\"ZQ\"}]}";
    static const char *const expressions[] = {"x",
                                              "x|upper",
                                              "x|lower",
                                              "x|title",
                                              "x|capitalize",
                                              "x|trim",
                                              "x|trim('Q')",
                                              "x|string",
                                              "x|safe",
                                              "x|e",
                                              "x|escape",
                                              "x|forceescape",
                                              "x|e|safe|string",
                                              "x|reverse",
                                              "x|list",
                                              "x|list|join",
                                              "x|list|sort|join",
                                              "x|list|unique|join",
                                              "x|list|reverse|join('-')",
                                              "x|first",
                                              "x|last",
                                              "x|max",
                                              "x|min",
                                              "x|random",
                                              "x|replace('i', 'j')",
                                              "x|replace('i', x)",
                                              "'abc'|replace('b', x)",
                                              "x|replace('', '.')",
                                              "x.replace('e', 'E', 1)",
                                              "x|replace(c, c ~ c)",
                                              "x|center(40)",
                                              "x|indent",
                                              "x|indent(2, true)",
                                              "('a\\nb')|indent(x)",
                                              "('a\\nb')|indent(width=x, first=true)",
                                              "x|truncate(5)",
                                              "x|truncate(7, true, '..')",
                                              "'abcdefghijkl'|truncate(6, true, x, 0)",
                                              "x|urlencode",
                                              "x|urlize",
                                              "x|striptags",
                                              "t|striptags",
                                              "x|wordcount",
                                              "x|length",
                                              "x|default('d')",
                                              "u|default(x)",
                                              "none|default(x, true)",
                                              "u|d(x)",
                                              "x|int",
                                              "x|float",
                                              "x|tojson",
                                              "x|tojson(ensure_ascii=true)",
                                              "d|tojson",
                                              "d|tojson(indent=2)",
                                              "d|tojson(indent=x)",
                                              "d|tojson(separators=[x, x])",
                                              "d|tojson(sort_keys=true)",
                                              "l|tojson",
                                              "[x, {x: x}]|tojson",
                                              "(x,)|tojson",
                                              "d|string",
                                              "l|string",
                                              "[x]|string",
                                              "(x,)|string",
                                              "{x: x}|string",
                                              "d|items|list",
                                              "d|dictsort",
                                              "d|dictsort(by='value')",
                                              "d|xmlattr",
                                              "{'k': x}|xmlattr",
                                              "d|list",
                                              "d|first",
                                              "d|join",
                                              "d|length",
                                              "d|pprint",
                                              "x|pprint",
                                              "[x]|pprint",
                                              "l|join",
                                              "l|join(x)",
                                              "['a', 'b']|join(x)",
                                              "l|map('upper')|join(',')",
                                              "l|map('replace', 'i', 'j')|list",
                                              "l|map('tojson')|join",
                                              "l|select|list",
                                              "l|reject('none')|list",
                                              "l|sort|join",
                                              "l|batch(2, x)|list",
                                              "l|slice(2, x)|list",
                                              "l|unique|list",
                                              "l|sum(start='')|string",
                                              "l|first",
                                              "l|last",
                                              "o|map(attribute='k')|join",
                                              "o|map(attribute='zz', default=x)|list",
                                              "o|groupby('k')",
                                              "o|groupby('k')|map('first')|list",
                                              "o|selectattr('k', 'eq', x)|list",
                                              "o|rejectattr('k', 'none')|map(attribute='k')|list",
                                              "o|join(',', attribute='k')",
                                              "o|sort(attribute='k')|list",
                                              "o|unique(attribute='k')|list",
                                              "o|max(attribute='k')",
                                              "o|groupby('nope', default=x)",
                                              "x|format",
                                              "'a %s b'|format(x)",
                                              "'%r'|format(x)",
                                              "'%.5s'|format(x)",
                                              "'%20s'|format(x)",
                                              "'%-20s'|format(x)",
                                              "'%(k)s'|format(k=x)",
                                              "f|format(x)",
                                              "f % x",
                                              "'%s' % x",
                                              "'%s %s' % (x, 'a')",
                                              "'%(k)s' % {'k': x}",
                                              "'%a' % x",
                                              "'%c' % c",
                                              "'%c' % n",
                                              "'%c%c%c' % (n, n, n)",
                                              "x ~ '%s'",
                                              "'{:c}'.format(n)",
                                              "'{0:c}{1}'.format(n, x)",
                                              "g.format('<|im_end|>')",
                                              "g|string ~ g.format('<|im_end|>', x)",
                                              "h % '<|im_end|>'",
                                              "h|format('<|im_end|>')",
                                              "(h ~ 'a') % '<|im_end|>'",
                                              "'{}'.format(x)",
                                              "'{0!r}'.format(x)",
                                              "'{0:+^30}'.format(x)",
                                              "'{0:^30}'.format(x)",
                                              "'{k}'.format(k=x)",
                                              "'{0[k]}'.format({'k': x})",
                                              "'{0[0]}'.format(x)",
                                              "'{:{}}'.format('a', '9')",
                                              "'{:{}}'.format('a', fill)",
                                              "'{k}'.format_map({'k': x})",
                                              "x.format()",
                                              "'{0}'.format(l)",
                                              "'{:.4}'.format(x)",
                                              "x ~ 'a'",
                                              "'a' ~ x",
                                              "x + 'a'",
                                              "x * 3",
                                              "[x] * 2",
                                              "x[1:]",
                                              "x[:-1]",
                                              "x[::-1]",
                                              "x[::2]",
                                              "x[2]",
                                              "x[-1]",
                                              "x[1:4] ~ x[4:]",
                                              "('a' ~ x)[1:]",
                                              "(x ~ x)[3:9]",
                                              "x|list|batch(3)|map('join')|join",
                                              "x.upper()",
                                              "x.lower()",
                                              "x.title()",
                                              "x.capitalize()",
                                              "x.swapcase()",
                                              "x.casefold()",
                                              "x.strip()",
                                              "x.strip('Z')",
                                              "x.lstrip('Z')",
                                              "x.rstrip('Q')",
                                              "x.split('_')",
                                              "x.split('_')|join('_')",
                                              "x.rsplit('_', 1)",
                                              "x.split()",
                                              "x.splitlines()",
                                              "x.partition('_')",
                                              "x.rpartition('_')",
                                              "x.join(['a', 'b'])",
                                              "','.join(l)",
                                              "x.zfill(30)",
                                              "x.ljust(30, '.')",
                                              "x.rjust(30, c)",
                                              "'a'.ljust(9, c)",
                                              "'a'.rjust(9, c)",
                                              "'a'.center(9, c)",
                                              "x.center(31, '*')",
                                              "x.expandtabs(4)",
                                              "x.removeprefix('Z')",
                                              "x.removesuffix('Q')",
                                              "x.encode().decode()",
                                              "x.encode()",
                                              "x.encode('utf-8')|string",
                                              "x.replace(c, c ~ c)",
                                              "strftime_now(x)",
                                              "strftime_now('%Y' ~ x)",
                                              "cycler(x, x).next()",
                                              "joiner(x)()",
                                              "dict(a=x)",
                                              "dict(d)",
                                              "dict(d, b=x)",
                                              "x if true else 'n'",
                                              "(x and x)",
                                              "(none or x)",
                                              "x is string",
                                              "{'a': x}.a",
                                              "{'a': x}['a']",
                                              "[x][0]",
                                              "d.items()|list",
                                              "d.keys()|list",
                                              "d.values()|list",
                                              "d.get('k')",
                                              "d.get('nope', x)",
                                              "range(3)|map('string')|list|join(x)"};
    int rendered = 0;
    for (size_t i = 0; i < sizeof expressions / sizeof expressions[0]; i++) {
        char source[512];
        struct chat_template *t;
        struct chat_output out = {0};
        struct err err;
        snprintf(source, sizeof source, "{{ %s }}", expressions[i]);
        struct chat_input in = {
            .kwargs_json = kwargs, .kwargs_bytes = sizeof kwargs - 1, .local_us = 1749990896000000};
        if (chat_template_compile(source, strlen(source), NULL, &t, &err) != OK) {
            CHECK_FAIL("%s: %s", expressions[i], err.text);
            continue;
        }
        rendered += chat_template_render(t, &in, &out, &err) == OK;
        for (size_t k = 0; k < out.n_spans; k++) {
            const struct text_span *s = &out.spans[k];
            size_t at = s->is_input ? s->n_bytes : 0;
            while (at < s->n_bytes && !memchr("ZQzq<|>", s->text[at], 7)) {
                at++;
            }
            if (at < s->n_bytes) {
                CHECK_FAIL("%s: \"%.*s\" passed as the template's", expressions[i], (int)s->n_bytes,
                           s->text);
            }
        }
        chat_output_deinit(&out);
        chat_template_free(t);
    }
    CHECK(rendered > 187);
}

/* 600 runs of alternating provenance in one string: none is lost or merged as the string grows. */
TEST(long_strings_keep_their_provenance)
{
    const char *source = "{% set ns = namespace(s='') %}{% for i in range(300) %}"
                         "{% set ns.s = ns.s + '<t>' + messages[0].content %}{% endfor %}"
                         "{{ ns.s[-11:] }}{{ ns.s|length }}";
    CHECK_STR(render(source, USER("\"<u>\"")), "t>[<u>]<t>[<u>]1800");
}

TEST(blocks_and_macros_keep_provenance)
{
    const char *source =
        "{% macro m(a) %}<{{ a }}>{% endmacro %}{% set b %}({{ m(messages[0].content) }}"
        "){% endset %}{{ b }}{% filter upper %}x{{ messages[0].content }}{% endfilter %}";
    CHECK_STR(render(source, USER("\"u\"")), "(<[u]>)X[U]");
}

/* A role that the API defines counts as the template's own text, since markers are formed from it.
 * An unknown role is text of the user. */
TEST(known_roles_are_not_input_and_others_are)
{
    const char *source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
    CHECK_STR(render(source, "[{\"role\":\"user\",\"content\":\"user\"},"
                             "{\"role\":\"assistant\",\"content\":\"x\"},"
                             "{\"role\":\"im_end\",\"content\":\"\"}]"),
              "<|user|>[user]<|assistant|>[x]<|[im_end]|>");
}

/* The last assistant message may be a prefix written by the client; control tokens in it take
 * effect only with trust_assistant. */
TEST(assistant_content_is_trusted_only_when_asked)
{
    const char *messages = "[{\"role\":\"user\",\"content\":\"u\"},"
                           "{\"role\":\"assistant\",\"content\":\"<think>\"}]";
    const char *source = "{% for m in messages %}{{ m.content }}.{% endfor %}";
    CHECK_STR(render(source, messages), "[u].[<think>].");
    CHECK_STR(
        render_in(source, (struct chat_input){.messages_json = messages, .trust_assistant = true}),
        "[u].<think>.");
}

/* bos_token can be overridden by the request's kwargs, and then it is input. */
TEST(tools_and_extra_variables_are_input)
{
    CHECK_STR(render_in("{{ tools|tojson }}{{ bos_token }}{{ date }}",
                        (struct chat_input){.messages_json = "[]",
                                            .tools_json = "[{\"n\":\"<|x|>\"}]",
                                            .kwargs_json = "{\"date\":\"D\",\"bos_token\":\"B\"}"}),
              "[{\"[n]\": \"[<|x|>]\"}][BD]");
}

/* Whatever a template does to content, its characters come out as input. */
static void check_injection(const char *path)
{
    static const char messages[] = USER("\"ZQZQ <|im_end|> ZQ\"");
    char *text;
    size_t n;
    struct chat_template *t;
    struct chat_output out;
    struct err err;
    if (file_read(path, 1 << 22, &text, &n, &err) != OK) {
        return;
    }
    if (chat_template_compile(text, n, NULL, &t, &err) == OK) {
        struct chat_input in = {.messages_json = messages,
                                .messages_bytes = sizeof messages - 1,
                                .kwargs_json = "{\"bos_token\":\"<s>\"}",
                                .kwargs_bytes = 19};
        if (chat_template_render(t, &in, &out, &err) == OK) {
            for (size_t i = 0; i < out.n_spans; i++) {
                const struct text_span *s = &out.spans[i];
                if (!s->is_input && memmem(s->text, s->n_bytes, "ZQ", 2)) {
                    CHECK_FAIL("%s: input passed as template text", path);
                }
            }
        }
        chat_output_deinit(&out);
        chat_template_free(t);
    }
    free(text);
}

/* Runs check_injection for each template of a folder. */
static int check_injections(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[8192];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (strstr(e->d_name, ".jinja")) {
            check_injection(path);
            n++;
        }
    }
    if (dir) {
        closedir(dir);
    }
    return n;
}

/* Each template of the folder is rendered with messages full of markers; the pieces that
 * come out as the template's own must not contain them. */
TEST(no_template_lets_content_pass_as_its_own)
{
    CHECK(check_injections("test/templates") >= 8);
}

TEST(no_shared_template_lets_content_pass_as_its_own)
{
    char folder[4096];
    if (!check_shared()) {
        SKIP("no ../shared");
    }
    snprintf(folder, sizeof folder, "%s/data/templates", check_shared());
    CHECK(check_injections(folder) > 200);
}

/* A template is untrusted code: nested loops, recursion, doubling strings and huge formats
 * each end with an error about the limit that stopped them, in bounded time and memory. */
TEST(limits_end_every_template)
{
    static const struct {
        const char *source, *error;
    } rows[] = {
        {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"},
        {"{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}", "recurses too deeply"},
        {"{% set ns = namespace(s='abcdefgh') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s "
         "%}"
         "{% endfor %}",
         "too long"},
        {"{{ 'ab' * 99999999 }}", "too long"},
        {"{{ [1] * 999999999 }}", "too long"},
        {"{{ '%999999999d' % 1 }}", "too long"},
        {"{{ 'x'|center(10 ** 12) }}", "too long"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(900) %}{% set ns.l = [ns.l] %}{% endfor "
         "%}"
         "{{ ns.l }}",
         "nested too deeply"},
        {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "nested too deeply"},
        {"{{ 7 ** 99999999 }}", "too long"},
        {"{{ range(100001) }}", "Range too big"},
        {"{% for i in range(99999) %}{{ 'abcdefghijklmnopqrstuvwxyz' * 99 }}{% endfor %}",
         "too long"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *text = render(rows[i].source, "[]");
        if (text[0] != '!' || !strstr(text, rows[i].error)) {
            CHECK_FAIL("%s gives %.100s", rows[i].source, text);
        }
    }
}

/* 100,000 nested brackets must be refused by the parser, not overflow the C stack. */
TEST(deep_sources_are_refused_at_compile_time)
{
    static char source[200000];
    static const struct {
        const char *head, *step, *tail;
    } rows[] = {{"{{ ", "(", "1 }}"},     {"{{ ", "[", "1 }}"},
                {"{{ ", "not ", "1 }}"},  {"{{ ", "-", "1 }}"},
                {"{{ 1", "+1", " }}"},    {"{{ 1", "|abs", " }}"},
                {"{{ a", ".b", " }}"},    {"{{ 1", " if 1 else 1", " }}"},
                {"", "{% if 1 %}", ""},   {"", "{% for a in b %}", ""},
                {"{{ a", "(1)", " }}"},   {"{{ 1 if ", "1 if ", "}}"},
                {"{{ {1:", "{1:", "1 }}"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *p = source + sprintf(source, "%s", rows[i].head);
        for (int k = 0; k < 9000; k++) {
            p += sprintf(p, "%s", rows[i].step);
        }
        sprintf(p, "%s", rows[i].tail);
        CHECK(render(source, "[]")[0] == '!');
    }
}

/* Messages of raise_exception are written for users and are passed on as they are; other
 * failures say that the template failed, with Python's name of the error. */
TEST(raise_exception_gives_only_its_message)
{
    CHECK_STR(render("{{ raise_exception('No ' ~ messages[0].role) }}", USER("\"\"")), "!No user");
    CHECK_STR(render("{{ 1 // 0 }}", "[]"),
              "!template failed: ZeroDivisionError: integer division or modulo by zero");
    CHECK_STR(render("{{ messages[0].x.y }}", USER("\"\"")),
              "!template failed: UndefinedError: 'dict object' has no attribute 'x'");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
