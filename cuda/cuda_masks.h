// SPDX-License-Identifier: Apache-2.0
/* Masks of draws on the device. A mask that an earlier pass has sent is not sent again. Masks are
 * compared by content, so callers need not say which are the same. Thread: the rank's owner.
 */
#ifndef SLUICE_CUDA_CUDA_MASKS_H
#define SLUICE_CUDA_CUDA_MASKS_H

#include "cuda/cuda_device.h"
#include "cuda/cuda_lanes.h"

struct draw_masks {
    struct cuda *device;
    int32_t n_words, max_masks; // words of a mask; masks of a pass
    int32_t n_slots;
    uint32_t *words; // device memory: [n_slots, n_words]
    int32_t *slots;  // device memory: [max_masks], the slot of each mask of the pass

    struct known_mask {
        uint64_t hash, pass; // pass: the last one with this mask; 0: the slot is empty
        int32_t next;        // of the same place in the table; -1: none
        bool again;          // another pass has used it since the clock's hand passed it
    } *known;
    uint32_t *copies; // host copies of the slots' words
    int32_t *table, table_size;
    int32_t *last;         // [max_masks]: the slot of the mask with this index in an earlier pass
    int32_t *now;          // [max_masks]: as `slots`
    int32_t *fresh;        // [max_masks]: slots with new words
    int32_t hand;          // position of the clock algorithm that chooses the slot to replace
    uint64_t pass, n_sent; // passes with masks; masks that were sent
};

enum status draw_masks_open(struct draw_masks *m, struct cuda *device,
                            const struct backend_limits *limits);
void draw_masks_close(struct draw_masks *m);
/* Bytes of staging memory that the masks of a pass take at most. */
size_t draw_masks_staged_bytes(const struct backend_limits *limits);

/* Sends the masks of a pass to the device. Call this after a flush of the lanes. */
enum status draw_masks_send(struct draw_masks *m, struct lanes *lanes, const uint32_t *masks,
                            int32_t n);

#endif
