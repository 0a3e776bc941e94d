// SPDX-License-Identifier: Apache-2.0
/* A device that lacks an optional op refuses the models that need it, in one sentence. */
#include "cpu/cpu.h"
#include "engine/model/model.h"
#include "test/check.h"

/* Loads dummy weights on a CPU with these ops. */
static enum status load(const char *dir, const struct backend_ops *ops, struct err *err)
{
    const struct backend_options options = {.n_ranks = 1, .dtype = DT_F32, .threads = 1};
    struct model_config config;
    struct backend *be = NULL;
    struct model model = {.layers = NULL};
    CHECK_EQ(model_config_load(dir, &config, err), OK);
    CHECK_EQ(cpu_open(&options, &be, err), OK);
    model_config_fit(&config, 64);
    const struct backend_ops *own = be->ops;
    be->ops = ops ? ops : own;
    const struct model_load_options how = {.config = &config, .dtype = DT_F32, .n_ranks = 1};
    enum status st = model_load(&how, be, &model, err);
    model_deinit(&model);
    be->ops = own;
    own->close(be);
    return st;
}

static struct backend_ops cpu_ops(void)
{
    const struct backend_options options = {.n_ranks = 1, .dtype = DT_F32, .threads = 1};
    struct err err;
    struct backend *be = NULL;
    CHECK_EQ(cpu_open(&options, &be, &err), OK);
    const struct backend_ops ops = *be->ops;
    be->ops->close(be);
    return ops;
}

TEST(sparse_attention_needs_both_of_its_ops)
{
    const char *const sparse = "test/golden-families/glm-5";
    const char *const dense = "test/golden/deepseek-v3";
    struct backend_ops without_pick = cpu_ops(), without_store = cpu_ops();
    const struct backend_ops *const lacking[] = {&without_pick, &without_store};
    struct err err = {""};
    without_pick.index_pick = NULL;
    without_store.index_store = NULL;
    CHECK_EQ(load(sparse, NULL, &err), OK);
    for (int32_t i = 0; i < 2; i++) {
        CHECK_EQ(load(dense, lacking[i], &err), OK);
        CHECK_EQ(load(sparse, lacking[i], &err), ERR_UNSUPPORTED);
        CHECK_STR(err.text, "glm_moe_dsa: models with sparse attention are not supported on this "
                            "device");
    }
}

TEST(hyper_connections_need_their_op)
{
    struct backend_ops without = cpu_ops();
    struct err err = {""};
    without.hyper = NULL;
    CHECK_EQ(load("test/golden-families/hy-4", NULL, &err), OK);
    CHECK_EQ(load("test/golden-families/glm-5", &without, &err), OK);
    CHECK_EQ(load("test/golden-families/hy-4", &without, &err), ERR_UNSUPPORTED);
    CHECK_STR(err.text, "hy_v4: models with hyper-connections are not supported on this device");
}

static enum status facts_without_pools(struct backend *be, struct backend_facts *out)
{
    const enum status st = cpu_ops().facts(be, out);
    out->pooled_keys = false;
    return st;
}

TEST(pooled_index_keys_need_a_device_that_has_them)
{
    struct backend_ops without = cpu_ops();
    struct err err = {""};
    without.facts = facts_without_pools;
    CHECK_EQ(load("test/golden-families/glm-5-next", NULL, &err), OK);
    CHECK_EQ(load("test/golden-families/glm-5", &without, &err), OK);
    CHECK_EQ(load("test/golden-families/glm-5-next", &without, &err), ERR_UNSUPPORTED);
    CHECK_STR(err.text, "glm5_next_text: indexers that pool keys are not supported on this device "
                        "yet; --device cpu supports them");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
