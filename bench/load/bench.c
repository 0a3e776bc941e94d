// SPDX-License-Identifier: Apache-2.0
/* sluice bench: parses the options, finds the model's name, runs the load and reports. */
#include "bench/load/bench.h"

#include "bench/load/report.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdio.h>
#include <stdlib.h>

/* Uses the model that the server lists first, as the examples of the SDKs do. */
static enum status find_model(const struct bench_options *o, char **model, struct err *err)
{
    if (o->model != NULL) {
        *model = xstrdup(o->model);
        return OK;
    }
    struct buf body;
    buf_init(&body, 1 << 20);
    struct json *root = NULL;
    enum status st = bench_get(o, "/v1/models", &body, err);
    if (st == OK) {
        st = json_parse(or_empty(body.data), body.n_bytes, NULL, &root, err);
    }
    if (st == OK) {
        const char *id = json_get_string(json_first(json_get(root, "data")), "id");
        if (id != NULL) {
            *model = xstrdup(id);
        } else {
            st = err_set(err, ERR_FORMAT, "/v1/models names no model; use --model");
        }
    }
    json_free(root);
    buf_deinit(&body);
    return st;
}

/* The exit status depends on the requests: if any failed, the run is not a valid measurement. */
static enum status run(const struct bench_options *o, const char *model, bool *all_good,
                       struct err *err)
{
    struct bench_load load;
    struct bench_results r = {0};
    enum status st = bench_load_init(&load, o, model, err);
    if (st == OK && o->batch_path != NULL) {
        st = bench_load_write_batch(&load, o->batch_path, err);
        *all_good = st == OK;
        bench_load_deinit(&load);
        return st;
    }
    if (st == OK) {
        st = bench_run(o, &load, &r, err);
    }
    if (st == OK) {
        struct bench_report rep;
        bench_report_make(o, &r, &rep);
        bench_report_print(o, &r, &rep);
        *all_good = rep.outcomes[OUTCOME_OK] == rep.n_sent;
        if (o->json_path != NULL) {
            st = bench_report_json(o, model, &r, &rep, err);
        } else {
            st = OK;
        }
    }
    bench_results_deinit(&r);
    bench_load_deinit(&load);
    return st;
}

/* Exit status 2: wrong options; 1: a request failed or the server cannot be reached. */
int cmd_bench(int argc, char **argv)
{
    struct bench_options o;
    struct err err;
    if (bench_options_parse(argc, argv, &o, &err) != OK) {
        fprintf(stderr, "sluice bench: %s\n'sluice bench --help' lists the options.\n", err.text);
        return 2;
    }
    if (o.help) {
        bench_options_help();
        return 0;
    }
    char *model = NULL;
    bool all_good = false;
    enum status st = find_model(&o, &model, &err);
    if (st == OK) {
        st = run(&o, model, &all_good, &err);
    }
    free(model);
    if (st != OK) {
        fprintf(stderr, "sluice bench: %s\n", err.text);
        return 1;
    }
    return !all_good;
}
