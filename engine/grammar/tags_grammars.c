// SPDX-License-Identifier: Apache-2.0
/* Formats of structural tags that are grammars of another kind: expressions, GBNF, Lark,
 * schemas. */
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

enum status tags_grammar(struct tags *t, const struct tree_value *node, const struct bars *bars,
                         uint32_t *e)
{
    const struct tree_value *v;
    (void)bars;
    TRY(tags_check_keys(t, node, "type grammar syntax"));
    TRY(tags_member(t, node, "grammar", JSON_STRING, &v));
    const struct tree_value *syntax = tree_get(node, "syntax");
    bool gbnf = syntax ? tree_is_string(syntax, "gbnf") : strstr(v->text, "::=") != NULL;
    struct grammar_source source = {
        .kind = gbnf ? GRAMMAR_GBNF : GRAMMAR_LARK, .text = v->text, .n_bytes = v->n_text};
    struct compile c = *t->c;
    c.source = &source;
    return tags_placed(t, gbnf ? gbnf_parse(&c, e) : lark_parse(&c, e), v);
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
                        "type json_schema style only_object disable_any_whitespace "
                        "whitespace_pattern"));
    TRY(tags_style(t, node, &c.style));
    if (!v) {
        return tags_fail(t, ERR_INVALID, node, "\"json_schema\" is missing");
    }
    c.only_object = tags_flag(node, "only_object");
    source.disable_any_whitespace |= tags_flag(node, "disable_any_whitespace");
    if (space && space->type == JSON_STRING) {
        source.whitespace_pattern = space->text;
    }
    c.source = &source;
    return tags_placed(t, schema_parse_at(&c, t->tree, v, e), v);
}
