/* The output's parsers: the first byte picks the parser and the options, the rest is a model's text.
 * What comes out must not depend on how the text was cut, and calls must be well-formed. */
#include "server/chat/output.h"

#include "engine/base/assert.h"
#include "test/fuzz/fuzz.h"

static const char tools_text[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"n\":{\"type\":\"integer\"},"
    "\"o\":{\"type\":\"object\"},\"b\":{\"type\":[\"boolean\",\"null\"]},\"s\":{\"anyOf\":[{"
    "\"type\":\"string\"},{\"type\":\"null\"}]}}}}},{\"function\":{\"name\":\"g\"}}]";

struct result {
    struct buf text;
    bool in_call;
    char last;
};

static void put(struct result *r, char kind, const char *s, size_t n)
{
    if (r->last != kind || kind == 'C') {
        buf_putc(&r->text, '\n');
        buf_putc(&r->text, kind);
    }
    r->last = kind;
    buf_put(&r->text, s, n);
}

static void on_text(void *arg, const char *s, size_t n)
{
    put(arg, 'T', s, n);
}

static void on_reasoning(void *arg, const char *s, size_t n)
{
    put(arg, 'R', s, n);
}

static void on_call(void *arg, const char *name, const char *id)
{
    ASSERT(name && name[0] && id);
    ((struct result *)arg)->in_call = true;
    put(arg, 'C', name, strlen(name));
}

static void on_arguments(void *arg, const char *s, size_t n)
{
    ASSERT(((struct result *)arg)->in_call && n > 0);
    put(arg, 'A', s, n);
}

static void parse(const struct output_options *opt, const char *s, size_t n, size_t piece,
                  struct result *r)
{
    struct tool_sink sink = {on_text, on_reasoning, on_call, on_arguments, r};
    struct output o;
    *r = (struct result){.in_call = false};
    buf_init(&r->text, 1 << 20);
    output_init(&o, opt, &sink);
    for (size_t i = 0; i < n; i += piece) {
        output_text(&o, s + i, piece < n - i ? piece : n - i);
    }
    output_finish(&o);
    output_deinit(&o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"hermes", "llama3_json", "mistral", "pythonic",
                                        "qwen3_coder", "harmony"};
    static const char *const stop[] = {"</s>", "END"};
    static const size_t stop_bytes[] = {4, 3};
    struct json *tools;
    if (size < 1 || json_parse(tools_text, sizeof tools_text - 1, NULL, &tools, NULL) != OK) {
        return 0;
    }
    struct output_options opt = {
        .parser = tool_parser_find(names[data[0] % 6]),
        .tools = tools,
        .reasoning = (enum reasoning_kind)(data[0] / 6 % 4),
        .starts_in_reasoning = (data[0] & 64) != 0,
        .stop = stop,
        .stop_bytes = stop_bytes,
        .n_stop = data[0] & 128 ? 2 : 0,
    };
    struct result whole, cut;
    const char *text = (const char *)data + 1;
    parse(&opt, text, size - 1, size, &whole);
    for (size_t piece = 1; piece < 4; piece++) {
        parse(&opt, text, size - 1, piece, &cut);
        ASSERT(cut.text.n_bytes == whole.text.n_bytes);
        ASSERT(whole.text.n_bytes == 0 ||
               memcmp(cut.text.data, whole.text.data, whole.text.n_bytes) == 0);
        buf_deinit(&cut.text);
    }
    buf_deinit(&whole.text);
    json_free(tools);
    return 0;
}

#ifndef LIBFUZZER
int main(void)
{
    static const char cut_name[] = "X<tool_call>\n<function=\0\0f>\n<parameter=\0>\n5\n</parameter>\n"
                                   "</function>\n</tool_call>"; // found by a fuzzer
    fuzz_one(cut_name, sizeof cut_name - 1);
    static const char *const seeds[] = {
        "0<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": [1, {}]}}\n</tool_call> b END",
        "1{\"name\": \"g\", \"parameters\": {\"x\": \"\\u00e9\\\"\"}}; {\"name\": \"f\", "
        "\"parameters\": {}}",
        "2[TOOL_CALLS]f[CALL_ID]ab12[ARGS]{\"n\": 1}[TOOL_CALLS][{\"name\": \"g\", \"arguments\": "
        "\"{}\", \"id\": \"x\"}]",
        "3[f(n=-1.5e3, s='a\\x41\\'', o={'k': [True, None, (1,)]}), g()]",
        "\x87<|tool_call_start|>[[f(n=1)]",
        "4<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=b>\ntrue\n"
        "</parameter>\n</function>\n</tool_call>",
        "?<think>\nhm\n</think>\n\n<|tool_call_start|>[f(n=1)]<|tool_call_end|>",
        "\x8bThe [THINK]end[/THINK]</s>\n<|python_tag|>{\"name\"",
        ";\xf9" "analysis\xfahm\xfc\xf8" "assistant\xf9" "commentary to=functions.f \xfb" "json\xfa{\"n\": "
        "[1, \"}\"]}\xfe\xf8" "assistant\xf9" "final\xfayes\xfd",
        "5 to=functions.g\xf9" "commentary\xfa{}\xfe stray \xf9" "commentary\xfaI look.\xfc",
        "Shm\xfc\xf8" "assistant to=python\xf9" "analysis code\xfaprint(1)\xfe",
    };
    return fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 60000);
}
#endif
