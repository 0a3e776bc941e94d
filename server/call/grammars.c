// SPDX-License-Identifier: Apache-2.0
/* Compiled grammars, shared by requests with equal sources. Those in use are kept; idle
 * ones are evicted in the order of their last use. */
#include "server/call/grammars.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/info.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_IDLE_BYTES = 256 << 20, // arbitrary: limit for grammars that are not in use
    MAX_IDLE = 1024,
};

/* The grammar itself is used by the engine's thread and by requests; the entry is protected by the
 * cache's lock. */
struct entry {
    struct kept_grammar kept;  // must be first
    struct entry *prev, *next; // by last use, most recent first
    uint64_t hash;
    struct grammar_source source; // the entry owns its strings
    int32_t n_users;
    size_t n_bytes; // its memory, counted while it is not in use
};

/* Compilation takes long, so it runs without `lock`. Two requests may compile the same source at
 * the same time; the second result is dropped. */
struct grammars {
    pthread_mutex_t lock;
    pthread_mutex_t vocab_lock;  // held while the vocabulary is built
    struct grammar_vocab *vocab; // NULL: no request has had a grammar yet
    struct entry list;
    uint64_t key; // random key for hashing sources
    size_t idle_bytes;
    int32_t n_idle;
};

struct grammars *grammars_open(void)
{
    struct grammars *g = xcalloc(1, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->vocab_lock, NULL);
    g->list.prev = g->list.next = &g->list;
    g->key = hash_process_key();
    return g;
}

static void free_entry(struct entry *e)
{
    grammar_free(e->kept.grammar);
    free((void *)e->source.text);
    free((void *)e->source.whitespace_pattern);
    free(e);
}

void grammars_close(struct grammars *g)
{
    if (!g) {
        return;
    }
    for (struct entry *e = g->list.next, *next; e != &g->list; e = next) {
        next = e->next;
        free_entry(e);
    }
    grammar_vocab_free(g->vocab);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->vocab_lock);
    free(g);
}

/* ---- the list, under the lock --------------------------------------------------------------- */

static void unlink_entry(struct entry *e)
{
    e->prev->next = e->next;
    e->next->prev = e->prev;
}

static void link_first(struct grammars *g, struct entry *e)
{
    e->prev = &g->list;
    e->next = g->list.next;
    e->next->prev = e;
    g->list.next = e;
}

static bool equal_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool is_same(const struct grammar_source *a, const struct grammar_source *b)
{
    return a->kind == b->kind && a->n_bytes == b->n_bytes &&
           a->disable_any_whitespace == b->disable_any_whitespace &&
           a->open_objects == b->open_objects &&
           equal_text(a->whitespace_pattern, b->whitespace_pattern) &&
           memcmp(a->text, b->text, a->n_bytes) == 0;
}

/* Finds an entry and takes a reference to it; NULL: there is none. */
static struct entry *find(struct grammars *g, const struct grammar_source *source, uint64_t hash)
{
    for (struct entry *e = g->list.next; e != &g->list; e = e->next) {
        if (e->hash == hash && is_same(&e->source, source)) {
            if (e->n_users++ == 0) {
                g->n_idle--;
                g->idle_bytes -= e->n_bytes;
            }
            unlink_entry(e);
            link_first(g, e);
            return e;
        }
    }
    return NULL;
}

/* Frees grammars that are not in use, the least recently used first, until the others are within
 * the limits. */
static void trim(struct grammars *g)
{
    struct entry *e = g->list.prev;
    while (e != &g->list && (g->idle_bytes > MAX_IDLE_BYTES || g->n_idle > MAX_IDLE)) {
        struct entry *before = e->prev;
        if (e->n_users == 0) {
            g->n_idle--;
            g->idle_bytes -= e->n_bytes;
            unlink_entry(e);
            free_entry(e);
        }
        e = before;
    }
}

/* ---- take and give --------------------------------------------------------------------------- */

/* Built from the tokenizer by the first request that needs it, while others wait. */
static enum status get_vocab(struct grammars *g, const struct tokenizer *tok,
                             const struct engine_info *info, struct err *err)
{
    pthread_mutex_lock(&g->vocab_lock);
    enum status st = OK;
    if (!g->vocab) {
        st = grammar_vocab_open(tok, info->vocab, info->eos, (size_t)info->n_eos, &g->vocab, err);
    }
    pthread_mutex_unlock(&g->vocab_lock);
    return st;
}

enum status grammars_vocabulary(struct grammars *g, const struct tokenizer *tok,
                                const struct engine_info *info, const struct grammar_vocab **out,
                                struct err *err)
{
    TRY(get_vocab(g, tok, info, err));
    *out = g->vocab;
    return OK;
}

static char *copy_text(const char *text, size_t n)
{
    char *copy = xmalloc(n + 1);
    memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

/* The source is copied, since the request's body will be freed. */
static struct entry *make_entry(const struct grammar_source *source, struct grammar *grammar,
                                uint64_t hash)
{
    struct entry *e = xcalloc(1, sizeof *e);
    const char *pattern = source->whitespace_pattern;
    *e = (struct entry){.kept.grammar = grammar, .hash = hash, .source = *source, .n_users = 1};
    e->source.text = copy_text(source->text, source->n_bytes);
    if (pattern) {
        e->source.whitespace_pattern = copy_text(pattern, strlen(pattern));
    } else {
        e->source.whitespace_pattern = NULL;
    }
    return e;
}

/* Called on the pool, from several threads. */
enum status grammars_take(struct grammars *g, const struct tokenizer *tok,
                          const struct engine_info *info, const struct grammar_source *source,
                          struct kept_grammar **out, struct err *err)
{
    uint64_t hash = hash_bytes(source->text, source->n_bytes, g->key + (uint64_t)source->kind);
    pthread_mutex_lock(&g->lock);
    struct entry *e = find(g, source, hash);
    pthread_mutex_unlock(&g->lock);
    if (!e) {
        struct grammar *made = NULL;
        TRY(get_vocab(g, tok, info, err));
        TRY(grammar_compile(source, NULL, g->vocab, &made, err));
        pthread_mutex_lock(&g->lock);
        e = find(g, source, hash); // another thread was faster
        if (e) {
            grammar_free(made);
        } else {
            e = make_entry(source, made, hash);
            link_first(g, e);
        }
        pthread_mutex_unlock(&g->lock);
    }
    *out = &e->kept;
    return OK;
}

/* Counts the memory of an idle grammar, and evicts others if there is too much. */
void grammars_give(struct grammars *g, struct kept_grammar *k)
{
    if (!k) {
        return;
    }
    struct entry *e = (struct entry *)k; // kept is the first member
    pthread_mutex_lock(&g->lock);
    if (--e->n_users == 0) {
        struct grammar_stats stats; // an idle grammar does not change
        grammar_stats(e->kept.grammar, &stats);
        e->n_bytes = stats.bytes + e->source.n_bytes;
        g->idle_bytes += e->n_bytes;
        g->n_idle++;
        trim(g);
    }
    pthread_mutex_unlock(&g->lock);
}
