// SPDX-License-Identifier: Apache-2.0
/* The CPU backend: a scalar reference of every op, and fast paths chosen at run time.
 * Thread: see engine/device/backend.h. */
#ifndef SLUICE_CPU_CPU_H
#define SLUICE_CPU_CPU_H

#include "engine/device/backend.h"

/* The caller closes it with ops->close. */
enum status cpu_open(const struct backend_options *options, struct backend **out, struct err *err);

/* The same backend with every op in its scalar form, which the op tests compare against. */
enum status cpu_open_scalar(const struct backend_options *options, struct backend **out,
                            struct err *err);

/* Measures, in about a second, the peak rates of this machine with the backend's threads: reading
 * the opened weights, fp32 multiply-adds in registers, and the instruction that bf16 products
 * use. */
struct cpu_peaks {
    double read_bytes_per_s, fma_flops_per_s, product_flops_per_s;
    bool has_matrix_unit; // product_flops_per_s is that of AMX
    int32_t n_threads;
};
enum status cpu_peaks(struct backend *be, struct cpu_peaks *out);
/* Reads all opened weights once, one after the other, and lowers seconds[i] to the time that weight
 * i took. Returns the number of weights; at most max are read. */
int32_t cpu_read_weights(struct backend *be, double *seconds, int32_t max);

/* The communicator of CPU ranks, which are threads of this process and, with several nodes, of
 * other processes too. Node 0 receives the sums of other processes over TCP and adds them up. Free
 * the communicator after the ranks are closed. With several nodes, cpu_comm_open blocks for up to
 * CPU_COMM_WAIT_S. */
enum { CPU_COMM_WAIT_S = 120 };
enum status cpu_comm_open(const struct comm_place *place, struct comm **out, struct err *err);
struct comm *cpu_comm_create(int32_t n_ranks); // all ranks are in this process; for tests
/* Any thread: ends every present and later wait in the communicator. */
void cpu_comm_abort(struct comm *comm);
void cpu_comm_destroy(struct comm *comm);

#endif
