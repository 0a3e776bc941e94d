// SPDX-License-Identifier: Apache-2.0
#include "server/jobs/plan.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "server/call/prepare.h"
#include "server/jobs/prefix_groups.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    PART_TOKENS = 1 << 26, // limit for a part: 256 MiB of ids
    SLICE = 64,            // lines prepared between checks of the token limit
    MAX_THREADS = 16,
    SPACE_KEY = 0x51, // arbitrary key for the hash of salts
};

const char *const job_order_names[N_JOB_ORDERS] = {"none", "sorted", "groups", "ratio"};

/* What planning needs to know of a line. */
struct prepared {
    int32_t line, n_ids;
    int32_t *ids; // ids of the first prompt; NULL: it has none yet, or will be rejected
    uint64_t space;
    int32_t n_prompt, n_samples, max_output;
};

/* ---- preparing ------------------------------------------------------------------------------- */

/* Only the ids of the first prompt and the salt are needed, to group requests by prefix. */
static void take_request(struct prepared *p, const struct request *r)
{
    if (r->n_prompts == 0 || r->prompts[0].n <= 0) {
        return;
    }
    size_t n = (size_t)r->prompts[0].n;
    p->ids = mem_try_calloc(n, sizeof *p->ids);
    if (!p->ids) {
        return; // it still runs, but in no group
    }
    memcpy(p->ids, r->prompts[0].ids, n * sizeof *p->ids);
    p->n_ids = r->prompts[0].n;
    if (r->cache_salt) {
        p->space = hash_bytes(r->cache_salt, strlen(r->cache_salt), SPACE_KEY);
    } else {
        p->space = 0;
    }
    p->space ^= (uint64_t)r->adapter;
    for (size_t i = 0; i < r->n_prompts; i++) {
        p->n_prompt += r->prompts[i].n;
        if (r->generates) {
            p->max_output += r->prompts[i].max_tokens;
        }
    }
    p->n_samples = (int32_t)r->n_prompts * (r->n > 0 ? r->n : 1);
    p->max_output *= r->n > 0 ? r->n : 1;
}

/* Reads a line and prepares it like a request, without submitting it. */
static enum status prepare_line(struct prepared *p, const struct call_model *model,
                                const struct job_input *in, const struct job_lines *lines,
                                struct err *err)
{
    const struct job_line *l = &lines->lines[p->line];
    struct buf text;
    buf_init(&text, (size_t)l->body_bytes + 1);
    enum status st = in->read(in->arg, l->body_at, (size_t)l->body_bytes, &text, err);
    if (st == OK && text.data) {
        struct request r = {.kind = (enum request_kind)l->kind,
                            .model = model,
                            .text = text.data,
                            .n_bytes = text.n_bytes};
        const enum prepare_stage stage = prepare_body(&r);
        if (stage ==
            PREPARE_PROMPT) { // a line's own template is rendered only when the line is answered
            prepare_prompt(&r);
        }
        if (stage != PREPARE_TEMPLATE && r.error.status == 0) {
            take_request(p, &r);
        }
        request_deinit(&r);
    }
    buf_deinit(&text);
    return st;
}

/* Lines that several threads prepare together. */
struct slice {
    const struct call_model *model;
    const struct job_input *in;
    const struct job_lines *lines;
    struct prepared *items;
    int32_t n;
    atomic_int next;
    const atomic_bool *given_up;
    pthread_mutex_t lock;
    enum status st; // like err, protected by the lock
    struct err *err;
};

static bool is_given_up(const atomic_bool *flag)
{
    return flag && atomic_load(flag);
}

/* Each thread takes the next line of the slice until none is left. */
static void *prepare_some(void *arg)
{
    struct slice *s = arg;
    for (int i; !is_given_up(s->given_up) && (i = atomic_fetch_add(&s->next, 1)) < s->n;) {
        struct err err = {""};
        enum status st = prepare_line(&s->items[i], s->model, s->in, s->lines, &err);
        if (st != OK) {
            pthread_mutex_lock(&s->lock);
            s->st = err_set(s->err, st, "%s", err.text);
            pthread_mutex_unlock(&s->lock);
        }
    }
    return NULL;
}

/* If no thread can be created, this one does all the work. */
static enum status prepare_slice(struct slice *s, int n_threads)
{
    pthread_t threads[MAX_THREADS];
    int n = 0;
    pthread_mutex_init(&s->lock, NULL);
    while (n < n_threads - 1 && pthread_create(&threads[n], NULL, prepare_some, s) == 0) {
        n++;
    }
    prepare_some(s); // this thread takes part
    while (n > 0) {
        pthread_join(threads[--n], NULL);
    }
    pthread_mutex_destroy(&s->lock);
    return s->st;
}

/* The lines of a part: as many as the token limit allows. */
struct part {
    struct prepared *items;
    int32_t n;
};

static void part_free(struct part *part)
{
    for (int32_t i = 0; i < part->n; i++) {
        free(part->items[i].ids);
    }
    free(part->items);
}

/* Prepares lines until there are no more, or their ids take as much memory as a part may. */
static enum status prepare_part(struct job_plan *p, const struct job_plan_options *o,
                                const struct job_input *in, const struct job_lines *lines,
                                struct part *part, struct err *err)
{
    int64_t most = o->max_tokens > 0 ? o->max_tokens : PART_TOKENS, n_tokens = 0;
    int n_threads = o->n_threads > 0 && o->n_threads < MAX_THREADS ? o->n_threads : 2;
    part->items = xcalloc((size_t)(lines->n - p->n_planned) + 1, sizeof *part->items);
    while (p->n_planned < lines->n && n_tokens < most && !is_given_up(o->given_up)) {
        int32_t first = part->n;
        for (; p->n_planned < lines->n && part->n - first < SLICE * n_threads; p->n_planned++) {
            if (!lines->lines[p->n_planned].is_answered) {
                part->items[part->n++].line = p->n_planned;
            }
        }
        struct slice s = {.model = o->model,
                          .in = in,
                          .lines = lines,
                          .given_up = o->given_up,
                          .items = part->items + first,
                          .n = part->n - first,
                          .err = err};
        TRY(prepare_slice(&s, n_threads));
        for (int32_t i = first; i < part->n; i++) {
            n_tokens += part->items[i].n_ids;
        }
    }
    return OK;
}

/* ---- ordering -------------------------------------------------------------------------------- */

/* Orders by salt, then by ids, so that equal prefixes are adjacent. */
static int compare_prompts(const void *a, const void *b)
{
    const struct prepared *x = a, *y = b;
    int32_t n = lesser(x->n_ids, y->n_ids);
    if (x->space != y->space) {
        return x->space < y->space ? -1 : 1;
    }
    for (int32_t i = 0; i < n; i++) {
        if (x->ids[i] != y->ids[i]) {
            return x->ids[i] < y->ids[i] ? -1 : 1;
        }
    }
    if (x->n_ids != y->n_ids) {
        return x->n_ids < y->n_ids ? -1 : 1;
    }
    return (x->line > y->line) - (x->line < y->line);
}

static struct job_member member_of(const struct prepared *q, int32_t group, int32_t n_shared)
{
    return (struct job_member){.line = q->line,
                               .group = group,
                               .n_prompt = q->n_prompt,
                               .n_shared = n_shared,
                               .max_output = q->max_output,
                               .n_samples = q->n_samples > 0 ? q->n_samples : 1};
}

/* Copies the groups to the part's members. In orders without groups every line is a group of its
 * own. */
static void take_groups(struct job_plan *p, const struct part *part,
                        const struct prefix_groups *groups, bool in_groups)
{
    p->members = xcalloc((size_t)part->n + 1, sizeof *p->members);
    p->n_members = part->n;
    if (!in_groups) {
        for (int32_t i = 0; i < part->n; i++) {
            p->members[i] = member_of(&part->items[i], i, 0);
        }
        p->n_groups = part->n;
        return;
    }
    for (int32_t g = 0; g < groups->n_groups; g++) {
        const struct prefix_group *group = &groups->groups[g];
        for (int32_t i = group->first; i < group->first + group->n; i++) {
            p->members[i] = member_of(&part->items[groups->order[i]], g, group->prefix_len);
        }
    }
    p->n_groups = groups->n_groups;
}

/* Groups are always made, because they tell how many tokens will be computed, but some orders
 * ignore them. */
static void order_part(struct job_plan *p, const struct job_plan_options *o, struct part *part)
{
    struct group_prompt *prompts = xcalloc((size_t)part->n + 1, sizeof *prompts);
    struct prefix_groups groups;
    bool in_groups = o->order == JOB_ORDER_GROUPS || o->order == JOB_ORDER_RATIO;
    int64_t n_others = 0; // tokens of a line's further prompts
    if (o->order == JOB_ORDER_SORTED) {
        qsort(part->items, (size_t)part->n, sizeof *part->items, compare_prompts);
    }
    for (int32_t i = 0; i < part->n; i++) {
        const struct prepared *q = &part->items[i];
        prompts[i] = (struct group_prompt){q->ids, q->n_ids, q->space, q->max_output};
        n_others += q->n_prompt - q->n_ids;
    }
    prefix_groups_make(prompts, part->n, o->match_unit,
                       o->order == JOB_ORDER_RATIO ? GROUP_ORDER_RATIO : GROUP_ORDER_TREE, &groups);
    take_groups(p, part, &groups, in_groups);
    p->logical_tokens += groups.logical_tokens + n_others;
    p->computed_tokens += groups.computed_tokens + n_others;
    prefix_groups_free(&groups);
    free(prompts);
}

/* Plans the next part of the input. The caller takes its members before it asks for another. */
enum status job_plan_next(struct job_plan *p, const struct job_plan_options *options,
                          const struct job_input *in, const struct job_lines *lines,
                          struct err *err)
{
    struct part part = {0};
    free(p->members);
    p->members = NULL;
    p->n_members = p->n_groups = 0;
    enum status st = prepare_part(p, options, in, lines, &part, err);
    if (st == OK && !is_given_up(options->given_up)) {
        order_part(p, options, &part);
    }
    part_free(&part);
    return st;
}

void job_plan_deinit(struct job_plan *p)
{
    free(p->members);
    *p = (struct job_plan){0};
}
