// SPDX-License-Identifier: Apache-2.0
/* The cache of masks: slots in device memory, a host copy of their words, and a table by hash.
 * Equal hashes are not trusted, because grammars come from clients; words are compared. Copies to
 * the device are in stream order, so a slot can be reused while earlier passes still run. The clock
 * algorithm chooses the slot to replace, but never one that the current pass needs. */
#include "cuda/cuda_masks.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

enum { MORE_BYTES = 16 << 20, MORE_SLOTS = 4096 }; // maximum in addition to the masks of a pass

static size_t aligned(size_t n)
{
    return (n + 15) / 16 * 16;
}

static size_t mask_bytes(const struct draw_masks *m)
{
    return (size_t)m->n_words * sizeof(uint32_t);
}

size_t draw_masks_staged_bytes(const struct backend_limits *limits)
{
    const size_t n = (size_t)limits->max_masks;
    return aligned(n * sizeof(int32_t)) + n * (size_t)mask_words(limits->vocab) * sizeof(uint32_t);
}

enum status draw_masks_open(struct draw_masks *m, struct cuda *device,
                            const struct backend_limits *limits)
{
    m->device = device;
    m->n_words = mask_words(limits->vocab);
    m->max_masks = limits->max_masks;
    if (m->max_masks == 0) {
        return OK;
    }
    const size_t bytes = mask_bytes(m), most = MORE_BYTES / bytes;
    m->n_slots = m->max_masks + (int32_t)lesser(most, (size_t)MORE_SLOTS);
    const size_t n = (size_t)m->n_slots, n_now = (size_t)m->max_masks;
    m->table_size = 1;
    while (m->table_size < m->n_slots) {
        m->table_size *= 2;
    }
    m->known = xcalloc(n, sizeof *m->known);
    m->copies = xcalloc(n, bytes);
    m->table = xmalloc((size_t)m->table_size * sizeof *m->table);
    memset(m->table, 0xff, (size_t)m->table_size * sizeof *m->table);
    m->last = xcalloc(n_now, sizeof *m->last);
    m->now = xcalloc(n_now, sizeof *m->now);
    m->fresh = xcalloc(n_now, sizeof *m->fresh);
    TRY(cuda_alloc(device, n * bytes, (void **)&m->words));
    return cuda_alloc(device, n_now * sizeof *m->slots, (void **)&m->slots);
}

void draw_masks_close(struct draw_masks *m)
{
    free(m->known);
    free(m->copies);
    free(m->table);
    free(m->last);
    free(m->now);
    free(m->fresh);
}

/* ---- the slot of a mask -------------------------------------------------------------------- */

static uint32_t *copy_of(const struct draw_masks *m, int32_t slot)
{
    return m->copies + (size_t)slot * (size_t)m->n_words;
}

static bool has(const struct draw_masks *m, int32_t slot, const uint32_t *words)
{
    return m->known[slot].pass > 0 && memcmp(copy_of(m, slot), words, mask_bytes(m)) == 0;
}

static int32_t *place_of(const struct draw_masks *m, uint64_t hash)
{
    return &m->table[hash & (uint64_t)(m->table_size - 1)];
}

static int32_t find(const struct draw_masks *m, const uint32_t *words, uint64_t hash)
{
    int32_t slot = *place_of(m, hash);
    while (slot >= 0 && (m->known[slot].hash != hash || !has(m, slot, words))) {
        slot = m->known[slot].next;
    }
    return slot;
}

static void forget(struct draw_masks *m, int32_t slot)
{
    int32_t *at = place_of(m, m->known[slot].hash);
    while (*at != slot) {
        at = &m->known[*at].next;
    }
    *at = m->known[slot].next;
    m->known[slot].pass = 0;
}

/* A slot for a new mask, emptied if necessary. There are more slots than masks in a pass, so the
 * hand of the clock finds one within two rounds. */
static int32_t empty_slot(struct draw_masks *m)
{
    for (;; m->known[m->hand].again = false) {
        m->hand = (m->hand + 1) % m->n_slots;
        const struct known_mask *s = &m->known[m->hand];
        if (s->pass != m->pass && !s->again) {
            break;
        }
    }
    if (m->known[m->hand].pass > 0) {
        forget(m, m->hand);
    }
    return m->hand;
}

static int32_t put(struct draw_masks *m, const uint32_t *words, uint64_t hash)
{
    const int32_t slot = empty_slot(m);
    int32_t *first = place_of(m, hash);
    m->known[slot] = (struct known_mask){.hash = hash, .pass = m->pass, .next = *first};
    *first = slot;
    memcpy(copy_of(m, slot), words, mask_bytes(m));
    return slot;
}

/* The slot of mask i of the pass. A sequence often has the same mask as in its last step, so that
 * mask is compared first; a comparison takes a quarter of the time of a hash. */
static int32_t slot_of(struct draw_masks *m, int32_t i, const uint32_t *words, int32_t *n_fresh)
{
    int32_t slot = m->last[i];
    if (!has(m, slot, words)) {
        const uint64_t hash = hash_bytes(words, mask_bytes(m), hash_process_key());
        slot = find(m, words, hash);
        if (slot < 0) {
            slot = put(m, words, hash);
            m->fresh[(*n_fresh)++] = slot;
        }
    }
    struct known_mask *s = &m->known[slot];
    s->again |= s->pass != m->pass;
    s->pass = m->pass;
    m->last[i] = slot;
    return slot;
}

/* ---- sending ------------------------------------------------------------------------------- */

/* Copies new words from the staging memory to their slots. Neighbouring slots share a copy. */
static enum status send_fresh(struct draw_masks *m, const char *staged, int32_t n_fresh)
{
    struct cuda *be = m->device;
    for (int32_t i = 0, n; i < n_fresh; i += n) {
        n = 1;
        while (i + n < n_fresh && m->fresh[i + n] == m->fresh[i] + n) {
            n++;
        }
        CUDA_TRY(be, cudaMemcpyAsync(m->words + (size_t)m->fresh[i] * (size_t)m->n_words,
                                     staged + (size_t)i * mask_bytes(m), (size_t)n * mask_bytes(m),
                                     cudaMemcpyHostToDevice, be->stream));
    }
    return OK;
}

enum status draw_masks_send(struct draw_masks *m, struct lanes *lanes, const uint32_t *masks,
                            int32_t n)
{
    struct cuda *be = m->device;
    if (n == 0) {
        return OK;
    }
    int32_t n_fresh = 0;
    m->pass++;
    for (int32_t i = 0; i < n; i++) {
        m->now[i] = slot_of(m, i, masks + (size_t)i * (size_t)m->n_words, &n_fresh);
    }
    const size_t list_bytes = (size_t)n * sizeof *m->now;
    const size_t n_bytes = aligned(list_bytes) + (size_t)n_fresh * mask_bytes(m);
    char *image = lanes_room(lanes, n_bytes);
    if (!image) {
        return be->lost;
    }
    char *words = image + aligned(list_bytes);
    memcpy(image, m->now, list_bytes);
    for (int32_t i = 0; i < n_fresh; i++) {
        memcpy(words + (size_t)i * mask_bytes(m), copy_of(m, m->fresh[i]), mask_bytes(m));
    }
    lanes_use_room(lanes, n_bytes);
    m->n_sent += (uint64_t)n_fresh;
    CUDA_TRY(be, cudaMemcpyAsync(m->slots, image, list_bytes, cudaMemcpyHostToDevice, be->stream));
    return send_fresh(m, words, n_fresh);
}
