// SPDX-License-Identifier: Apache-2.0
/* Templates compared with the output of Jinja2: our own vectors (test/templates, made by
 * scripts/template_vectors.py), and those of third parties if SLUICE_SHARED has them. */
#include "engine/base/file.h"
#include "engine/base/json_scan.h"
#include "engine/base/optional.h"
#include "server/chat/template.h"
#include "test/check.h"

/* The time of strftime_now in the vectors. */
enum { CLOCK = 1749990896 }; // 2025-06-15 12:34:56

struct slice {
    const char *s;
    size_t n_bytes;
};

/* The value of a member of the object on this line, as text; empty if absent. */
static struct slice member(struct slice line, const char *key)
{
    struct json_scan sc;
    json_scan_init(&sc, line.s, line.n_bytes, 500);
    if (json_scan_next(&sc) != JSON_TOKEN_OBJECT) {
        return (struct slice){0};
    }
    while (json_scan_next(&sc) == JSON_TOKEN_KEY) {
        bool found = json_scan_is(&sc, key);
        struct slice v = {line.s + sc.at, 0};
        if (!json_scan_skip(&sc)) {
            break;
        }
        v.n_bytes = (size_t)(line.s + sc.at - v.s);
        while (v.n_bytes > 0 && strchr(" :", v.s[0])) {
            v.s++;
            v.n_bytes--;
        }
        if (found) {
            return v;
        }
    }
    return (struct slice){0};
}

/* The text of a JSON string, which the caller frees. NULL if the value is not a string. */
static char *sized_text_of(struct slice v, size_t *n_bytes)
{
    struct json_scan sc;
    struct buf b;
    json_scan_init(&sc, or_empty(v.s), v.n_bytes, 4);
    if (!v.s || json_scan_next(&sc) != JSON_TOKEN_STRING) {
        return NULL;
    }
    buf_init(&b, 1 << 28);
    buf_puts(&b, "");
    json_scan_unescape(&sc, &b);
    *n_bytes = b.n_bytes;
    return b.data;
}

static char *text_of(struct slice v)
{
    size_t n;
    return sized_text_of(v, &n);
}

/* True if the outcome is the line's "expected", or an error where the line has "error". */
static bool as_expected(struct slice line, const struct chat_template *t,
                        const struct chat_input *in, enum status st, struct err *err)
{
    struct chat_output out = {0};
    if (st == OK) {
        st = chat_template_render(t, in, &out, err);
    }
    size_t n_want = 0;
    char *want = sized_text_of(member(line, "expected"), &n_want);
    bool ok;
    if (want) {
        ok = st == OK && n_want == out.n_bytes && memcmp(want, out.text, n_want) == 0;
    } else {
        struct slice error = member(line, "error");
        char *type = text_of(member(error, "type")), *message = text_of(member(error, "message"));
        ok = st != OK && type && message &&
             (strcmp(type, "TemplateError") != 0 || strcmp(message, err->text) == 0);
        free(type);
        free(message);
    }
    if (!ok) {
        char *id = text_of(member(line, "id"));
        CHECK_FAIL("%s: want %.300s, got %.300s", id ? id : "?", want ? want : "an error",
                   st == OK ? out.text : err->text);
        free(id);
    }
    free(want);
    chat_output_deinit(&out);
    return ok;
}

/* A template and its variables on a line. */
static void snippet(struct slice line)
{
    struct err err = {{0}};
    struct chat_template *t = NULL;
    struct slice vars = member(line, "vars");
    char *source = text_of(member(line, "template"));
    REQUIRE(source && vars.s);
    enum status st = chat_template_compile(source, strlen(source), NULL, &t, &err);
    struct chat_input in = {.kwargs_json = vars.s,
                            .kwargs_bytes = vars.n_bytes,
                            .raw = true,
                            .local_us = CLOCK * 1000000LL};
    as_expected(line, t, &in, st, &err);
    chat_template_free(t);
    free(source);
}

static char folder[4096], last_name[300];
static struct chat_template *last;
static enum status last_status;
static struct err last_error;

/* Cases of one template are adjacent. */
static void load_named(const char *name)
{
    char path[8192], *text;
    size_t n;
    if (strcmp(name, last_name) == 0) {
        return;
    }
    chat_template_free(last);
    last = NULL;
    snprintf(last_name, sizeof last_name, "%s", name);
    snprintf(path, sizeof path, "%s/%s.jinja", folder, name);
    last_status = file_read(path, 1 << 22, &text, &n, &last_error);
    if (last_status == OK) {
        last_status = chat_template_compile(text, n, NULL, &last, &last_error);
        free(text);
    }
}

/* A named template with a conversation. `raw`: messages reach the template unchanged, as they
 * reached Jinja2. */
static void conversation(struct slice line)
{
    struct err err;
    struct slice messages = member(line, "messages"), tools = member(line, "tools");
    struct slice extra = member(line, "extra");
    char *name = text_of(member(line, "template"));
    REQUIRE(name && messages.s && extra.s);
    load_named(name);
    free(name);
    bool none = tools.n_bytes == 4 && memcmp(tools.s, "null", 4) == 0;
    struct chat_input in = {.messages_json = messages.s,
                            .messages_bytes = messages.n_bytes,
                            .tools_json = none ? NULL : tools.s,
                            .tools_bytes = none ? 0 : tools.n_bytes,
                            .kwargs_json = extra.s,
                            .kwargs_bytes = extra.n_bytes,
                            .raw = true,
                            .local_us = CLOCK * 1000000LL};
    err = last_error;
    as_expected(line, last, &in, last_status, &err);
}

/* One case per line. */
static int each_line(const char *path, void (*run)(struct slice line))
{
    char *text;
    size_t n;
    struct err err;
    int lines = 0;
    if (file_read(path, (size_t)1 << 30, &text, &n, &err) != OK) {
        CHECK_FAIL("%s", err.text);
        return 0;
    }
    for (char *p = text, *end; p < text + n; p = end + 1) {
        end = memchr(p, '\n', (size_t)(text + n - p));
        if (!end) {
            end = text + n;
        }
        if (end > p) {
            run((struct slice){p, (size_t)(end - p)});
            lines++;
        }
    }
    free(text);
    chat_template_free(last);
    last = NULL;
    last_name[0] = '\0';
    return lines;
}

/* Snippets test one feature of the language each, also its errors. */
TEST(own_snippets_render_as_in_jinja2)
{
    CHECK(each_line("test/templates/snippets.jsonl", snippet) > 300);
}

TEST(own_templates_render_as_in_jinja2)
{
    snprintf(folder, sizeof folder, "test/templates");
    CHECK(each_line("test/templates/cases.jsonl", conversation) > 50);
}

/* scripts/template_vectors.py random N SEED > FILE; SLUICE_SNIPPETS=FILE this-test named */
TEST(named_snippets_render_as_in_jinja2)
{
    if (!getenv("SLUICE_SNIPPETS")) {
        SKIP("SLUICE_SNIPPETS names no file");
    }
    CHECK(each_line(getenv("SLUICE_SNIPPETS"), snippet) > 0);
}

TEST(shared_snippets_render_as_in_jinja2)
{
    char path[4096];
    if (!check_shared()) {
        SKIP("no ../shared");
    }
    snprintf(path, sizeof path, "%s/data/jinja_snippets.jsonl", check_shared());
    CHECK(each_line(path, snippet) > 500);
}

TEST(shared_templates_render_as_in_jinja2)
{
    char path[4096];
    if (!check_shared()) {
        SKIP("no ../shared");
    }
    snprintf(folder, sizeof folder, "%s/data/templates", check_shared());
    snprintf(path, sizeof path, "%s/data/template_cases.jsonl", check_shared());
    CHECK(each_line(path, conversation) > 5000);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
