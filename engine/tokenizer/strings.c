// SPDX-License-Identifier: Apache-2.0
/* Strings by id, the hash table over them, and the byte trie. */
#include "engine/tokenizer/impl.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Ids may be added in any order and with gaps; UINT32_MAX marks ids that have no string. */
static bool strings_grow(struct strings *s, int32_t id)
{
    int32_t cap = s->cap ? s->cap : 1024;
    while (cap <= id) {
        cap *= 2;
    }
    uint32_t *at = realloc(s->at, (size_t)cap * sizeof *at);
    if (at) {
        s->at = at;
    }
    uint32_t *n = realloc(s->n, (size_t)cap * sizeof *n);
    if (n) {
        s->n = n;
    }
    if (!at || !n) {
        return false;
    }
    memset(n + s->cap, 0xFF, (size_t)(cap - s->cap) * sizeof *n);
    s->cap = cap;
    return true;
}

/* Texts are stored one after another in one buffer. They are found by offset, because pointers
 * would become invalid when the buffer grows. */
bool strings_set(struct strings *s, int32_t id, const char *text, size_t n_bytes)
{
    if (id < 0 || id > MAX_TOKEN_ID || (id >= s->cap && !strings_grow(s, id))) {
        return false;
    }
    if (s->bytes.max_bytes == 0) {
        buf_init(&s->bytes, UINT32_MAX / 2);
    }
    size_t at = s->bytes.n_bytes;
    buf_put(&s->bytes, text, n_bytes);
    buf_putc(&s->bytes, '\0');
    s->at[id] = (uint32_t)at;
    s->n[id] = (uint32_t)n_bytes;
    if (id >= s->n_ids) {
        s->n_ids = id + 1;
    }
    return !s->bytes.failed;
}

const char *strings_get(const struct strings *s, int32_t id, size_t *n_bytes)
{
    if (id < 0 || id >= s->n_ids || s->n[id] == UINT32_MAX) {
        if (n_bytes) {
            *n_bytes = 0;
        }
        return NULL;
    }
    if (n_bytes) {
        *n_bytes = s->n[id];
    }
    return s->bytes.data + s->at[id];
}

void strings_deinit(struct strings *s)
{
    buf_deinit(&s->bytes);
    free(s->at);
    free(s->n);
    *s = (struct strings){0};
}

static bool slots_alloc(struct string_table *t, size_t n_slots)
{
    t->slots = malloc(n_slots * sizeof *t->slots);
    if (t->slots) {
        memset(t->slots, 0xFF, n_slots * sizeof *t->slots);
        t->mask = n_slots - 1;
    }
    return t->slots != NULL;
}

bool string_table_init(struct string_table *t, const struct strings *strings, size_t expected)
{
    size_t n_slots = 64;
    while (n_slots < 2 * expected) {
        n_slots *= 2;
    }
    *t = (struct string_table){.strings = strings, .key = hash_process_key()};
    return slots_alloc(t, n_slots);
}

void string_table_deinit(struct string_table *t)
{
    free(t->slots);
    *t = (struct string_table){0};
}

/* The slot that holds the text, or the empty slot where it belongs. */
static struct string_slot *slot_of(const struct string_table *t, const char *text, size_t n,
                                   uint64_t hash)
{
    uint32_t tag = (uint32_t)(hash >> 32);
    for (size_t i = hash & t->mask;; i = (i + 1) & t->mask) {
        struct string_slot *slot = &t->slots[i];
        if (slot->id < 0) {
            return slot;
        }
        if (slot->tag == tag && slot->n == n &&
            memcmp(t->strings->bytes.data + slot->at, text, n) == 0) {
            return slot;
        }
    }
}

/* The table is at most half full, so that probes are short. */
static bool table_grow(struct string_table *t)
{
    struct string_table bigger = *t;
    if (!slots_alloc(&bigger, (t->mask + 1) * 2)) {
        return false;
    }
    bigger.n = 0;
    for (size_t i = 0; i <= t->mask; i++) {
        if (t->slots[i].id >= 0) {
            string_table_put(&bigger, t->slots[i].id);
        }
    }
    free(t->slots);
    *t = bigger;
    return true;
}

/* A text that is already in the table gets the new id. Part of the hash is stored in the slot, so
 * that most probes need no comparison. */
bool string_table_put(struct string_table *t, int32_t id)
{
    if (t->n * 2 >= t->mask && !table_grow(t)) {
        return false;
    }
    size_t n;
    const char *text = strings_get(t->strings, id, &n);
    uint64_t hash = hash_bytes(text, n, t->key);
    struct string_slot *slot = slot_of(t, text, n, hash);
    t->n += slot->id < 0;
    *slot = (struct string_slot){(uint32_t)(hash >> 32), id, t->strings->at[id], (uint32_t)n};
    return true;
}

int32_t string_table_find(const struct string_table *t, const char *text, size_t n_bytes)
{
    if (!t->slots) {
        return -1;
    }
    return slot_of(t, text, n_bytes, hash_bytes(text, n_bytes, t->key))->id;
}

uint64_t string_table_hash(const struct string_table *t, const char *text, size_t n_bytes)
{
    return hash_bytes(text, n_bytes, t->key);
}

void string_table_prefetch(const struct string_table *t, uint64_t hash)
{
    __builtin_prefetch(&t->slots[hash & t->mask]);
}

void string_table_prefetch_text(const struct string_table *t, uint64_t hash)
{
    const struct string_slot *slot = &t->slots[hash & t->mask];
    if (slot->id >= 0) {
        __builtin_prefetch(t->strings->bytes.data + slot->at);
    }
}

int32_t string_table_find_hashed(const struct string_table *t, const char *text, size_t n_bytes,
                                 uint64_t hash)
{
    return slot_of(t, text, n_bytes, hash)->id;
}

/* The edges of all nodes are in one hash table, keyed by node and byte. Node 0 is the root. */
bool trie_init(struct trie *t)
{
    *t = (struct trie){.mask = 255, .cap_nodes = 64, .n_nodes = 1};
    t->edges = mem_try_calloc(256, sizeof *t->edges);
    t->value = malloc(t->cap_nodes * sizeof *t->value);
    if (!t->edges || !t->value) {
        return false;
    }
    t->value[0] = -1;
    return true;
}

void trie_deinit(struct trie *t)
{
    free(t->edges);
    free(t->value);
    *t = (struct trie){0};
}

static void edge_put(struct trie *t, struct trie_edge edge)
{
    size_t i = (edge.node_byte * 0x9E3779B1u >> 7) & t->mask;
    while (t->edges[i].child != 0) {
        i = (i + 1) & t->mask;
    }
    t->edges[i] = edge;
}

static bool edges_grow(struct trie *t)
{
    struct trie bigger = *t;
    bigger.mask = t->mask * 2 + 1;
    bigger.edges = mem_try_calloc(bigger.mask + 1, sizeof *bigger.edges);
    if (!bigger.edges) {
        return false;
    }
    for (size_t i = 0; i <= t->mask; i++) {
        if (t->edges[i].child != 0) {
            edge_put(&bigger, t->edges[i]);
        }
    }
    free(t->edges);
    *t = bigger;
    return true;
}

static uint32_t node_add(struct trie *t, uint32_t parent, unsigned char byte)
{
    if (t->n_nodes == t->cap_nodes) {
        int32_t *value = realloc(t->value, 2 * (size_t)t->cap_nodes * sizeof *value);
        if (!value) {
            return 0;
        }
        t->value = value;
        t->cap_nodes *= 2;
    }
    // A key has 24 bits for the node and 8 bits for the byte.
    if (t->n_nodes >= 1u << 24 || (t->n_edges * 2 >= t->mask && !edges_grow(t))) {
        return 0;
    }
    uint32_t node = t->n_nodes++;
    // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): cap_nodes is never 0, so realloc never frees
    t->value[node] = -1;
    if (parent == 0) {
        t->first[byte] = node;
    } else {
        edge_put(t, (struct trie_edge){parent << 8 | byte, node});
        t->n_edges++;
    }
    return node;
}

bool trie_put(struct trie *t, const char *s, size_t n_bytes, int32_t value)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        uint32_t child = trie_step(t, node, (unsigned char)s[i]);
        if (child == 0) {
            child = node_add(t, node, (unsigned char)s[i]);
        }
        if (child == 0) {
            return false;
        }
        node = child;
    }
    t->value[node] = value;
    return true;
}
