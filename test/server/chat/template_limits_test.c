// SPDX-License-Identifier: Apache-2.0
/* A template that a client sends cannot hold a thread for long. */
#include "server/chat/template.h"
#include "test/check.h"

#include <time.h>

enum { LIMIT_MS = 50, MAX_MS = 500 }; // one operation on a long text may pass the limit

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Compiles and renders; returns the status of what failed first. */
static enum status run(const char *source, struct err *err)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"a b a b\"}]";
    struct chat_input in = {.messages_json = messages, .messages_bytes = sizeof messages - 1};
    struct chat_output out = {0};
    struct chat_template *t;
    enum status st = chat_template_compile(source, strlen(source), NULL, &t, err);
    if (st == OK) {
        st = chat_template_render(t, &in, &out, err);
        chat_template_free(t);
        chat_output_deinit(&out);
    }
    return st;
}

#define LONG                                                                                       \
    "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(16) %}{% set ns.s = ns.s ~ "  \
    "ns.s %}{% endfor %}"

TEST(templates_of_clients_end_in_time)
{
    static const char *const sources[] = {
        "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
        LONG "{% for i in range(10000) %}{% set x = ns.s | replace('a', 'bb') %}{% endfor %}",
        LONG "{% for i in range(10000) %}{% set x = ns.s | tojson %}{% endfor %}",
        LONG "{% for i in range(10000) %}{% set x = ns.s | upper %}{% endfor %}",
        "{% for i in range(10000) %}{% set x = range(100000) | sort %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) "
        "}}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        struct err err = {""};
        double start = cpu_ms();
        chat_template_set_cpu_ms(LIMIT_MS);
        CHECK_EQ(run(sources[i], &err), ERR_LIMIT);
        CHECK(strstr(err.text, "takes too long") || strstr(err.text, "too much memory"));
        double ms = cpu_ms() - start;
        if (ms > MAX_MS) {
            CHECK_FAIL("template %zu takes %.0f ms: %s", i, ms, err.text);
        }
        chat_template_set_cpu_ms(0);
    }
    struct err err = {""};
    CHECK_EQ(run("{{ messages[0].content }}", &err), OK);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
