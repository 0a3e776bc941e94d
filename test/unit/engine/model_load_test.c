/* What a backend does not take is refused before a weight is read. */
#include "engine/model.h"
#include "test/check.h"

static bool shapes_act;

static enum status facts(struct backend *be, struct backend_facts *out)
{
    (void)be;
    *out = (struct backend_facts){.name = "some backend", .shapes_act = shapes_act};
    return OK;
}

static enum status no_weights(struct backend *be, const struct weight_desc *d, struct weight **out,
                              struct err *err)
{
    (void)be, (void)d;
    *out = NULL;
    return err_set(err, ERR_NOMEM, "a weight was asked for");
}

static void load(const char *dir, const char *says)
{
    const struct backend_ops ops = {.facts = facts, .weight_open = no_weights};
    struct backend be = {.ops = &ops};
    struct model_config c;
    struct model m;
    struct err err = {""};
    REQUIRE(model_config_load(dir, 0, &c, &err) == OK);
    const struct model_load_options options = {.config = &c, .dtype = DT_BF16, .n_ranks = 1};
    CHECK(model_load(&options, &be, &m, &err) != OK);
    if (!strstr(err.text, says)) {
        CHECK_FAIL("%s: \"%s\", expected \"%s\"", dir, err.text, says);
    }
    model_deinit(&m);
}

TEST(another_clamp_than_the_published_one_needs_a_backend_that_takes_it)
{
    shapes_act = false;
    load("test/golden/gpt-oss-clamp", "swiglu_limit 0.4 and swiglu_alpha 2.5: some backend takes");
    load("test/golden/gpt-oss", "a weight was asked for");
    shapes_act = true;
    load("test/golden/gpt-oss-clamp", "a weight was asked for");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
