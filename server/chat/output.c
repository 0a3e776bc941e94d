// SPDX-License-Identifier: Apache-2.0
/* From tokens to what the client sees: detokenizing, stop strings, then reasoning and tool
 * calls. Text is held back only as long as it may become part of a stop string or a
 * marker. */
#include "server/chat/output.h"
#include "engine/base/minmax.h"

#include <string.h>

/* Arbitrary: limit of text that is held back because it may become a stop string or a call. */
enum { HELD_MAX_BYTES = 16 << 20 };

/* Passes text other than reasoning to the tool parser, if there is one. */
static void put_content(void *arg, const char *text, size_t n_bytes)
{
    struct output *o = arg;
    if (o->parser) {
        tool_parse_text(&o->parse, text, n_bytes);
    } else {
        o->sink.on_text(o->sink.arg, text, n_bytes);
    }
}

/* If the reasoning comes again, text that the tool parser holds came before. */
static void put_reasoning(void *arg, const char *text, size_t n_bytes)
{
    struct output *o = arg;
    if (o->parser && o->split.next) {
        tool_parse_next(&o->parse);
    }
    o->sink.on_reasoning(o->sink.arg, text, n_bytes);
}

/* A model whose format includes reasoning (Harmony) needs its parser for that, even without tools.
 */
void output_init(struct output *o, const struct output_options *options,
                 const struct tool_sink *sink)
{
    *o = (struct output){.options = options, .sink = *sink, .stop_index = -1};
    buf_init(&o->text, HELD_MAX_BYTES);
    if (options->tok) {
        detok_init(&o->detok, options->tok, options->skip_special);
    }
    const struct tool_parser *own = reasoning_parser(options->reasoning);
    o->parser = own ? own : options->parser;
    if (o->parser) {
        struct tool_sink to = o->sink;
        // reasoning is not reported separately
        if (!own) {
            to.on_reasoning = to.on_text;
        }
        tool_parse_init(&o->parse, o->parser, options->parser ? options->tools : NULL, to);
        o->parse.in_items = options->in_items;
        if (own && own->reasoning &&
            options->starts_in_reasoning) { // the parser needs the opening marker, which is
                                            // in the prompt
            tool_parse_text(&o->parse, own->reasoning, strlen(own->reasoning));
        }
    }
    reasoning_split_init(
        &o->split, options->reasoning, options->starts_in_reasoning,
        o->parser ? o->parser->ends_reasoning : NULL,
        (struct tool_sink){.on_text = put_content, .on_reasoning = put_reasoning, .arg = o});
    o->split.in_call = &o->parse.in_call;
}

void output_deinit(struct output *o)
{
    buf_deinit(&o->text);
    reasoning_split_deinit(&o->split);
    tool_parse_deinit(&o->parse);
}

/* The index of the longest stop string that ends at `end`, or -1. */
static int stop_at(const struct output *o, size_t end)
{
    int found = -1;
    size_t longest = 0;
    for (size_t i = 0; i < o->options->n_stop; i++) {
        const char *stop = o->options->stop[i];
        size_t n = o->options->stop_bytes[i];
        if (n > longest && n <= end && o->text.data[end - 1] == stop[n - 1] &&
            memcmp(o->text.data + end - n, stop, n) == 0) {
            found = (int)i;
            longest = n;
        }
    }
    return found;
}

/* Finds the stop string that ends first. Returns its index or -1; *end is the position after it.
 * Text is searched only once, so the cost per token is proportional to its length. */
static int find_stop(const struct output *o, size_t *end)
{
    int found = -1;
    for (size_t e = o->n_searched + 1; found < 0 && e <= o->text.n_bytes; e++) {
        found = stop_at(o, e);
        *end = e;
    }
    return found;
}

/* The length of the text's end that could be the beginning of a stop string. */
static size_t undecided(const struct output *o)
{
    size_t most = 0;
    for (size_t i = 0; i < o->options->n_stop; i++) {
        const char *stop = o->options->stop[i];
        size_t n = o->options->stop_bytes[i] - 1;
        n = lesser(n, o->text.n_bytes);
        while (n > most && memcmp(o->text.data + o->text.n_bytes - n, stop, n) != 0) {
            n--;
        }
        most = greater(n, most);
    }
    return most;
}

/* Passes on text that can no longer be part of a stop string. */
static bool search(struct output *o, bool final)
{
    if (o->text.n_bytes == 0) {
        return true;
    }
    size_t end = 0;
    int found = o->options->n_stop > 0 ? find_stop(o, &end) : -1;
    if (found >= 0) {
        size_t keep = end;
        if (!o->options->include_stop) {
            keep = end - o->options->stop_bytes[found];
        }
        reasoning_split_text(&o->split, o->text.data, keep, false);
        buf_clear(&o->text);
        o->n_searched = 0;
        o->stopped = true;
        o->stop_index = found;
        return false;
    }
    size_t ready = o->text.n_bytes - (final ? 0 : undecided(o));
    reasoning_split_text(&o->split, o->text.data, ready, false);
    buf_consume(&o->text, ready);
    o->n_searched = o->text.n_bytes;
    return true;
}

/* Returns false once a stop string was found: the caller ends the sample. */
bool output_text(struct output *o, const char *text, size_t n_bytes)
{
    if (o->stopped) {
        return false;
    }
    buf_put(&o->text, text, n_bytes);
    o->n_bytes += n_bytes;
    return search(o, false);
}

/* The index of this token among the parser's markers; -1: it is not a marker. */
static int find_marker(const struct output *o, const char *text)
{
    for (int i = 0; o->parser && o->parser->markers[i]; i++) {
        if (strcmp(o->parser->markers[i], text) == 0) {
            return i;
        }
    }
    return -1;
}

/* Excludes stop strings that end within the text of the first min_tokens tokens; they may begin
 * there. */
static void skip_early(struct output *o)
{
    if (o->options->min_tokens > 0 && o->n_tokens <= o->options->min_tokens) {
        o->n_searched = o->text.n_bytes;
    }
}

/* True for markers that are needed even if special tokens are skipped. */
static bool is_marker(const struct output *o, const char *text)
{
    return find_marker(o, text) >= 0 || reasoning_is_marker(o->options->reasoning, text);
}

/* Special tokens are hidden, except markers that a parser needs. Exact parsers get a marker as one
 * byte, so that the same words in ordinary tokens are not mistaken for it. */
bool output_token(struct output *o, int32_t id)
{
    if (o->stopped) {
        return false;
    }
    size_t before = o->text.n_bytes, n;
    const char *text = tokenizer_token_text(o->options->tok, id, &n);
    int mark = text && o->parser && o->parser->exact ? find_marker(o, text) : -1;
    if (mark >= 0) {
        detok_flush(&o->detok, &o->text);
        buf_putc(&o->text, (char)(TOOL_MARK + mark));
    } else if (o->options->skip_special && tokenizer_is_special(o->options->tok, id)) {
        if (text && is_marker(o, text)) {
            detok_flush(&o->detok, &o->text);
            buf_put(&o->text, text, n);
        }
    } else {
        detok_push(&o->detok, id, &o->text);
    }
    o->n_bytes += o->text.n_bytes - before;
    o->n_tokens++;
    skip_early(o);
    bool was_inside = o->split.is_inside || o->parse.in_reasoning;
    bool go_on = search(o, false);
    o->n_reasoning_tokens += was_inside || o->split.is_inside || o->parse.in_reasoning;
    return go_on;
}

/* Text that was held back becomes content, since no more text follows. */
void output_finish(struct output *o)
{
    o->parse.cut = o->cut;
    if (!o->stopped && o->options->tok) {
        size_t before = o->text.n_bytes;
        detok_flush(&o->detok, &o->text);
        o->n_bytes += o->text.n_bytes - before;
        skip_early(o);
        search(o, false);
    }
    if (!o->stopped) {
        search(o, true);
    }
    reasoning_split_text(&o->split, "", 0, true);
    if (o->parser) {
        tool_parse_finish(&o->parse);
    }
}
