/* The inside of the CUDA backend, for the files of this folder: one device, one stream, everything
 * allocated at start. A step is staged in pinned memory and travels in stream order, so device
 * buffers that a step fills need no second copy: the step before has read them by then.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_BACKEND_H
#define SLUICE_CUDA_CUDA_BACKEND_H

#include "cuda/attention.h"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"
#include "engine/device/ops.h"

#include <cuda_runtime_api.h>

enum {
    CUDA_MAX_SETS = MAX_KV_SETS,
    CUDA_MAX_STEPS = 4,   // staging slots
    CUDA_MAX_PASSES = 64, // of a step
    CUDA_MAX_PATCHES = 8192, // between two flushes
    CUDA_STEP_WAIT_S = 300,  // several ranks: a step that takes longer is a hang
};

struct weight {
    enum weight_kind kind;
    enum dtype dtype;
    int64_t n_out, n_in;
    int32_t n_experts;
    void *data;     // [n_experts, n_out, n_in]
    float *bias;    // [n_experts, n_out] or NULL
    void *bias_act; // LINEAR: the same in the weight's dtype, if that is 16-bit
    struct weight *next;
};

struct rope_table {
    struct rope_view view;
    struct rope_table *next;
};

struct kv_set {
    int32_t n_layers; // 0: not open
    struct kv_view *layers;
    struct kv_region *regions; // device, [n_layers]
    void *memory;
};

/* What one step stages, and where its results land. */
struct slot {
    char *pinned;
    size_t used_bytes, flushed_bytes; // staged; of which sent
    cudaEvent_t done;
    bool pending; // recorded, and not waited for
    struct draw_result *draws; // pinned, [max_passes, max_draws]
    float *pooled;             // pinned, [max_lanes, hidden]: shared by the step's passes
    int32_t n_passes, n_pooled;
    struct {
        int32_t n_draws, first_pooled;
    } passes[CUDA_MAX_PASSES];
};

/* Where the arrays of a pass lie in the area for metadata: a function of the bucket alone. */
struct meta_layout {
    size_t rows, row_seq, seqs, groups, out_rows, draws, pool, plan, plan_bytes, tree, end;
};

struct graphs; // cuda_graph.c
struct plans;  // cuda_gemm.c
struct upload; // cuda_upload.c

struct cuda {
    struct backend base; // first
    struct backend_options options;
    enum status lost; // sticky
    int32_t sm, n_sms;
    char device_name[64];
    cudaStream_t stream;

    struct backend_limits limits;
    bool is_set_up;
    int32_t max_draws;
    struct attention_limits attention;
    struct weight *weights;
    struct rope_table *ropes;
    struct kv_set sets[CUDA_MAX_SETS];
    int64_t max_expert_width; // ffn + hidden of the widest experts opened, 0: none

    /* device memory */
    void **allocations; // everything from cuda_alloc, for close
    int32_t n_allocations, max_allocations;
    int32_t *history, *blocks, *tokens;
    struct lane_params *params;
    uint32_t *allowed;
    float *pooled, *pooled_results;
    float *laws;                    // [max_laws, vocab]
    unsigned long long *law_totals; // [max_laws]
    struct draw_result *results;
    char *meta, *staged; // the pass's metadata; the mirror of a slot's pinned memory
    size_t meta_bytes, staged_bytes;
    void *scratch, *attention_workspace, *gemm_workspace, *sums;
    size_t scratch_bytes, gemm_workspace_bytes;
    struct sample_scratch sample;
    float *shards; // ranks' logits

    /* the step and pass in hand */
    struct slot slots[CUDA_MAX_STEPS];
    struct slot *slot; // NULL between steps
    struct patch *patches;
    int32_t n_patches;
    int32_t *told; // [max_lanes]: where the history ends that patches bring to a lane
    const struct pass *pass; // NULL between passes; its arrays are the engine's until pass_end
    int32_t pass_set;
    struct pass_view view; // of the pass in hand
    int32_t attention_slots; // of its plan
    bool is_few;             // attention_few.cu may take its rows
    struct pass_shape shape;
    int32_t pass_n_draws, pass_n_pool;

    /* several ranks, see cuda_peer.c */
    bool has_peers;
    struct peer_view peers;
    int64_t peer_largest; // bytes of a message
    uint32_t *aborted;    // pinned

    struct row_bests bests; // where a head leaves them
    struct graphs *graphs;
    struct plans *plans;
    struct upload *upload;
};

static inline struct cuda *cuda_of(struct backend *be)
{
    return (struct cuda *)be;
}

/* OK, or the sticky ERR_DEVICE after a line in the log. */
enum status cuda_check(struct cuda *be, cudaError_t e, const char *what);
#define CUDA_TRY(be, call) TRY(cuda_check((be), (call), #call))

/* Makes the rank's device the calling thread's: each rank has a thread, and the thread that opens a
 * backend need not be the one that runs it. */
enum status cuda_enter(struct cuda *be);

/* Zeroed device memory that lives until close. */
enum status cuda_alloc(struct cuda *be, size_t n_bytes, void **out);

/* cuda_upload.c: pinned buffers and copying threads, for as long as weights are opened. */
enum status cuda_upload_open(struct cuda *be);
void cuda_upload_close(struct cuda *be);
/* n elements of `to` (device, dtype) from the part. */
enum status cuda_upload_part(struct cuda *be, void *to, enum dtype dtype,
                             const struct weight_part *part);

/* cuda_weights.c */
enum status cuda_weight_open(struct backend *be, const struct weight_desc *desc,
                             struct weight **out, struct err *err);
enum status cuda_rope_open(struct backend *be, const struct rope_desc *desc,
                           struct rope_table **out);

/* cuda_kv.c */
enum status cuda_kv_bytes(struct backend *be, const struct kv_set_desc *desc, int32_t block_tokens,
                          size_t *out);
enum status cuda_kv_open(struct backend *be, int32_t set, const struct kv_set_desc *desc,
                         struct err *err);
enum status cuda_copy_blocks(struct backend *be, int32_t n, const struct block_copy *copies);
enum status cuda_move_slots(struct backend *be, int32_t n, const struct slot_move *moves,
                            int32_t set);
enum status cuda_poison_blocks(struct backend *be, int32_t n, const int32_t *blocks);

/* cuda_lanes.c */
enum status cuda_lane_tokens(struct backend *be, int32_t lane, int32_t first_pos, int32_t n,
                             const int32_t *tokens);
enum status cuda_lane_blocks(struct backend *be, int32_t lane, int32_t first, int32_t n,
                             const int32_t *blocks);
enum status cuda_lane_params(struct backend *be, int32_t lane,
                             const struct sampling_params *params);
/* Sends what the lanes' updates have staged. */
enum status cuda_flush(struct cuda *be);
/* Stages n bytes and sends them with what came before: *device is where they will be. */
enum status cuda_send(struct cuda *be, const void *from, size_t n_bytes, void **device);

/* cuda_step.c */
enum status cuda_setup(struct backend *be, const struct backend_limits *limits, struct err *err);
enum status cuda_step_begin(struct backend *be, int32_t slot);
enum status cuda_step_end(struct backend *be);
enum status cuda_step_wait(struct backend *be, int32_t slot, struct pass_results *results,
                           int32_t max_passes);
bool cuda_step_done(struct backend *be, int32_t slot);

/* cuda_pass.c */
struct meta_layout cuda_meta_layout(const struct cuda *be, int32_t n_rows, int32_t n_out,
                                    int32_t n_draws, int32_t n_pool);
enum status cuda_pass_begin(struct backend *be, const struct pass *pass, struct pass_shape *shape);
enum status cuda_pass_end(struct backend *be);

/* cuda_graph.c: whether the pass is to be issued, captured or replayed. */
enum graph_use { GRAPH_NONE, GRAPH_CAPTURE, GRAPH_REPLAY };
struct graph_key {
    int32_t model, set, n_rows, n_out, n_draws, is_few;
    struct hidden_layers hidden; // zero behind its n
};
enum { GRAPH_MAX_ROWS = 512 };
int32_t cuda_bucket(int32_t n); // the count that n is padded to
enum status cuda_graphs_open(struct cuda *be);
void cuda_graphs_close(struct cuda *be);
enum status cuda_graph_begin(struct cuda *be, const struct graph_key *key, enum graph_use *use);
enum status cuda_graph_end(struct cuda *be); // launches what was captured or is to be replayed
void cuda_graph_abort(struct cuda *be);

/* cuda_gemm.c */
enum status cuda_gemm_open(struct cuda *be);
void cuda_gemm_close(struct cuda *be);
/* With may_split y may be left as *sums instead, in the one area that there is for them; else, and
 * where sums->n stays 0, it is whole. sums may be NULL without may_split. */
enum status cuda_gemm(struct cuda *be, const struct gemm_args *a, struct sum_parts *sums);
/* A product with its activation in one kernel; false where there is none for it. */
bool cuda_gemm_gated(struct cuda *be, const struct gemm_args *a, enum status *st);
/* The output head, of whose logits draws among the first n_drawn ids are made and no more, with the
 * bests that greedy ones read; rows that these alone read are left as they were. False where
 * cuda_gemm is to make all logits. */
bool cuda_gemm_head(struct cuda *be, const struct gemm_args *a, int32_t n_drawn,
                    struct logit_bests *bests, enum status *st);

/* cuda_comm.c */
int32_t cuda_comm_device(const struct comm *c, int32_t rank); // of a rank of this process
bool cuda_comm_is_aborted(const struct cuda *be);
enum status cuda_comm_alive(struct cuda *be); // several ranks only
enum status cuda_comm_all_reduce(struct cuda *be, struct tensor y, int32_t n_rows, int32_t width);
enum status cuda_comm_all_gather(struct cuda *be, const float *from, float *to, size_t n);

/* cuda_peer.c: with several ranks, in setup: opens the memory, then measures. cuda_peer_reduce:
 * false when this sum is NCCL's; n NULL: without a norm. cuda_peer_join: false when NCCL is to
 * bring the logits together. */
enum status cuda_peer_open(struct cuda *be);
enum status cuda_peer_measure(struct cuda *be);
bool cuda_peer_join(struct cuda *be, const struct logits_args *a, int32_t width, enum status *st);
bool cuda_peer_reduce(struct cuda *be, const struct reduce_args *r, const struct norm_args *n,
                      const float *weight, const float *bias, enum status *st);

/* cuda_backend.c: what the table has of this file */
enum status cuda_facts(struct backend *be, struct backend_facts *out);
enum status cuda_alloc_op(struct backend *be, size_t n_bytes, struct dmem *out);
enum status cuda_write(struct backend *be, struct dmem to, const void *from, size_t n_bytes);
enum status cuda_read(struct backend *be, void *to, struct dmem from, size_t n_bytes);
enum status cuda_alive(struct backend *be);
void cuda_close(struct backend *be);

/* cuda_ops.c */
extern const struct backend_ops cuda_ops;

#endif
