// SPDX-License-Identifier: Apache-2.0
/* Formats of structural tags that are grammars of another kind: expressions, GBNF, Lark, schemas.
 * This file reads them, and writes them (grammar_put_tag). */
#include "engine/base/buf.h"
#include "engine/grammar/tags.h"

#include <string.h>

enum status tags_regex(struct tags *t, const struct tree_value *node, const struct bars *bars,
                       uint32_t *e)
{
    const struct tree_value *v;
    (void)bars;
    TRY(tags_check_keys(t, node, "type pattern"));
    TRY(tags_member(t, node, "pattern", JSON_STRING, &v));
    return tags_placed(t,
                       regex_language(t->x, v->text, v->n_text, REGEX_UNICODE,
                                      regex_limits_of(t->c->limits), e, t->c->err),
                       v);
}

/* The kind that "syntax" names: any whose text is not JSON. Without it, the text shows whether it
 * is GBNF. */
static enum status find_syntax(struct tags *t, const struct tree_value *node, const char *text,
                               enum grammar_kind *kind)
{
    const struct tree_value *syntax = tree_get(node, "syntax");
    if (!syntax) {
        *kind = strstr(text, "::=") ? GRAMMAR_GBNF : GRAMMAR_LARK;
        return OK;
    }
    for (int k = 0; k < GRAMMAR_N_KINDS; k++) {
        *kind = (enum grammar_kind)k;
        if (!grammar_is_json(*kind) && tree_is_string(syntax, grammar_kind_names[k])) {
            return OK;
        }
    }
    return tags_fail(t, ERR_UNSUPPORTED, node, "no such \"syntax\"");
}

enum status tags_grammar(struct tags *t, const struct tree_value *node, const struct bars *bars,
                         uint32_t *e)
{
    const struct tree_value *v;
    (void)bars;
    TRY(tags_check_keys(t, node, "type grammar syntax"));
    TRY(tags_member(t, node, "grammar", JSON_STRING, &v));
    struct grammar_source source = {.text = v->text, .n_bytes = v->n_text};
    struct compile c = *t->c;
    TRY(find_syntax(t, node, v->text, &source.kind));
    c.source = &source;
    return tags_placed(t, c.parsers[source.kind](&c, e), v);
}

enum status tags_style(struct tags *t, const struct tree_value *node, const struct style **style)
{
    const struct tree_value *v = tree_get(node, "style");
    if (v && v->type == JSON_STRING) {
        *style = style_find(v->text, v->n_text);
    } else {
        *style = NULL;
    }
    if (!v) {
        *style = style_json();
    }
    if (*style) {
        return OK;
    }
    return tags_fail(t, ERR_UNSUPPORTED, node, "no such \"style\"");
}

enum status tags_schema(struct tags *t, const struct tree_value *node, const struct bars *bars,
                        uint32_t *e)
{
    const struct tree_value *v = tree_get(node, "json_schema");
    const struct tree_value *space = tree_get(node, "whitespace_pattern");
    struct compile c = *t->c;
    struct grammar_source source = *t->c->source;
    (void)bars;
    TRY(tags_check_keys(t, node,
                        "type json_schema style only_object skip_names disable_any_whitespace "
                        "whitespace_pattern"));
    TRY(tags_style(t, node, &c.style));
    if (!v) {
        return tags_fail(t, ERR_INVALID, node, "\"json_schema\" is missing");
    }
    c.only_object = tags_flag(node, "only_object");
    c.skip_names = tags_flag(node, "skip_names");
    source.disable_any_whitespace |= tags_flag(node, "disable_any_whitespace");
    if (space && space->type == JSON_STRING) {
        source.whitespace_pattern = space->text;
    }
    c.source = &source;
    return tags_placed(t, schema_parse_at(&c, t->tree, v, e), v);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_schema(const struct grammar_source *s, struct buf *out)
{
    buf_puts(out, "{\"type\":\"json_schema\",\"json_schema\":");
    buf_put(out, s->text, s->n_bytes);
    if (s->disable_any_whitespace) {
        buf_puts(out, ",\"disable_any_whitespace\":true");
    }
    if (s->whitespace_pattern) {
        buf_puts(out, ",\"whitespace_pattern\":");
        buf_put_json(out, s->whitespace_pattern, strlen(s->whitespace_pattern));
    }
    buf_putc(out, '}');
}

void grammar_put_tag(const struct grammar_source *s, struct buf *out)
{
    switch (s->kind) {
    case GRAMMAR_SCHEMA: put_schema(s, out); return;
    case GRAMMAR_TAGS:
        buf_puts(out, "{\"type\":\"sequence\",\"elements\":[");
        buf_put(out, s->text, s->n_bytes);
        buf_puts(out, "]}");
        return;
    case GRAMMAR_REGEX:
    case GRAMMAR_GBNF:
    case GRAMMAR_LARK:
        buf_printf(out, "{\"type\":\"grammar\",\"syntax\":\"%s\",\"grammar\":",
                   grammar_kind_names[s->kind]);
        buf_put_json(out, s->text, s->n_bytes);
        buf_putc(out, '}');
        return;
    case GRAMMAR_N_KINDS: return;
    }
}
