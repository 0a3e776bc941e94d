// SPDX-License-Identifier: Apache-2.0
/* Hidden states of chosen layers, on the GPU. */
#include "test/cuda/cuda_pair.h"
#include "test/model/hidden.h"

/* float32 and deterministic, since bits are compared. */
static struct backend *open_gpu(void)
{
    const struct backend_options o = {.n_ranks = 1, .dtype = DT_F32, .deterministic = true};
    struct backend *be = NULL;
    struct err err = {""};
    const enum status st = cuda_open(&o, &be, &err);
    if (st != OK) {
        printf("%s\n", err.text);
        exit(1);
    }
    return be;
}

TEST(hidden_states_are_those_of_a_model_that_ends_there)
{
    NEED_GPU();
    hidden_check_families(open_gpu);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
