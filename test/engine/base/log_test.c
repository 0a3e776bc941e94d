// SPDX-License-Identifier: Apache-2.0
/* The log: one line per call, whatever the texts in it. */
#include "engine/base/log.h"
#include "test/check.h"

#include <unistd.h>

/* Writes one line with `text` in it, and returns what arrived on standard error. */
static const char *logged(const char *text)
{
    static char got[4096];
    int ends[2];
    const int kept = dup(STDERR_FILENO);
    if (kept < 0 || pipe(ends) != 0) {
        return "";
    }
    dup2(ends[1], STDERR_FILENO);
    log_warn("the name '%s' is unknown", text);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    const ssize_t n = read(ends[0], got, sizeof got - 1);
    close(ends[0]);
    got[n > 0 ? n : 0] = '\0';
    return got;
}

TEST(a_text_cannot_begin_a_line_or_command_a_terminal)
{
    const char *line = logged("a\n2026-12-01T00:00:00.000Z error b\r\x1b[2Jc\x7f\xc3\xa9");
    CHECK(strstr(line, " warn the name 'a 2026-12-01T00:00:00.000Z error b  [2Jc \xc3\xa9' is "
                       "unknown\n") != NULL);
    CHECK(strchr(line, '\n') == line + strlen(line) - 1);
}

TEST(a_long_text_is_cut_and_the_line_still_ends)
{
    char text[4000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    const char *line = logged(text);
    CHECK(strlen(line) <= 2048 && strchr(line, '\n') == line + strlen(line) - 1);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
