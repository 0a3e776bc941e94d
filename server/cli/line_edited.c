// SPDX-License-Identifier: Apache-2.0
/* Line editing with libedit: arrow keys, Emacs keys, history. libedit reads characters through our
 * function, so that a signal ends a line at once rather than at the next key. */
#include "server/cli/line.h"

#include "engine/base/mem.h"

#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum { KEPT_LINES = 500 };

struct edited {
    struct line_reader reader; // must be the first member
    EditLine *el;
    HistoryW *history;
    wchar_t prompt[64];
};

static wchar_t *show_prompt(EditLine *el)
{
    void *e = NULL;
    el_wget(el, EL_CLIENTDATA, &e);
    return ((struct edited *)e)->prompt;
}

/* libedit's contract: 1 with a character, 0 at the end of the input, -1 on an error. */
static int get_char(EditLine *el, wchar_t *out)
{
    void *e = NULL;
    mbstate_t state;
    memset(&state, 0, sizeof state);
    el_wget(el, EL_CLIENTDATA, &e);
    for (;;) {
        char byte;
        if (!line_await_input(&((struct edited *)e)->reader)) {
            return -1;
        }
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0) {
            return (int)n;
        }
        const size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-1) {
            *out = 0xFFFD;
            return 1;
        }
        if (used != (size_t)-2) { // -2: the character is incomplete
            return 1;
        }
    }
}

/* Appends text in the locale's encoding. Characters that it cannot express are dropped. */
static void put_wide(struct buf *out, const wchar_t *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char bytes[16];
        mbstate_t state;
        memset(&state, 0, sizeof state);
        const size_t used = wcrtomb(bytes, text[i], &state);
        buf_put(out, bytes, used == (size_t)-1 ? 0 : used);
    }
}

/* Reads a line. After an interrupt the result says whether anything had been typed. */
static enum line_result read_edited(struct line_reader *r, const char *prompt, struct buf *out)
{
    struct edited *e = (struct edited *)r;
    int n = 0;
    swprintf(e->prompt, sizeof e->prompt / sizeof e->prompt[0], L"%.60hs", prompt);
    el_wset(e->el, EL_PREP_TERM, 1); // before the prompt, because the user may type as soon as it
                                     // appears
    const wchar_t *text = el_wgets(e->el, &n);
    if (*r->interrupt) {
        const LineInfoW *line = el_wline(e->el);
        puts("^C");
        if (line->lastchar == line->buffer) {
            return LINE_INTERRUPTED_EMPTY;
        }
        return LINE_INTERRUPTED;
    }
    if (!text || n <= 0) {
        putchar('\n'); // the cursor is after the prompt
        return LINE_END;
    }
    put_wide(out, text, (size_t)n - (text[n - 1] == L'\n'));
    return LINE_OK;
}

/* The history keeps each message for the arrow keys. */
static void remember(struct line_reader *r, const char *line)
{
    struct edited *e = (struct edited *)r;
    const size_t n = strlen(line) + 1;
    wchar_t *wide = xcalloc(n, sizeof *wide);
    HistEventW event;
    if (mbstowcs(wide, line, n) != (size_t)-1) {
        history_w(e->history, &event, H_ENTER, wide);
    }
    free(wide);
}

static void close_edited(struct line_reader *r)
{
    struct edited *e = (struct edited *)r;
    el_end(e->el);
    history_wend(e->history);
    free(e);
}

/* libedit decodes characters by the locale; if that is not UTF-8, use C.UTF-8. */
static bool set_locale(void)
{
    return (setlocale(LC_CTYPE, "") && MB_CUR_MAX > 1) || setlocale(LC_CTYPE, "C.UTF-8");
}

/* NULL: this terminal does not support editing, and the caller must read plain lines. */
struct line_reader *line_open_edited(const volatile sig_atomic_t *interrupt)
{
    const char *term = getenv("TERM");
    if (!term || !*term || strcmp(term, "dumb") == 0 || !set_locale()) {
        return NULL;
    }
    struct edited *e = xcalloc(1, sizeof *e);
    HistEventW event;
    e->reader = (struct line_reader){
        .read = read_edited, .remember = remember, .close = close_edited, .interrupt = interrupt};
    e->el = el_init("sluice", stdin, stdout, stderr);
    e->history = history_winit();
    if (!e->el || !e->history) { // cannot edit
        free(e);
        return NULL;
    }
    history_w(e->history, &event, H_SETSIZE, KEPT_LINES);
    history_w(e->history, &event, H_SETUNIQUE, 1);
    el_wset(e->el, EL_CLIENTDATA, e);
    el_wset(e->el, EL_PROMPT, show_prompt);
    el_wset(e->el, EL_EDITOR, L"emacs");
    el_wset(e->el, EL_HIST, history_w, e->history);
    el_wset(e->el, EL_GETCFN, get_char);
    return &e->reader;
}
