// SPDX-License-Identifier: Apache-2.0
/* The time to render a conversation of 100 messages, without compiling: with our own templates and,
 * if the optional folder ../shared is present, with every template in it that accepts the
 * conversation.
 *     render_bench [messages (100)] */
#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "server/chat/template.h"
#include "test/check.h"

#include <dirent.h>
#include <time.h>

enum { TURNS = 51, MAX_RESULTS = 512 };

struct result {
    char name[128];
    double compile_ms, median_ms, worst_ms;
    size_t n_bytes;
};

static struct result results[MAX_RESULTS];
static int n_results;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int by_median(const void *a, const void *b)
{
    return by_value(&((const struct result *)a)->median_ms, &((const struct result *)b)->median_ms);
}

/* Alternating user and assistant messages of about 200 bytes each, with characters that JSON
 * escapes. */
static void make_messages(struct buf *b, int n)
{
    static const char text[] =
        "Some words about \"nothing\" in particular, \xC3\xBC"
        "ber lines\nand "
        "tabs, which go on for as long as a message in a chat usually does, so "
        "that the text is neither short nor long; this is it.";
    buf_init(b, 1 << 24);
    for (int i = 0; i < n; i++) {
        buf_printf(b, "%s{\"role\":\"%s\",\"content\":", i ? "," : "[",
                   i % 2 ? "assistant" : "user");
        buf_put_json(b, text, sizeof text - 1);
        buf_puts(b, "}");
    }
    buf_puts(b, "]");
}

/* Prints the median and the worst of TURNS renderings; the time of compiling is separate. */
static void measure(const char *path, const char *name, const struct buf *messages)
{
    char *source;
    size_t n;
    struct chat_template *t;
    struct chat_output out;
    struct err err;
    double ms[TURNS];
    if (file_read(path, 1 << 22, &source, &n, &err) != OK) {
        return;
    }
    double start = now_ms();
    enum status st = chat_template_compile(source, n, NULL, &t, &err);
    double compiled = now_ms() - start;
    free(source);
    static const char tokens[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";
    struct chat_input in = {.messages_json = messages->data,
                            .messages_bytes = messages->n_bytes,
                            .kwargs_json = tokens,
                            .kwargs_bytes = sizeof tokens - 1,
                            .add_generation_prompt = true};
    size_t bytes = 0;
    for (int i = 0; st == OK && i < TURNS; i++) {
        start = now_ms();
        st = chat_template_render(t, &in, &out, &err);
        ms[i] = now_ms() - start;
        bytes = out.n_bytes;
        chat_output_deinit(&out);
    }
    if (st == OK && n_results < MAX_RESULTS) {
        qsort(ms, TURNS, sizeof ms[0], by_value);
        struct result *r = &results[n_results++];
        *r = (struct result){.compile_ms = compiled,
                             .median_ms = ms[TURNS / 2],
                             .worst_ms = ms[TURNS - 1],
                             .n_bytes = bytes};
        snprintf(r->name, sizeof r->name, "%.127s", name);
    }
    chat_template_free(t);
}

/* Templates that reject the conversation are skipped. */
static int measure_folder(const char *folder, const struct buf *messages)
{
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[8192];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (strstr(e->d_name, ".jinja")) {
            measure(path, e->d_name, messages);
            n++;
        }
    }
    if (dir) {
        closedir(dir);
    }
    return n;
}

static void print(const struct result *r)
{
    printf("%-52s %8.3f ms  (worst %7.3f, compile %7.3f)  %zu bytes\n", r->name, r->median_ms,
           r->worst_ms, r->compile_ms, r->n_bytes);
}

/* Slow templates are only counted; it is a failure only if there are no templates at all. */
int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 100, slow = 0;
    struct buf messages;
    make_messages(&messages, n);
    int templates = measure_folder("test/templates", &messages);
    if (check_shared()) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%s/data/templates", check_shared());
        templates += measure_folder(folder, &messages);
    }
    qsort(results, (size_t)n_results, sizeof results[0], by_median);
    for (int i = 0; i < n_results; i++) {
        slow += results[i].median_ms >= 1;
        if (i < 3 || i >= n_results - 5 || i == n_results / 2) {
            print(&results[i]);
        }
    }
    printf("%d messages, %zu bytes of JSON: %d of %d templates accept them; %d need 1 ms or more\n",
           n, messages.n_bytes, n_results, templates, slow);
    buf_deinit(&messages);
    return n_results == 0;
}
