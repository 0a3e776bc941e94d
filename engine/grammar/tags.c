// SPDX-License-Identifier: Apache-2.0
/* Structural tags: JSON that combines free text, tags, schemas, expressions and grammars, in
 * xgrammar's format. Formats of tool calls, and of text before an answer, use it as well. */
#include "engine/grammar/tags.h"

#include "engine/base/optional.h"
#include "engine/grammar/escape.h"
#include "engine/grammar/spelling.h"

#include <stdlib.h>
#include <string.h>

enum { NUMBER_DIGITS = 9 };

/* ---- texts ---- */

enum status tags_text(struct tags *t, const struct tree_value *v, uint32_t *e)
{
    if (v->type != JSON_STRING) {
        return tags_fail(t, ERR_INVALID, v, "a text must be a string");
    }
    return tags_placed(t, spell_expr(t->c, v->text, v->n_text, e), v);
}

/* A special token, given by its id or its name. */
static enum status token(struct tags *t, const struct tree_value *v, uint32_t *e)
{
    if (v->type == JSON_STRING) {
        return tags_text(t, v, e);
    }
    char mark[VOCAB_MARK_BYTES];
    const struct grammar_vocab *vocab = t->c->vocab;
    int32_t id = -1;
    if (v->type == JSON_NUMBER && v->n_text <= NUMBER_DIGITS) {
        id = atoi(v->text);
    }
    if (!vocab || id < 0 || id >= vocab->n_ids || vocab->text_n[id] == 0) {
        return tags_fail(t, ERR_INVALID, v, "a grammar cannot use a token of this id");
    }
    const char *bytes = vocab->text + vocab->text_at[id];
    size_t n = vocab->text_n[id];
    if ((uint8_t)bytes[0] == VOCAB_MARK) {
        vocab_mark(id, mark);
        bytes = mark;
    }
    *e = expr_literal(t->x, bytes, n);
    return OK;
}

/* A text, or a format of type "token". */
static enum status text_or_token(struct tags *t, const struct tree_value *v, uint32_t *e)
{
    if (v->type != JSON_OBJECT) {
        return tags_text(t, v, e);
    }
    const struct tree_value *name = tree_get(v, "token");
    if (!tree_is_string(tree_get(v, "type"), "token") || !name) {
        return tags_fail(t, ERR_INVALID, v,
                         "a text, or a format of type \"token\", is expected here");
    }
    return token(t, name, e);
}

/* ---- free text ---- */

/* The words that free text must not contain. The lists of nested formats are chained. */
struct bars {
    const struct tree_value *list; // a list of strings, a string, or NULL
    const struct bars *more;
};

/* Adds a word that free text must not contain. Special tokens never occur in it anyway. */
static void bar(struct tags *t, const struct tree_value *v, uint32_t *words)
{
    if (v && v->type == JSON_STRING && v->n_text > 0) {
        *words = expr_alt2(t->x, *words, expr_literal(t->x, v->text, v->n_text));
    }
    if (v && v->type == JSON_OBJECT) { // it is a token
        bar(t, tree_get(v, "token"), words);
    }
}

/* Any text without the words that this format and the enclosing ones exclude. */
static uint32_t free_text(struct tags *t, const struct bars *bars, uint32_t any)
{
    struct exprs *x = t->x;
    uint32_t words = EXPR_NONE;
    for (; bars; bars = bars->more) {
        bar(t, bars->list, &words);
        bool is_list = bars->list && bars->list->type == JSON_ARRAY;
        for (const struct tree_value *v = is_list ? bars->list->first : NULL; v; v = v->next) {
            bar(t, v, &words);
        }
    }
    if (words == EXPR_NONE) {
        return any;
    }
    uint32_t has = expr_seq3(x, any, words, any);
    return expr_clean(x, expr_and2(x, any, expr_not(x, has)));
}

/* Free text, with limits on its words, its length and its beginning. */
static enum status any_text(struct tags *t, const struct tree_value *node, const struct bars *bars,
                            uint32_t *e)
{
    struct bars own = {tree_get(node, "excludes"), bars};
    const struct tree_value *most = tree_get(node, "max_chars");
    const struct tree_value *starts = tree_get(node, "starts_not");
    TRY(tags_check_keys(t, node, "type excludes max_chars starts_not any_bytes"));
    *e = free_text(t, &own, tags_any(t, node));
    if (starts && starts->type == JSON_STRING) {
        uint32_t begin;
        TRY(tags_placed(t,
                        regex_language(t->x, starts->text, starts->n_text, REGEX_UNICODE,
                                       regex_limits_of(t->c->limits), &begin, t->c->err),
                        starts));
        begin = expr_not(t->x, expr_seq(t->x, begin, tags_any(t, node)));
        *e = expr_clean(t->x, expr_and2(t->x, *e, begin));
    }
    if (most && most->type == JSON_NUMBER && most->n_text <= NUMBER_DIGITS) {
        uint32_t n = (uint32_t)strtoul(most->text, NULL, 10);
        *e = expr_clean(t->x, expr_and2(t->x, *e, expr_rep(t->x, t->x->any_char, 0, n)));
    } else if (most && most->type != JSON_NULL) {
        return tags_fail(t, ERR_INVALID, most, "\"max_chars\" must be a number");
    }
    return OK;
}

/* Text and special tokens, except for some of them. */
static enum status any_tokens(struct tags *t, const struct tree_value *node,
                              const struct bars *bars, uint32_t *e)
{
    struct exprs *x = t->x;
    const struct tree_value *but = tree_get(node, "exclude_tokens");
    struct bars own = {but, bars};
    TRY(tags_check_keys(t, node, "type exclude_tokens"));
    uint32_t rest =
        expr_rep(x, expr_byte_range(x, 0x80, 0xbf), VOCAB_MARK_BYTES - 1, VOCAB_MARK_BYTES - 1);
    uint32_t special = expr_seq(x, expr_byte(x, VOCAB_MARK), rest), words = EXPR_NONE;
    for (const struct tree_value *v = but ? but->first : NULL; v; v = v->next) {
        uint32_t one;
        TRY(token(t, v, &one));
        words = expr_alt2(x, words, one);
    }
    special = expr_clean(x, expr_and2(x, special, expr_not(x, words)));
    uint32_t text = free_text(t, &own, x->any_text);
    *e = expr_seq(x, text, expr_rep(x, expr_seq(x, special, text), 0, EXPR_INF));
    return OK;
}

/* ---- tags after triggers ---- */

/* Free text with embedded formats, each of which begins with one of the triggers. */
struct dispatch {
    const struct tree_value *triggers, *excludes;
    uint32_t one;  // any one of the formats
    bool once;     // nothing may follow the first format
    bool at_least; // there must be at least one format, at the very beginning
};

/* Free text with any number of tags in it. The text must not contain a trigger, because a trigger
 * begins a tag. */
static uint32_t dispatched(struct tags *t, const struct dispatch *d, const struct bars *bars)
{
    struct exprs *x = t->x;
    struct bars outer = {d->excludes, bars}, own = {d->triggers, &outer};
    uint32_t text = free_text(t, &own, x->any_text);
    uint32_t more = expr_rep(x, expr_seq(x, text, d->one), 0, EXPR_INF);
    if (d->at_least) {
        if (d->once) {
            return d->one;
        }
        return expr_seq3(x, d->one, more, text);
    }
    uint32_t first = expr_alt2(x, text, expr_seq(x, text, d->one));
    if (d->once) {
        return first;
    }
    return expr_seq(x, more, text);
}

/* Whether a tag begins with the trigger, as text or as a token. */
static bool begins_with(const struct tree_value *begin, const struct tree_value *trigger)
{
    const struct tree_value *name = begin;
    if (begin && begin->type == JSON_OBJECT) {
        name = tree_get(begin, "token");
    }
    if (!name || name->type != trigger->type) {
        return false;
    }
    return trigger->n_text <= name->n_text &&
           memcmp(trigger->text, name->text, trigger->n_text) == 0;
}

/* Any one of the tags. If there are triggers, each tag must begin with one of them. */
static enum status tag_list(struct tags *t, const struct tree_value *node,
                            const struct tree_value *triggers, uint32_t *e)
{
    const struct tree_value *tags;
    TRY(tags_member(t, node, "tags", JSON_ARRAY, &tags));
    *e = EXPR_NONE;
    for (const struct tree_value *v = tags->first; v; v = v->next) {
        const struct tree_value *trigger = triggers ? triggers->first : NULL;
        while (trigger && !begins_with(tree_get(v, "begin"), trigger)) {
            trigger = trigger->next;
        }
        if (triggers && !trigger) {
            return tags_fail(t, ERR_INVALID, v, "the tag begins with none of the triggers");
        }
        uint32_t one;
        TRY(tags_format(t, v, NULL, &one));
        *e = expr_alt2(t->x, *e, one);
    }
    if (tags->n > 0) {
        return OK;
    }
    return tags_fail(t, ERR_INVALID, tags, "there must be a tag");
}

/* xgrammar's triggered_tags; triggers may be words or tokens. */
static enum status triggered(struct tags *t, const struct tree_value *node, const struct bars *bars,
                             uint32_t *e)
{
    const char *key;
    if (tree_get(node, "trigger_tokens")) {
        key = "trigger_tokens";
    } else {
        key = "triggers";
    }
    struct dispatch d = {.at_least = tags_flag(node, "at_least_one"),
                         .once = tags_flag(node, "stop_after_first")};
    TRY(tags_check_keys(t, node,
                        "type triggers trigger_tokens tags at_least_one stop_after_first "
                        "excludes exclude_tokens"));
    TRY(tags_member(t, node, key, JSON_ARRAY, &d.triggers));
    if (d.triggers->n == 0) {
        return tags_fail(t, ERR_INVALID, d.triggers, "there must be a trigger");
    }
    d.excludes = tree_get(node, "excludes");
    if (!d.excludes) {
        d.excludes = tree_get(node, "exclude_tokens");
    }
    TRY(tag_list(t, node, d.triggers, &d.one));
    *e = dispatched(t, &d, bars);
    return OK;
}

/* "rules": [[text, format], ...] */
static enum status dispatch(struct tags *t, const struct tree_value *node, const struct bars *bars,
                            uint32_t *e)
{
    const struct tree_value *rules, *loop = tree_get(node, "loop");
    struct dispatch d = {.one = EXPR_NONE, .once = loop && !tags_flag(node, "loop")};
    TRY(tags_check_keys(t, node, "type rules loop excludes exclude_tokens"));
    TRY(tags_member(t, node, "rules", JSON_ARRAY, &rules));
    struct tree_value *words = tree_new(t->tree, JSON_ARRAY, node);
    for (const struct tree_value *v = rules->first; words && v; v = v->next) {
        uint32_t begin, rest;
        if (v->type != JSON_ARRAY || v->n != 2) {
            return tags_fail(t, ERR_INVALID, v, "a rule must be a text and a format");
        }
        TRY(token(t, v->first, &begin));
        TRY(tags_format(t, v->last, NULL, &rest));
        d.one = expr_alt2(t->x, d.one, expr_seq(t->x, begin, rest));
        if (!tree_put(t->tree, words, NULL, 0, v->first)) {
            words = NULL;
        }
    }
    if (!words || rules->n == 0) {
        return tags_fail(t, ERR_INVALID, rules, "the list of rules is empty or too long");
    }
    d.triggers = words;
    d.excludes = tree_get(node, "excludes");
    *e = dispatched(t, &d, bars);
    return OK;
}

/* Tags with a separator between them, and no other text. */
static enum status separated(struct tags *t, const struct tree_value *node, const struct bars *bars,
                             uint32_t *e)
{
    const struct tree_value *separator;
    uint32_t one, between;
    (void)bars;
    TRY(tags_check_keys(t, node, "type tags separator at_least_one stop_after_first"));
    TRY(tags_member(t, node, "separator", JSON_STRING, &separator));
    TRY(tags_text(t, separator, &between));
    TRY(tag_list(t, node, NULL, &one));
    uint32_t more = expr_rep(t->x, expr_seq(t->x, between, one), 0, EXPR_INF);
    if (tags_flag(node, "stop_after_first")) {
        *e = one;
    } else {
        *e = expr_seq(t->x, one, more);
    }
    if (!tags_flag(node, "at_least_one")) {
        *e = expr_optional(t->x, *e);
    }
    return OK;
}

/* ---- containers ---- */

/* The content must not contain the end, because the tag would end early. */
static enum status tag(struct tags *t, const struct tree_value *node, const struct bars *bars,
                       uint32_t *e)
{
    const struct tree_value *begin = tree_get(node, "begin"), *end = tree_get(node, "end"), *in;
    struct bars own = {end, NULL};
    uint32_t first, last = EXPR_NONE, one;
    (void)bars;
    TRY(tags_check_keys(t, node, "type begin content end"));
    if (!begin || !end) {
        return tags_fail(t, ERR_INVALID, node, "a tag needs \"begin\", \"content\" and \"end\"");
    }
    TRY(text_or_token(t, begin, &first));
    TRY(tags_member(t, node, "content", JSON_OBJECT, &in));
    if (end->type != JSON_ARRAY) {
        TRY(text_or_token(t, end, &last));
    }
    for (const struct tree_value *v = end->type == JSON_ARRAY ? end->first : NULL; v; v = v->next) {
        TRY(text_or_token(t, v, &one));
        last = expr_alt2(t->x, last, one);
    }
    TRY(tags_format(t, in, &own, e));
    *e = expr_seq3(t->x, first, *e, last);
    return OK;
}

/* A sequence, or alternatives. */
static enum status elements(struct tags *t, const struct tree_value *node, const struct bars *bars,
                            uint32_t *e)
{
    const struct tree_value *list;
    bool all = tree_is_string(tree_get(node, "type"), "sequence");
    TRY(tags_check_keys(t, node, "type elements"));
    TRY(tags_member(t, node, "elements", JSON_ARRAY, &list));
    uint32_t *part = calloc(list->n + 1, sizeof *part), n = 0;
    enum status st = part ? OK : ERR_NOMEM;
    for (const struct tree_value *v = list->first; v && st == OK; v = v->next) {
        st = tags_format(t, v, all && v->next ? NULL : bars, &part[n++]);
    }
    *e = all ? (uint32_t)EXPR_EMPTY : (uint32_t)EXPR_NONE;
    while (st == OK && n-- > 0) {
        if (all) {
            *e = expr_seq(t->x, part[n], *e);
        } else {
            *e = expr_alt2(t->x, part[n], *e);
        }
    }
    free(part);
    return st;
}

/* optional, star, plus and repeat; max -1 means no limit. */
static enum status repeated(struct tags *t, const struct tree_value *node, const struct bars *bars,
                            uint32_t *e)
{
    const struct tree_value *in, *type = tree_get(node, "type"), *lo, *hi;
    uint32_t min = tree_is_string(type, "plus"), max = EXPR_INF;
    if (tree_is_string(type, "optional")) {
        max = 1;
    }
    TRY(tags_check_keys(t, node, "type content min max"));
    TRY(tags_member(t, node, "content", JSON_OBJECT, &in));
    if (tree_is_string(type, "repeat")) {
        TRY(tags_member(t, node, "min", JSON_NUMBER, &lo));
        TRY(tags_member(t, node, "max", JSON_NUMBER, &hi));
        if (lo->n_text > NUMBER_DIGITS || hi->n_text > NUMBER_DIGITS || lo->text[0] == '-') {
            return tags_fail(t, ERR_INVALID, node, "\"min\" and \"max\" must be counts");
        }
        min = (uint32_t)atoi(lo->text);
        max = atoi(hi->text) < 0 ? EXPR_INF : (uint32_t)atoi(hi->text);
        if (min > max || min > t->c->limits->max_repeat) {
            return tags_fail(t, ERR_LIMIT, node, "\"min\" is too large");
        }
    }
    TRY(tags_format(t, in, bars, e));
    *e = expr_rep(t->x, *e, min, max);
    return OK;
}

/* ---- constants ---- */

static enum status const_string(struct tags *t, const struct tree_value *node,
                                const struct bars *bars, uint32_t *e)
{
    const struct tree_value *v;
    (void)bars;
    TRY(tags_check_keys(t, node, "type value"));
    TRY(tags_member(t, node, "value", JSON_STRING, &v));
    return tags_text(t, v, e);
}

static enum status one_token(struct tags *t, const struct tree_value *node, const struct bars *bars,
                             uint32_t *e)
{
    const struct tree_value *v = tree_get(node, "token");
    (void)bars;
    TRY(tags_check_keys(t, node, "type token"));
    if (v) {
        return token(t, v, e);
    }
    return tags_fail(t, ERR_INVALID, node, "\"token\" is missing");
}

/* An object of a style with exactly one parameter, a string whose text is of any format. */
static enum status text_argument(struct tags *t, const struct tree_value *node,
                                 const struct bars *bars, uint32_t *e)
{
    const struct tree_value *name, *in;
    const struct style *s;
    uint32_t text, before, after;
    struct buf head;
    (void)bars;
    TRY(tags_check_keys(t, node, "type name style content"));
    TRY(tags_style(t, node, &s));
    TRY(tags_member(t, node, "name", JSON_STRING, &name));
    TRY(tags_member(t, node, "content", JSON_OBJECT, &in));
    TRY(tags_format(t, in, NULL, &text));
    const char *quote = or_empty(s->quote);
    bool escapes = !s->is_bare && !s->quote;
    const char *type = or_empty(s->types[STYLE_STRING]);
    buf_init(&head, 1 << 16);
    if (s->has_outer) {
        buf_printf(&head, "%s%s%s%s%s%s", s->open, s->key, name->text, s->colon, type, quote);
    } else {
        buf_printf(&head, "{\"%s\": ", name->text);
    }
    enum status st = spell_expr(t->c, head.data, head.n_bytes, &before);
    buf_clear(&head);
    buf_printf(&head, "%s%s", quote, s->has_outer ? s->value_end : "");
    if (s->elements) {
        buf_printf(&head, "%s>", name->text);
    }
    if (s->has_outer) {
        buf_puts(&head, s->close);
    } else {
        buf_puts(&head, "}");
    }
    if (st == OK) {
        st = spell_expr(t->c, head.data, head.n_bytes, &after);
    }
    buf_deinit(&head);
    TRY(tags_placed(t, st, node));
    if (escapes && !escape_json(t->x, t->c->rules, text, &text)) {
        return tags_fail(t, ERR_UNSUPPORTED, in, "JSON within a text is not supported");
    }
    *e = expr_seq3(t->x, before, text, after);
    return OK;
}

/* ---- formats by name ---- */

/* {"type": "defined", "name": NAME} is one of the root's "definitions", which become rules. */
static enum status defined(struct tags *t, const struct tree_value *node, const struct bars *bars,
                           uint32_t *e)
{
    const struct tree_value *name, *all = tree_get(t->tree->root, "definitions");
    uint32_t i = 0;
    (void)bars;
    TRY(tags_check_keys(t, node, "type name"));
    TRY(tags_member(t, node, "name", JSON_STRING, &name));
    const struct tree_value *v = all ? all->first : NULL;
    while (v && (v->n_key != name->n_text || memcmp(v->key, name->text, v->n_key) != 0)) {
        v = v->next;
        i++;
    }
    if (!v || i >= TAGS_DEFINITIONS) {
        return tags_fail(t, ERR_INVALID, node, "no definition of this name");
    }
    // Set before the body is parsed, because the body may refer to this definition.
    if (!t->rule[i]) {
        t->rule[i] = rules_add(t->c->rules) + 1;
        uint32_t body;
        TRY(tags_format(t, v, NULL, &body));
        t->c->rules->v[t->rule[i] - 1].body = body;
    }
    *e = expr_call(t->x, t->rule[i] - 1);
    return OK;
}

static enum status structures(struct tags *t, const struct tree_value *root, uint32_t *e);

/* A structural tag inside another. */
static enum status nested(struct tags *t, const struct tree_value *node, const struct bars *bars,
                          uint32_t *e)
{
    const struct tree_value *format;
    if (tree_get(node, "structures")) {
        return structures(t, node, e);
    }
    TRY(tags_check_keys(t, node,
                        node == t->tree->root ? "type format definitions" : "type format"));
    TRY(tags_member(t, node, "format", JSON_OBJECT, &format));
    return tags_format(t, format, bars, e);
}

/* ---- dispatch by type ---- */

/* Compiles a format, by the name of its type. For an unknown type, the error names it. */
enum status tags_format(struct tags *t, const struct tree_value *node, const struct bars *bars,
                        uint32_t *e)
{
    static const struct {
        const char *type;
        enum status (*read)(struct tags *t, const struct tree_value *node, const struct bars *bars,
                            uint32_t *e);
    } rows[] = {
        {"any_text", any_text},
        {"any_tokens", any_tokens},
        {"const_string", const_string},
        {"defined", defined},
        {"dispatch", dispatch},
        {"grammar", tags_grammar},
        {"json_schema", tags_schema},
        {"optional", repeated},
        {"or", elements},
        {"plus", repeated},
        {"regex", tags_regex},
        {"repeat", repeated},
        {"sequence", elements},
        {"star", repeated},
        {"structural_tag", nested},
        {"tag", tag},
        {"tags_with_separator", separated},
        {"text_argument", text_argument},
        {"token", one_token},
        {"token_dispatch", dispatch},
        {"token_triggered_tags", triggered},
        {"triggered_tags", triggered},
    };
    const struct tree_value *type = tree_get(node, "type");
    if (!type || type->type != JSON_STRING) {
        bool is_tag = tree_get(node, "begin") != NULL; // in a list of tags the type may be omitted
        if (is_tag) {
            return tag(t, node, bars, e);
        }
        return tags_fail(t, ERR_INVALID, node, "a format must have a \"type\"");
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (tree_is_string(type, rows[i].type)) {
            if (!exprs_spend(t->x, 10)) {
                return tags_fail(t, ERR_LIMIT, node, "the tags are too complex");
            }
            return rows[i].read(t, node, bars, e);
        }
    }
    return tags_fail(t, ERR_UNSUPPORTED, node, "there is no format of type \"%.60s\"", type->text);
}

/* The older format: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}. */
static enum status structures(struct tags *t, const struct tree_value *root, uint32_t *e)
{
    struct dispatch d = {.one = EXPR_NONE};
    const struct tree_value *list;
    TRY(tags_member(t, root, "structures", JSON_ARRAY, &list));
    TRY(tags_member(t, root, "triggers", JSON_ARRAY, &d.triggers));
    for (const struct tree_value *v = list->first; v; v = v->next) {
        const struct tree_value *begin, *end, *in = tree_get(v, "schema");
        uint32_t first, last, one;
        TRY(tags_member(t, v, "begin", JSON_STRING, &begin));
        TRY(tags_member(t, v, "end", JSON_STRING, &end));
        TRY(tags_text(t, begin, &first));
        TRY(tags_text(t, end, &last));
        if (!in) {
            return tags_fail(t, ERR_INVALID, v, "\"schema\" is missing");
        }
        TRY(tags_placed(t, schema_parse_at(t->c, t->tree, in, &one), in));
        d.one = expr_alt2(t->x, d.one, expr_seq3(t->x, first, one, last));
    }
    *e = dispatched(t, &d, NULL);
    return OK;
}

/* In the older form, "structures" and triggers are at the root. */
static enum status parse(struct tags *t, uint32_t *start)
{
    const struct tree_value *root = t->tree->root;
    bool whole = tree_get(root, "structures") || tree_get(root, "format");
    if (whole) {
        return nested(t, root, NULL, start);
    }
    return tags_format(t, root, NULL, start);
}

enum status tags_parse(struct compile *c, uint32_t *start)
{
    struct tree tree = {0};
    const struct grammar_limits *l = c->limits;
    enum status st =
        tree_read(&tree, c->source->text, c->source->n_bytes, l->max_depth, l->max_nodes, c->err);
    if (st == OK) {
        struct tags t = {.c = c, .x = c->x, .tree = &tree};
        tree.max_values *= 2; // room for the expansions of keywords
        st = parse(&t, start);
    }
    tree_deinit(&tree);
    return st;
}
