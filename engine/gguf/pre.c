// SPDX-License-Identifier: Apache-2.0
/* How byte-level vocabularies split text, by the names that llama.cpp's converter gives to
 * tokenizers. Each name stands for the pre-tokenizer in that model's tokenizer.json. To add one,
 * add a row. */
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/gguf/make.h"

#include <string.h>

#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BEHIND_WORDS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define BY_THREE SHORT_FORMS WORDS "|\\p{N}{1,3}" BEHIND_WORDS
#define BY_ONE SHORT_FORMS WORDS "|\\p{N}" BEHIND_WORDS
#define WITH_MARKS                                                                                 \
    SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                                    \
                "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LARGE "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEHIND_CASES "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K                                                                                      \
    LARGE "*" SMALL "+" SHORT_FORMS "?|" LARGE "+" SMALL "*" SHORT_FORMS                           \
          "?|\\p{N}{1,3}" BEHIND_CASES
#define TEKKEN LARGE "*" SMALL "+|" LARGE "+" SMALL "*|\\p{N}" BEHIND_CASES
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK                                                                                   \
    "[!\"#$%&'()*+,\\-./"                                                                          \
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"               \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LARGE_BUT_HAN "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define SMALL_BUT_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI                                                                                       \
    "\\p{Han}+|" LARGE_BUT_HAN "*" SMALL_BUT_HAN "+" SHORT_FORMS "?|" LARGE_BUT_HAN                \
    "+" SMALL_BUT_HAN "*" SHORT_FORMS "?|\\p{N}{1,3}" BEHIND_WORDS
#define SPACED_WORDS                                                                               \
    SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}"              \
                "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
/* Letters of alphabets with cases. */
#define CASED                                                                                      \
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"                \
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"           \
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"  \
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"               \
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"          \
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"         \
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"          \
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"    \
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"           \
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"               \
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"            \
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"         \
    "\U0001e900-\U0001e943"
#define MARKS "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
#define CJK "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
#define CJK_AND_HANGUL "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
#define SEED                                                                                       \
    SHORT_FORMS WORDS "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define BAILING                                                                                    \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"  \
    "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"

/* Long runs of spaces are cut into powers of two. */
#define JAIS2                                                                                      \
    SHORT_FORMS WORDS                                                                              \
        "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"                                \
        "|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)"           \
        "|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"
/* Digits in groups of three, counted from the end of the number. */
#define THREES "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))"
/* Scripts that write words without spaces. */
#define UNSPACED                                                                                   \
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf" \
    "\u0e00-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff"               \
    "\uac00-\ud7af\u1100-\u11ff]+"

/* Falcon looks for numbers among the characters that stand for bytes. */
#define FALCON                                                                                     \
    "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"},"                                      \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"                    \
    "\"use_regex\":true},"                                                                         \
    "{\"type\":\"Digits\",\"individual_digits\":false},"                                           \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[0-9][0-9][0-9]\"},"                             \
    "\"behavior\":\"Isolated\",\"invert\":false}"

enum { MAX_SPLITS = 5 };

/* Text is split by each pattern in turn; then into single digits; then, if `words` is set, by
 * GPT-2's pattern. */
struct gguf_pre {
    const char *names; // space-separated
    const char *splits[MAX_SPLITS];
    const char *listed; // tokenizer.json's list of pre-tokenizers, in place of these
    bool digits, words;
    bool nfc, ignore_merges, adds_bos;
};

static const struct gguf_pre rows[] = {
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", .splits = {BY_THREE},
     .ignore_merges = true, .adds_bos = true},
    {" dbrx smaug-bpe chatglm-bpe ", .splits = {BY_THREE}},
    {" glm4 glm5 ", .splits = {BY_THREE}, .ignore_merges = true},
    {" qwen2 megrez kormo f2llmv2 ", .splits = {BY_ONE}, .nfc = true},
    {" deepseek-r1-qwen stablelm2 hunyuan solar-open grok-2 ", .splits = {BY_ONE}},
    {" qwen35 ", .splits = {WITH_MARKS}, .nfc = true},
    {" gpt-4o llama4 kanana2 ", .splits = {O200K}, .ignore_merges = true},
    {" minimax-m2 ", .splits = {O200K}},
    {" kimi-k2 ", .splits = {KIMI}, .ignore_merges = true},
    {" jais-2 ", .splits = {JAIS2}},
    {" laguna ", .splits = {"[^\\n]+|[\\n]+", BY_ONE}},
    {" afmoe ", .splits = {THREES, UNSPACED, DEEPSEEK}},
    {" tiny_aya cohere2moe ", .splits = {"\\d{1,3}(?=(?:\\d{3})*\\b)", O200K}},
    {" exaone-moe ", .splits = {SPACED_WORDS}},
    {" tekken ", .splits = {TEKKEN}, .ignore_merges = true, .adds_bos = true},
    {" gpt-2 phi-2 jais mellum gigachat modern-bert a.x-4.0 exaone4 trillion granite-docling ",
     .words = true},
    {" olmo mpt ", .words = true, .nfc = true},
    {" starcoder refact smollm codeshell exaone minerva-7b mellum2 ", .digits = true,
     .words = true},
    {" falcon ", .listed = FALCON},
    {" command-r ", .digits = true, .words = true, .nfc = true},
    {" deepseek-v3 hunyuan-dense joyai-llm ", .splits = {"\\p{N}{1,3}", CJK, DEEPSEEK}},
    {" deepseek-coder ", .splits = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_AND_HANGUL},
     .digits = true},
    {" deepseek-llm ",
     .splits = {"[\r\n]", "\\s?[" CASED "]+", "\\s?[" MARKS "]+", "\\s+$", CJK_AND_HANGUL},
     .digits = true},
    {" seed-coder ", .splits = {SEED}},
    {" bailingmoe bailingmoe2 llada-moe ", .splits = {BAILING}},
    /* llama.cpp's default for files that do not name a splitter. */
    {" default ", .splits = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

static bool has_name(const struct gguf_pre *p, const char *name, size_t n)
{
    for (const char *at = p->names; (at = strchr(at, ' ')) && at[1]; at++) {
        if (strncmp(at + 1, name, n) == 0 && at[1 + n] == ' ') {
            return true;
        }
    }
    return false;
}

/* A file that names no splitter was written for the default one. An unknown name is an error,
 * because the text might be split differently from the training text. */
enum status gguf_find_pre(const char *name, size_t n_bytes, const struct gguf_pre **out,
                          struct err *err)
{
    if (!name) {
        name = "default";
        n_bytes = strlen(name);
    }
    bool word =
        n_bytes > 0 && n_bytes < 64 && !memchr(name, ' ', n_bytes) && !memchr(name, 0, n_bytes);
    for (size_t i = 0; word && i < N_ROWS; i++) {
        if (has_name(&rows[i], name, n_bytes)) {
            *out = &rows[i];
            return OK;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, "tokenizer.ggml.pre: unknown pre-tokenizer '%.*s'",
                   (int)lesser(n_bytes, 64), name);
}

static void put_byte_level(struct buf *out, bool with_words)
{
    buf_printf(out,
               "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
               "\"use_regex\":%s}",
               bool_word(with_words));
}

void gguf_put_pre(const struct gguf_pre *p, struct buf *out)
{
    if (p->nfc) {
        buf_puts(out, "\"normalizer\":{\"type\":\"NFC\"},");
    } else {
        buf_puts(out, "\"normalizer\":null,");
    }
    buf_puts(out, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (p->listed) {
        buf_printf(out, "%s]},", p->listed);
        return;
    }
    for (size_t i = 0; i < MAX_SPLITS && p->splits[i]; i++) {
        buf_puts(out, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        buf_put_json(out, p->splits[i], strlen(p->splits[i]));
        buf_puts(out, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    if (p->digits) {
        buf_puts(out, "{\"type\":\"Digits\",\"individual_digits\":true},");
    }
    put_byte_level(out, p->words);
    buf_puts(out, "]},");
}

bool gguf_pre_ignores_merges(const struct gguf_pre *p)
{
    return p->ignore_merges;
}

bool gguf_pre_adds_bos(const struct gguf_pre *p)
{
    return p->adds_bos;
}
