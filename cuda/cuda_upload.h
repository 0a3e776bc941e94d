// SPDX-License-Identifier: Apache-2.0
/* Uploads weights to the device. The pinned buffers and copying threads exist only while weights
 * are opened.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_UPLOAD_H
#define SLUICE_CUDA_CUDA_UPLOAD_H

#include "cuda/cuda_device.h"

enum status cuda_upload_open(struct cuda *be);
void cuda_upload_close(struct cuda *be);
/* Writes unit i of a source to `to`. Thread: any; several threads call it at the same time. */
typedef void upload_fill(const void *source, int64_t i, char *to);
/* Uploads n_units units, which are stored contiguously. */
enum status cuda_upload_units(struct cuda *be, void *to, size_t unit_bytes, int64_t n_units,
                              upload_fill *fill, const void *source);
/* Uploads the elements of the part to `to` (device memory), converted to dtype. */
enum status cuda_upload_part(struct cuda *be, void *to, enum dtype dtype,
                             const struct weight_part *part);
/* Stores element i of an F32, BF16 or F16 array, rounded. */
void cuda_store_number(void *to, enum dtype dtype, int64_t i, float f);

#endif
