// SPDX-License-Identifier: Apache-2.0
/* The styles in which model families write the arguments of a call. */
#include "engine/grammar/style.h"

#include <string.h>

#define JSON_WORDS .words = {"null", "true", "false"}

/* Styles with tags around each parameter, and unquoted strings. A name must not contain what may
 * begin a tag, or end its own. */
#define TAGS(its_key, its_colon, its_end, its_bar, its_name_bars)                                  \
    JSON_WORDS, .has_outer = true, .open = "", .close = "", .key = its_key, .colon = its_colon,    \
        .comma = "", .value_end = its_end, .bar = its_bar, .is_bare = true,                        \
        .name_bars = its_name_bars

#define GEMMA(its_quote)                                                                           \
    JSON_WORDS, .quote = its_quote, .bare_names = true, .name_bars = ":{}[],", .name_edges = " ",  \
        .compact = true, .has_outer = true, .open = "{", .close = "}", .key = "", .colon = ":",    \
        .comma = ",", .value_end = ""

#define MINIMAX "]<]minimax[>["
#define BARRED(word) "\xEF\xBD\x9C" word "\xEF\xBD\x9C"
#define BARRED_TAGS(token)                                                                         \
    TAGS("<" token "parameter name=\"", "\" string=\"", "</" token "parameter>\n",                 \
         "</" token "parameter>", "<\""),                                                          \
        .types = {"true\">", "false\">", "false\">", "false\">", "false\">", "false\">"}

/* The first names are this project's; "..._xml" are those of xgrammar's structural tags. */
static const struct style styles[] = {
    {.name = "json", JSON_WORDS},
    {.name = "qwen_xml", TAGS("<parameter=", ">\n", "\n</parameter>\n", "</parameter>", "<>")},
    {.name = "seed_xml", TAGS("<parameter=", ">", "</parameter>\n", "</parameter>", "<>")},
    {.name = "minimax_xml",
     TAGS("<parameter name=\"", "\">", "</parameter>\n", "</parameter>", "<\"")},
    {.name = "minicpm_xml", TAGS("<param name=\"", "\">", "</param>", "</param>", "<\"")},
    {.name = "glm_xml",
     TAGS("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</arg_value>", "<")},
    {.name = "deepseek_xml", BARRED_TAGS(BARRED("DSML"))},
    {.name = "gigachat_xml", BARRED_TAGS(BARRED("GCML"))},
    {.name = "step_xml",
     TAGS("<steptml:parameter name=\"", "\">", "</steptml:parameter>", "</steptml:parameter>",
          "<\"")},
    {.name = "muse_xml",
     TAGS("<atem:parameter name=\"", "\">", "</atem:parameter>\n", "</atem:parameter>", "<\"")},
    {.name = "solar_xml",
     TAGS("<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>\n", "<|tool_arg:end|>",
          "<")},
    {.name = "kimi_k3_xml",
     TAGS("<|open|>argument key=\"", "\" type=\"", "<|close|>argument<|sep|>",
          "<|close|>argument<|sep|>", "<\""),
     .types = {"string\"<|sep|>", "number\"<|sep|>", "boolean\"<|sep|>", "null\"<|sep|>",
               "object\"<|sep|>", "array\"<|sep|>"}},
    {.name = "minimax_m3",
     TAGS(MINIMAX "<", ">", MINIMAX "</", MINIMAX, ">"),
     .name_edges = "/",
     .compact = true,
     .elements = true},
    {.name = "python",
     .words = {"None", "True", "False"},
     .word_names = true,
     .has_outer = true,
     .open = "",
     .close = "",
     .key = "",
     .colon = "=",
     .comma = ", ",
     .value_end = ""},
    {.name = "gemma4", GEMMA("<|\"|>")},
    {.name = "functiongemma", GEMMA("<escape>")},
};

static bool is_word(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = name[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (i == 0 || !((c >= '0' && c <= '9') || c == '.' || c == '-'))) {
            return false;
        }
    }
    return true;
}

bool style_reads_name(const struct style *s, const char *name, size_t n)
{
    if (n == 0 || n > STYLE_NAME_MAX_BYTES || (s->word_names && !is_word(name, n))) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const char c = name[i];
        const bool edge = i == 0 || i == n - 1;
        if ((unsigned char)c < ' ' || (s->name_bars && strchr(s->name_bars, c)) ||
            (edge && s->name_edges && strchr(s->name_edges, c))) {
            return false;
        }
    }
    return true;
}

const struct style *style_json(void)
{
    return &styles[0];
}

const struct style *style_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
        if (strlen(styles[i].name) == n && memcmp(styles[i].name, name, n) == 0) {
            return &styles[i];
        }
    }
    return NULL;
}
