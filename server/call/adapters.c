// SPDX-License-Identifier: Apache-2.0
#include "server/call/adapters.h"

#include "engine/base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum place_state { PLACE_FREE, PLACE_RESERVED, PLACE_NAMED };

/* A removed adapter leaves its place free, but with users. */
struct place {
    enum place_state state;
    const char *name, *dir;
    uint64_t order; // of loading
    int32_t n_users;
};

struct call_adapters {
    pthread_mutex_t lock;
    struct place places[MAX_ADAPTERS];
    int32_t n;
    uint64_t next_order;
    /* All names and folders so far: answers refer to them, and they are few. */
    char **texts;
    size_t n_texts, cap_texts;
};

static const char *keep(struct call_adapters *a, const char *text)
{
    for (size_t i = 0; i < a->n_texts; i++) {
        if (strcmp(a->texts[i], text) == 0) {
            return a->texts[i];
        }
    }
    if (a->n_texts == a->cap_texts) {
        a->cap_texts = a->cap_texts * 2 + 16;
        a->texts = xrealloc(a->texts, a->cap_texts * sizeof *a->texts);
    }
    a->texts[a->n_texts] = xstrdup(text);
    return a->texts[a->n_texts++];
}

static void name_place(struct call_adapters *a, struct place *p, const char *name, const char *dir)
{
    p->name = keep(a, name);
    p->dir = keep(a, dir);
    p->order = a->next_order++;
    p->state = PLACE_NAMED;
}

/* The place of a name, from 0 on; -1: none. */
static int32_t find(const struct call_adapters *a, const char *name)
{
    for (int32_t i = 0; i < a->n; i++) {
        if (a->places[i].state == PLACE_NAMED && strcmp(a->places[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

struct call_adapters *call_adapters_open(const struct config *config)
{
    const struct engine_options *o = &config->engine;
    struct call_adapters *a = xcalloc(1, sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    a->n = o->n_adapters + o->spare_adapters;
    for (int32_t i = 0; i < o->n_adapters; i++) {
        name_place(a, &a->places[i], o->adapter_names[i], o->adapter_dirs[i]);
    }
    return a;
}

void call_adapters_close(struct call_adapters *a)
{
    for (size_t i = 0; a && i < a->n_texts; i++) {
        free(a->texts[i]);
    }
    if (a) {
        free(a->texts);
        pthread_mutex_destroy(&a->lock);
    }
    free(a);
}

int32_t call_adapters_take(struct call_adapters *a, const char *name, const char **its)
{
    pthread_mutex_lock(&a->lock);
    const int32_t i = find(a, name);
    if (i >= 0) {
        a->places[i].n_users++;
        *its = a->places[i].name;
    }
    pthread_mutex_unlock(&a->lock);
    return i + 1;
}

void call_adapters_give(struct call_adapters *a, int32_t place)
{
    if (place > 0) {
        pthread_mutex_lock(&a->lock);
        a->places[place - 1].n_users--;
        pthread_mutex_unlock(&a->lock);
    }
}

static int by_order(const void *x, const void *y)
{
    const uint64_t a = (*(const struct place *const *)x)->order;
    const uint64_t b = (*(const struct place *const *)y)->order;
    return (a > b) - (a < b);
}

int32_t call_adapters_list(struct call_adapters *a, struct call_adapter out[MAX_ADAPTERS])
{
    const struct place *list[MAX_ADAPTERS];
    int32_t n = 0;
    pthread_mutex_lock(&a->lock);
    for (int32_t i = 0; i < a->n; i++) {
        if (a->places[i].state == PLACE_NAMED) {
            list[n++] = &a->places[i];
        }
    }
    qsort(list, (size_t)n, sizeof list[0], by_order);
    for (int32_t i = 0; i < n; i++) {
        const int32_t place = 1 + (int32_t)(list[i] - a->places);
        out[i] = (struct call_adapter){list[i]->name, list[i]->dir, place, list[i]->n_users};
    }
    pthread_mutex_unlock(&a->lock);
    return n;
}

int32_t call_adapters_places(const struct call_adapters *a)
{
    return a->n;
}

int32_t call_adapters_reserve(struct call_adapters *a)
{
    int32_t place = 0;
    pthread_mutex_lock(&a->lock);
    for (int32_t i = 0; i < a->n && place == 0; i++) {
        if (a->places[i].state == PLACE_FREE && a->places[i].n_users == 0) {
            a->places[i].state = PLACE_RESERVED;
            place = i + 1;
        }
    }
    pthread_mutex_unlock(&a->lock);
    return place;
}

void call_adapters_publish(struct call_adapters *a, int32_t place, const char *name,
                           const char *dir)
{
    pthread_mutex_lock(&a->lock);
    const int32_t before = find(a, name);
    if (before >= 0) {
        a->places[before].state = PLACE_FREE;
    }
    name_place(a, &a->places[place - 1], name, dir);
    pthread_mutex_unlock(&a->lock);
}

void call_adapters_give_up(struct call_adapters *a, int32_t place)
{
    pthread_mutex_lock(&a->lock);
    a->places[place - 1].state = PLACE_FREE;
    pthread_mutex_unlock(&a->lock);
}

bool call_adapters_remove(struct call_adapters *a, const char *name)
{
    pthread_mutex_lock(&a->lock);
    const int32_t i = find(a, name);
    if (i >= 0) {
        a->places[i].state = PLACE_FREE;
    }
    pthread_mutex_unlock(&a->lock);
    return i >= 0;
}
