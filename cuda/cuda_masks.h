// SPDX-License-Identifier: Apache-2.0
/* Masks of draws on the device. A mask that an earlier pass has sent is not sent again. Masks are
 * compared by content, so callers need not say which ones are equal.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_MASKS_H
#define SLUICE_CUDA_CUDA_MASKS_H

#include "cuda/cuda_device.h"
#include "cuda/cuda_lanes.h"

struct draw_masks {
    struct cuda *device;
    int32_t n_words, max_masks; // words in a mask; maximum number of masks in a pass
    int32_t n_slots;
    uint32_t *words; // [n_slots, n_words], in device memory
    int32_t *slots;  // [max_masks], in device memory: the slot of each mask of the pass

    struct known_mask {
        uint64_t hash, pass; // pass: the last one that had this mask; 0: the slot is empty
        int32_t next;        // next slot in the same bucket of `table`; -1: none
        bool again;          // used since the clock's hand was last here
    } *known;
    uint32_t *copies; // host copies of the words in the slots
    int32_t *table, table_size;
    int32_t *last;  // [max_masks]: the slot of the mask that had this index in an earlier pass
    int32_t *now;   // [max_masks]: host copy of `slots`
    int32_t *fresh; // [max_masks]: slots whose words are new
    int32_t hand;   // position of the clock algorithm that chooses the slot to replace
    uint64_t pass, n_sent; // number of passes with masks; number of masks sent
};

enum status draw_masks_open(struct draw_masks *m, struct cuda *device,
                            const struct backend_limits *limits);
void draw_masks_close(struct draw_masks *m);
/* The maximum bytes of staging memory that the masks of a pass take. */
size_t draw_masks_staged_bytes(const struct backend_limits *limits);

/* Sends the masks of a pass to the device. Call this after a flush of the lanes. */
enum status draw_masks_send(struct draw_masks *m, struct lanes *lanes, const uint32_t *masks,
                            int32_t n);

#endif
