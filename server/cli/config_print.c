// SPDX-License-Identifier: Apache-2.0
/* Prints the help, and the effective configuration. */
#include "engine/base/optional.h"
#include "server/cli/config_load.h"
#include "server/cli/config_table.h"
#include "server/cli/config_value.h"

#include <string.h>

/* Compares printed values, because those of strings and lists are pointers. */
static bool is_default(const struct config *c, const struct option_row *row)
{
    struct buf now;
    buf_init(&now, 1 << 20);
    config_value_print(c, row, &now);
    const char *initial = or_empty(row->initial);
    struct config fresh = {0};
    struct buf then;
    buf_init(&then, 1 << 20);
    bool same = true;
    if (*initial) {
        config_value_set(&fresh, row, initial, NULL);
    }
    config_value_print(&fresh, row, &then);
    same = now.n_bytes == then.n_bytes &&
           memcmp(or_empty(now.data), or_empty(then.data), now.n_bytes) == 0;
    buf_deinit(&now);
    buf_deinit(&then);
    config_deinit(&fresh);
    return same;
}

enum { HELP_INDENT = 35, HELP_COLUMNS = 100 };

/* Writes a description in the right column of the help. Lines break at spaces and after '|'. */
static void put_wrapped(const char *text, struct buf *out)
{
    size_t column = HELP_INDENT, gap = 0;
    while (*text) {
        size_t n = strcspn(text, " |");
        n += text[n] == '|';
        if (column + gap + n > HELP_COLUMNS) {
            buf_printf(out, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
            gap = 0;
        }
        buf_printf(out, "%*s%.*s", (int)gap, "", (int)n, text);
        column += gap + n;
        text += n;
        gap = *text == ' ';
        text += gap;
    }
}

static void put_row_help(const struct option_row *row, struct buf *out)
{
    struct buf text;
    buf_init(&text, 1 << 16);
    buf_puts(&text, row->help);
    if (row->choices) {
        buf_printf(&text, " (%s)", row->choices);
    }
    if (row->initial && row->type != OPTION_BOOL) {
        buf_printf(&text, " [%s]", row->initial);
    }
    bool negatable = row->type == OPTION_BOOL && row->initial && row->initial[0] == 't';
    int column = (int)strlen(row->name) + (negatable ? 9 : 4);
    buf_printf(out, "  --%s%s", text_if(negatable, "[no-]"), row->name);
    if (column < HELP_INDENT) {
        buf_printf(out, "%*s", HELP_INDENT - column, "");
    } else {
        buf_printf(out, "\n%*s", HELP_INDENT, "");
    }
    put_wrapped(text.data, out);
    buf_putc(out, '\n');
    buf_deinit(&text);
}

/* Prints the help from the table: sections, and options with their defaults. */
void config_help(struct buf *out)
{
    buf_puts(out,
             "usage: sluice serve MODEL [OPTIONS]\n"
             "\n"
             "Every option can also be set in --config FILE, as a line 'max-model-len: 8192',\n"
             "and by an environment variable, SLUICE_MAX_MODEL_LEN for --max-model-len. Flags\n"
             "override variables, which override the file. Defaults are in brackets. Flags of\n"
             "vLLM that are not listed here are either ignored, which is logged, or refused\n"
             "with a reason, if they would change answers.\n");
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->section) {
            buf_printf(out, "\n%s:\n", row->section);
        }
        put_row_help(row, out);
    }
}

/* The output is a valid configuration file. Secrets are replaced, and options that are commands,
 * such as help, are left out. */
void config_print(const struct config *c, bool only_set, struct buf *out)
{
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->is_command) {
            continue;
        }
        bool initial = is_default(c, row);
        if (only_set && initial) {
            continue;
        }
        struct buf value;
        buf_init(&value, 1 << 20);
        config_value_print(c, row, &value);
        if (row->secret && value.n_bytes > 0) {
            buf_printf(out, "# %s: set, not shown\n", row->name);
        } else if (value.n_bytes == 0) {
            buf_printf(out, "# %s:\n", row->name);
        } else {
            buf_printf(out, "%s: %s%s\n", row->name, value.data, text_if(initial, "  # default"));
        }
        buf_deinit(&value);
    }
}
