/* Weights on their way to the device: pinned buffers and copying threads, for as long as weights
 * are opened. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_UPLOAD_H
#define SLUICE_CUDA_CUDA_UPLOAD_H

#include "cuda/cuda_device.h"

enum status cuda_upload_open(struct cuda *be);
void cuda_upload_close(struct cuda *be);
/* n elements of `to` (device, dtype) from the part. */
enum status cuda_upload_part(struct cuda *be, void *to, enum dtype dtype,
                             const struct weight_part *part);

#endif
