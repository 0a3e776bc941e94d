// SPDX-License-Identifier: Apache-2.0
/* --speculative-config: misspelt keys, wrong types and values out of range are refused by name. */
#include "engine/speculate/spec.h"
#include "test/check.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The message must contain the key or value that is wrong. */
TEST(invalid_options_are_refused_by_name)
{
    static const struct {
        const char *config, *names;
    } bad[] = {
        {"", "speculative-config"},
        {"[]", "JSON object"},
        {"3", "JSON object"},
        {"{\"method\":\"ngram\"", "speculative-config"},
        {"{}", "(missing)"},
        {"{\"method\":\"eagle\"}", "eagle"},
        {"{\"method\":7}", "method"},
        {"{\"method\":null}", "method"},
        {"{\"method\":\"ngram\",\"num_speculative_token\":3}", "'num_speculative_token'"},
        {"{\"method\":\"ngram\",\"num_speculative_tokens\":\"3\"}", "num_speculative_tokens"},
        {"{\"method\":\"ngram\",\"num_speculative_tokens\":2.5}", "num_speculative_tokens"},
        {"{\"method\":\"ngram\",\"num_speculative_tokens\":0}", "num_speculative_tokens"},
        {"{\"method\":\"ngram\",\"num_speculative_tokens\":4294967297}", "num_speculative_tokens"},
        {"{\"method\":\"ngram\",\"prompt_lookup_max\":true}", "prompt_lookup_max"},
        {"{\"method\":\"ngram\",\"prompt_lookup_min\":4,\"prompt_lookup_max\":3}", "prompt_lookup"},
        {"{\"method\":\"ngram\",\"prompt_lookup_max\":33}", "prompt_lookup"},
        {"{\"method\":\"ngram\",\"disable_by_batch_size\":-1}", "disable_by_batch_size"},
        {"{\"method\":\"ngram\",\"disable_by_batch_size\":4294967304}", "disable_by_batch_size"},
        {"{\"method\":\"ngram\",\"fixed\":1}", "fixed"},
        {"{\"method\":\"draft_model\"}", "'model'"},
        {"{\"method\":\"eagle3\"}", "'model'"},
        {"{\"method\":\"eagle3\",\"model\":[\"a\",\"b\"]}", "'model'"},
        {"{\"method\":\"mtp\",\"model\":\"m\"}", "'model' must not be given"},
        {"{\"method\":\"mtp\",\"tree_width\":0}", "tree_width"},
        {"{\"method\":\"mimo_mtp\"}", "mimo_mtp"},
        {"{\"method\":\"draft_model\",\"model\":3}", "model"},
        {"{\"method\":\"draft_model\",\"model\":\"m\",\"draft_tensor_parallel_size\":0}",
         "draft_tensor_parallel_size"},
        {"{\"method\":\"ngram\",\"rejection_sample_method\":\"typical\"}", "typical"},
        {"{\"method\":\"ngram\",\"rejection_sample_method\":\"probabilistic\"}", "draft model"},
        {"{\"method\":\"ngram\",\"rejection_sample_method\":\"synthetic\"}",
         "synthetic_acceptance_rate"},
        {"{\"method\":\"ngram\",\"synthetic_acceptance_rate\":0.5}", "synthetic"},
        {"{\"method\":\"ngram\",\"synthetic_acceptance_rate\":\"much\"}",
         "synthetic_acceptance_rate"},
    };
    struct spec *sp = xcalloc(1, sizeof *sp);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {""};
        CHECK(spec_init(sp, bad[i].config, &err) != OK);
        if (!strstr(err.text, "speculative-config") || !strstr(err.text, bad[i].names)) {
            CHECK_FAIL("%s: %s", bad[i].config, err.text);
        }
    }
    free(sp);
}

/* Defaults are part of the interface: they are documented. */
TEST(what_is_left_out_has_its_default)
{
    struct spec *sp = xcalloc(1, sizeof *sp);
    const struct spec_options *o = &sp->options;
    struct err err;
    CHECK_EQ(spec_init(sp, NULL, &err), OK);
    CHECK(!sp->proposer);
    CHECK_EQ(spec_init(sp, "{\"method\":\"ngram\"}", &err), OK);
    CHECK(sp->proposer == &proposer_ngram && o->k == 4 && o->min_n == 2 && o->max_n == 5);
    CHECK(o->max_batch == 32 && o->draft_ranks == 1 && !o->fixed);
    CHECK_EQ(spec_init(sp, "{\"method\":\"ngram\",\"prompt_lookup_min\":7}", &err), OK);
    CHECK(o->min_n == 7 && o->max_n == 7);
    CHECK_EQ(spec_init(sp, "{\"method\":\"ngram\",\"prompt_lookup_max\":1}", &err), OK);
    CHECK(o->min_n == 1 && o->max_n == 1);
    CHECK_EQ(spec_init(sp, "{\"model\":\"m\",\"draft_tensor_parallel_size\":2}", &err), OK);
    CHECK(sp->proposer == &proposer_draft_model && o->n_models == 1 && o->draft_ranks == 2);
    free(sp);
}

/* One proposer serves all names of the method; keys for trees make it draft trees. */
TEST(heads_draft_chains_or_trees)
{
    struct spec *sp = xcalloc(1, sizeof *sp);
    const struct spec_options *o = &sp->options;
    struct err err;
    static const char *const names[] = {"mtp",          "deepseek_mtp",      "qwen3_next_mtp",
                                        "glm4_moe_mtp", "glm4_moe_lite_mtp", "qwen3_5_mtp"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char config[64];
        snprintf(config, sizeof config, "{\"method\":\"%s\"}", names[i]);
        CHECK_EQ(spec_init(sp, config, &err), OK);
        CHECK(sp->proposer == &proposer_mtp && o->head == HEAD_MTP && !spec_has_trees(sp));
        CHECK(o->n_models == 1 && o->draft_ranks == 0); // shared as the model is
    }
    CHECK_EQ(spec_init(sp, "{\"method\":\"mtp\",\"tree_nodes\":12}", &err), OK);
    CHECK(o->head == HEAD_MTP && o->budget == 12 && spec_has_trees(sp));
    CHECK_EQ(spec_init(sp, "{\"method\":\"mtp\",\"draft_tensor_parallel_size\":1}", &err), OK);
    CHECK_EQ(o->draft_ranks, 1);
    CHECK_EQ(spec_init(sp, "{\"method\":\"eagle3\",\"model\":\"m\"}", &err), OK);
    CHECK(sp->proposer == &proposer_eagle3 && o->head == HEAD_EAGLE3 && o->draft_ranks == 1);
    CHECK_EQ(spec_init(sp, "{\"method\":\"eagle3\",\"model\":\"m\",\"expansion\":[2,1]}", &err),
             OK);
    CHECK(o->head == HEAD_EAGLE3 && o->k == 2 && spec_has_trees(sp));
    free(sp);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
