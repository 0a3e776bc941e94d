// SPDX-License-Identifier: Apache-2.0
/* Host time of a step with 256 decoding sequences: planning, flat arrays and commit. The backend's
 * own work does not count: the fake backend's hashing is timed and subtracted. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/engine_state.h"
#include "test/engine/fake_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256, PROMPT = 64, OUT = 400 };

static void ignore(struct engine_request *r, void *arg)
{
    (void)r;
    (void)arg;
}

/* All sequences decode in every step, so every step plans 256 rows. The prefill is not timed. */
int main(void)
{
    struct fake_control control = {.timed = true};
    struct engine_options o = {.model = "test/golden/llama-3",
                               .load_format = "dummy",
                               .open_backend = fake_open,
                               .open_arg = &control,
                               .no_thread = true,
                               .block_size = 16,
                               .num_gpu_blocks_override = 16384,
                               .enable_prefix_caching = true,
                               .enable_chunked_prefill = true,
                               .max_num_seqs = N,
                               .max_model_len = 512};
    struct engine *e;
    struct err err;
    if (engine_open(&o, &e, &err) != OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    struct engine_request *r = xcalloc(N, sizeof *r);
    struct engine_output *out = xcalloc(N, sizeof *out);
    int32_t *prompts = xcalloc(N * PROMPT, sizeof *prompts);
    for (int32_t i = 0; i < N; i++) {
        for (int32_t k = 0; k < PROMPT; k++) {
            prompts[i * PROMPT + k] = (i * 7 + k) % 384;
        }
        out[i].tokens = xcalloc(OUT, sizeof *out[i].tokens);
        r[i] = (struct engine_request){.prompt = prompts + i * PROMPT,
                                       .n_prompt = PROMPT,
                                       .n = 1,
                                       .params = sampling_params_default(),
                                       .outputs = &out[i]};
        r[i].params.max_tokens = OUT;
        if (engine_submit(e, &r[i], &err) != OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
    }
    for (int32_t i = 0; i < 20; i++) { // finish the prompts, with both steps in flight
        engine_turn(e);
    }
    enum { TURNS = 300 };
    static double us[TURNS];
    for (int32_t i = 0; i < TURNS; i++) {
        int64_t begin = clock_now_ns(), inside = control.busy_ns;
        engine_turn(e);
        us[i] = (double)(clock_now_ns() - begin - (control.busy_ns - inside)) / 1e3;
        engine_drain(e, ignore, NULL);
    }
    for (int32_t i = 1; i < TURNS; i++) { // insertion sort
        double v = us[i];
        int32_t k = i;
        for (; k > 0 && us[k - 1] > v; k--) {
            us[k] = us[k - 1];
        }
        us[k] = v;
    }
    printf("scheduler, 256 sequences: median %.1f us a step, p99 %.1f us (limit 100)\n",
           us[TURNS / 2], us[TURNS * 99 / 100]);
    engine_stop_all(e);
    engine_drain(e, ignore, NULL);
    engine_close(e);
    return us[TURNS / 2] > 100.0;
}
