// SPDX-License-Identifier: Apache-2.0
/* Scratch memory that a call borrows. It is kept in the tokenizer between calls, so that its
 * buffers, the matcher's state and the piece cache stay warm. */
#include "engine/tokenizer/regex.h"

#include "engine/base/mem.h"

#include <stdlib.h>

enum { KEEP_BYTES = 4 << 20 }; // chosen: limit of the memory that an idle scratch keeps per buffer

static struct scratch *scratch_new(void)
{
    struct scratch *sc = xcalloc(1, sizeof *sc);
    buf_init(&sc->joined, TEXT_MAX);
    buf_init(&sc->norm[0], 2u * TEXT_MAX);
    buf_init(&sc->norm[1], 2u * TEXT_MAX);
    buf_init(&sc->word, TEXT_MAX);
    for (size_t i = 0; i < MAX_STAGES; i++) {
        buf_init(&sc->stage[i], 2u * TEXT_MAX);
    }
    return sc;
}

/* Frees everything that a call may have allocated. */
void scratch_free(struct scratch *sc)
{
    if (!sc) {
        return;
    }
    buf_deinit(&sc->joined);
    buf_deinit(&sc->norm[0]);
    buf_deinit(&sc->norm[1]);
    buf_deinit(&sc->word);
    for (size_t i = 0; i < MAX_STAGES; i++) {
        buf_deinit(&sc->stage[i]);
    }
    regex_scratch_free(sc);
    free(sc->symbols);
    free(sc->heap);
    free(sc->nodes);
    piece_cache_free(sc->cache);
    free(sc);
}

/* Takes an idle scratch from the tokenizer's slots, or makes a new one. */
struct scratch *scratch_take(const struct tokenizer *tok)
{
    struct tokenizer *shared = (struct tokenizer *)tok; // only the slots of idle scratches change
    for (size_t i = 0; i < sizeof tok->scratches / sizeof tok->scratches[0]; i++) {
        struct scratch *sc = atomic_exchange(&shared->scratches[i], NULL);
        if (sc) {
            return sc;
        }
    }
    return scratch_new();
}

static void trim(struct buf *b)
{
    if (b->cap > KEEP_BYTES) {
        size_t max = b->max_bytes;
        buf_deinit(b);
        buf_init(b, max);
    }
}

/* Frees large buffers, so that the memory for one huge text does not stay allocated for ever. */
static void scratch_trim(struct scratch *sc)
{
    trim(&sc->joined);
    trim(&sc->norm[0]);
    trim(&sc->norm[1]);
    trim(&sc->word);
    for (size_t i = 0; i < MAX_STAGES; i++) {
        trim(&sc->stage[i]);
    }
    // A symbol, a heap key and a node take 20, 8 and 16 bytes (bpe_merge.c, unigram.c).
    if (sc->cap_symbols * 20 > KEEP_BYTES || sc->cap_heap * 8 > KEEP_BYTES ||
        sc->cap_nodes * 16 > KEEP_BYTES) {
        free(sc->symbols);
        free(sc->heap);
        free(sc->nodes);
        sc->symbols = NULL;
        sc->heap = NULL;
        sc->nodes = NULL;
        sc->cap_symbols = sc->cap_heap = sc->cap_nodes = 0;
    }
}

/* Large buffers are freed first. If all slots are taken, the scratch itself is freed. */
void scratch_give(const struct tokenizer *tok, struct scratch *sc)
{
    struct tokenizer *shared = (struct tokenizer *)tok;
    sc->out = NULL;
    sc->err = NULL;
    sc->has_input = false;
    scratch_trim(sc);
    for (size_t i = 0; i < sizeof tok->scratches / sizeof tok->scratches[0]; i++) {
        struct scratch *none = NULL;
        if (atomic_compare_exchange_strong(&shared->scratches[i], &none, sc)) {
            return;
        }
    }
    scratch_free(sc);
}
