// SPDX-License-Identifier: Apache-2.0
/* The server that `sluice chat` talks to: a running one, given by its URL, or a child process that
 * serves a model on a Unix socket for as long as the chat lasts. */
#include "server/cli/chat_server.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOCAL_URL "http://127.0.0.1:8000"

enum { LOOK_MS = 50, ANSWER_S = 10, PATIENCE_MS = 5000, MAX_ANSWER_BYTES = 4 << 20 };

/* ---- asking a server ----------------------------------------------------------------------------
 */

static void append(void *arg, const char *bytes, size_t n_bytes)
{
    buf_put(arg, bytes, n_bytes);
}

/* Reads the first model's name; false if the body is not a list of models. */
static bool read_models(const struct buf *body, char *name, size_t n_name)
{
    struct json *root = NULL;
    bool good = body->data && json_parse(body->data, body->n_bytes, NULL, &root, NULL) == OK;
    const char *id = good ? json_get_string(json_first(json_get(root, "data")), "id") : NULL;
    if (id) {
        snprintf(name, n_name, "%s", id);
    }
    json_free(root);
    return id != NULL;
}

/* Requests the list of models: tells whether this is a server, whether it accepts the key, and what
 * it serves. */
static enum status ask_models(struct chat_server *s, const volatile sig_atomic_t *interrupt,
                              struct err *err)
{
    const struct client_request request = {.method = "GET",
                                           .path = "/v1/models",
                                           .key = s->key,
                                           .timeout_s = ANSWER_S,
                                           .stop = interrupt};
    struct buf body;
    int status;
    buf_init(&body, MAX_ANSWER_BYTES);
    enum status st = client_call(&s->peer, &request, append, &body, &status, err);
    if (st == OK && (status == 401 || status == 403)) {
        st = err_set(err, ERR_INVALID,
                     "the server requires an API key: pass it with --api-key KEY or in the "
                     "variable OPENAI_API_KEY");
    } else if (st == OK && (status != 200 || !read_models(&body, s->model, sizeof s->model))) {
        st = err_set(err, ERR_FORMAT,
                     "/v1/models was answered with status %d: this is not an OpenAI-compatible "
                     "server, or it has not loaded its model",
                     status);
    }
    buf_deinit(&body);
    if (st != OK) {
        return err_prefix(err, st, "%s", s->name);
    }
    return OK;
}

static enum status use_url(struct chat_server *s, const char *url,
                           const volatile sig_atomic_t *interrupt, struct err *err)
{
    TRY(client_url_parse_base(url, &s->peer, err));
    snprintf(s->name, sizeof s->name, "%s", url);
    return ask_models(s, interrupt, err);
}

/* ---- a server of our own ------------------------------------------------------------------------
 */

/* Finds the bundled model: in the checkout, or where `make install` and the tarball put it. */
static enum status find_demo(char *path, size_t n_path, struct err *err)
{
    static const char *const places[] = {"../../models/demo", "../share/sluice/models/demo"};
    char program[PATH_MAX], folder[PATH_MAX + 64], config[PATH_MAX + 96];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) {
        program[n] = '\0';
        const char *at = dirname(program);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            snprintf(folder, sizeof folder, "%s/%s", at, places[i]);
            snprintf(config, sizeof config, "%s/config.json", folder);
            if (file_exists(config) && strlen(folder) < n_path) {
                snprintf(path, n_path, "%s", folder);
                return OK;
            }
        }
    }
    return err_set(err, ERR_IO,
                   "no server answers on " LOCAL_URL
                   ", and the demo model was not found: pass a model or a server's URL, as in: "
                   "sluice chat FOLDER");
}

/* Called in the child: becomes the server. It leaves the terminal's process group, because Ctrl-C
 * is meant for the chat, and it ends with the chat, however that ends. */
static void become_server(const struct chat_server *s, const struct chat_options *o,
                          const char *model, pid_t parent)
{
    static const char *const foreign[] = {"LISTEN_FDS",     "LISTEN_PID",   "NOTIFY_SOCKET",
                                          "SLUICE_API_KEY", "VLLM_API_KEY", "SLUICE_API_KEY_FILE"};
    char **argv = xcalloc((size_t)o->n_rest + 16, sizeof *argv);
    int n = 0;
    argv[n++] = xstrdup("sluice");
    argv[n++] = xstrdup("serve");
    argv[n++] = xstrdup(model);
    for (int i = 0; i < o->n_rest; i++) {
        argv[n++] = o->rest[i];
    }
    argv[n++] = xstrdup("--uds");
    argv[n++] = xstrdup(s->peer.unix_path);
    argv[n++] = xstrdup("--drain-delay=0");
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        unsetenv(foreign[i]); // these variables are meant for a server that others can reach
    }
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || dup2(nowhere, 0) < 0 || dup2(nowhere, 1) < 0 ||
        dup2(s->log, 2) < 0) {
        _exit(127);
    }
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* The socket is in a folder of its own with mode 0700, so that no other user can connect.
 * TMPDIR must be short, because paths of sockets are limited to about 100 bytes. */
static enum status start(struct chat_server *s, const struct chat_options *o, const char *model,
                         struct err *err)
{
    const char *temporary = getenv("TMPDIR");
    if (!(temporary && *temporary && strlen(temporary) < 60)) {
        temporary = "/tmp";
    }
    char folder[sizeof s->folder];
    snprintf(folder, sizeof folder, "%s/sluice-chat-XXXXXX", temporary);
    if (!mkdtemp(folder)) {
        return err_set(err, ERR_IO, "no folder for a socket in %s: %s", temporary, strerror(errno));
    }
    memcpy(s->folder, folder, sizeof folder);
    snprintf(s->peer.unix_path, sizeof s->peer.unix_path, "%.90s/socket", folder);
    snprintf(s->name, sizeof s->name, "%s", model);
    char path[128];
    snprintf(path, sizeof path, "%s/log", folder);
    s->log = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    unlink(path); // the file disappears with the last process that has it open
    const pid_t parent = getpid();
    fflush(NULL);
    s->child = s->log >= 0 ? fork() : -1;
    if (s->child == 0) {
        become_server(s, o, model, parent);
    }
    if (s->child < 0) {
        s->child = 0;
        return err_set(err, ERR_IO, "cannot start a server: %s", strerror(errno));
    }
    return OK;
}

/* The last line of the child's log, which should say why it ended. */
static void last_words(const struct chat_server *s, char *text, size_t n_text)
{
    char tail[1024];
    const off_t end = lseek(s->log, 0, SEEK_END), want = (off_t)sizeof tail - 1;
    const ssize_t n = pread(s->log, tail, (size_t)want, end > want ? end - want : 0);
    tail[greater(n, 0)] = '\0';
    for (char *nl = tail + strlen(tail); nl > tail && nl[-1] == '\n'; nl--) {
        nl[-1] = '\0';
    }
    const char *line = strrchr(tail, '\n');
    line = line ? line + 1 : tail;
    if (strncmp(line, "sluice: ", 8) == 0) {
        line += 8;
    }
    snprintf(text, n_text, "%s", *line ? line : "it logged nothing");
}

/* True if the child has ended; then the last line of its log becomes the error. */
bool chat_server_is_lost(struct chat_server *s, int patience_ms, struct err *err)
{
    char words[480];
    if (s->child == 0) {
        return false;
    }
    while (waitpid(s->child, NULL, WNOHANG) == 0) {
        if (patience_ms <= 0) {
            return false;
        }
        usleep(LOOK_MS * 1000);
        patience_ms -= LOOK_MS;
    }
    s->child = 0;
    last_words(s, words, sizeof words);
    err_set(err, ERR_IO, "%s", words);
    return true;
}

/* True if the server is ready: not only running, but with its model loaded. */
static bool is_ready(const struct chat_server *s)
{
    const struct client_request request = {
        .method = "GET", .path = "/health/ready", .timeout_s = ANSWER_S};
    struct buf body;
    struct err err;
    int status;
    buf_init(&body, MAX_ANSWER_BYTES);
    const enum status st = client_call(&s->peer, &request, append, &body, &status, &err);
    buf_deinit(&body);
    return st == OK && status == 200;
}

/* Polls until the model is loaded, the child ends, or the user interrupts. */
static enum status await_ready(struct chat_server *s, bool terminal,
                               const volatile sig_atomic_t *interrupt, struct err *err)
{
    if (terminal) {
        printf("Loading %s ...", s->name);
        fflush(stdout);
    }
    enum status st = OK;
    while (st == OK && !is_ready(s)) {
        if (chat_server_is_lost(s, 0, err)) {
            st = ERR_IO;
        } else if (*interrupt) {
            st = err_set(err, ERR_CANCELLED, "stopped while the model was loading");
        } else {
            usleep(LOOK_MS * 1000);
        }
    }
    if (terminal) {
        fputs("\r\033[K", stdout);
        fflush(stdout);
    }
    return st;
}

static enum status use_model(struct chat_server *s, const struct chat_options *o, const char *model,
                             bool terminal, const volatile sig_atomic_t *interrupt, struct err *err)
{
    TRY(start(s, o, model, err));
    TRY(await_ready(s, terminal, interrupt, err));
    return ask_models(s, interrupt, err);
}

/* ---- either kind of server ------------------------------------------------------------------- */

/* For a chat without a target: uses a server on this machine if one runs and no option of a server
 * was given, otherwise starts one with the bundled model. */
static enum status use_nearest(struct chat_server *s, const struct chat_options *o, bool terminal,
                               const volatile sig_atomic_t *interrupt, struct err *err)
{
    char demo[PATH_MAX + 64];
    if (o->n_rest == 0) {
        const enum status st = use_url(s, LOCAL_URL, interrupt, err);
        if (st != ERR_IO && st != ERR_FORMAT) { // there is a server, but the key is wrong or it
                                                // timed out: report that
            return st;
        }
    }
    s->peer = (struct client_peer){.host = ""};
    TRY(find_demo(demo, sizeof demo, err));
    return use_model(s, o, demo, terminal, interrupt, err);
}

/* No target: a server on the usual port if there is one, else the demo model. A target
 * with "://" is a URL, anything else a model. */
enum status chat_server_open(struct chat_server *s, const struct chat_options *o, bool terminal,
                             const volatile sig_atomic_t *interrupt, struct err *err)
{
    memset(s, 0, sizeof *s);
    s->log = -1;
    s->key = o->api_key;
    if (!o->target) {
        TRY(use_nearest(s, o, terminal, interrupt, err));
    } else if (strstr(o->target, "://")) {
        TRY(use_url(s, o->target, interrupt, err));
    } else {
        TRY(use_model(s, o, o->target, terminal, interrupt, err));
    }
    if (o->model) {
        snprintf(s->model, sizeof s->model, "%s", o->model);
    }
    return OK;
}

/* The server need not wait before it drains, because this chat was its only client. */
static void end_child(pid_t child)
{
    const int64_t begin = clock_now_ns();
    kill(child, SIGTERM);
    while (waitpid(child, NULL, WNOHANG) == 0) {
        if (clock_now_ns() - begin > (int64_t)PATIENCE_MS * 1000000) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            return;
        }
        usleep(10000);
    }
}

/* The child is asked to end, and its socket and folder are removed. */
void chat_server_close(struct chat_server *s)
{
    if (s->child > 0) {
        end_child(s->child);
    }
    if (s->log >= 0) {
        close(s->log);
    }
    if (s->folder[0]) {
        unlink(s->peer.unix_path);
        rmdir(s->folder);
    }
}
