// SPDX-License-Identifier: Apache-2.0
#include "server/call/beams.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEEN =
        2 * MAX_BEAMS + 1, // known next tokens of a beam: the likeliest, and the one that was drawn
    NO_NODE = -1,          // parent of a beam's first token: the prompt
};

/* A token and a link to the token before it. Beams share their beginnings, so the nodes form a
 * tree. */
struct node {
    int32_t parent, token, n; // n: tokens up to here
    float logprob;
};

struct beam {
    int32_t node;
    double sum; // sum of the log-probabilities of its tokens
    double score;
};

/* A possible next token of a beam. */
struct candidate {
    int32_t beam, rank, token;
    float logprob;
    double sum;
    bool ends;
};

/* A request to the engine for the next token of one beam. */
struct probe {
    struct engine_request request;
    struct engine_output output;
    struct token_logprobs logprobs;
    int32_t token, top_ids[MAX_TOP_LOGPROBS];
    float top_logprobs[MAX_TOP_LOGPROBS];
    int32_t *ids; // the prompt and the beam's tokens
};

/* The search of one prompt. */
struct search {
    struct engine_request *whole; // the call's request, which gets the answer
    int32_t width, n_live, n_ended, n_steps;
    int32_t n_submitted, n_done; // numbers of the step's requests; there is one per live beam
    bool over;
    struct beam live[MAX_BEAMS], ended[2 * MAX_BEAMS];
    struct probe probes[MAX_BEAMS];
    struct node *nodes;
    struct token_logprobs *tops; // per node; NULL: the request does not ask for them
    int32_t *top_ids;            // [n_nodes * n_top]
    float *top_logprobs;
    int32_t n_nodes;
};

struct beams {
    size_t n;
    struct search searches[];
};

static bool refuse(struct request *r, const char *key)
{
    return call_error_set(
        &r->error, 400, "unsupported_parameter", key,
        "'%s' is not supported with 'use_beam_search', which compares the model's "
        "own probabilities.",
        key);
}

bool request_check_beams(struct request *r)
{
    const struct sampling_params *p = &r->params, *own = &r->model->defaults;
    const struct {
        const char *key;
        bool asked;
    } others[] = {
        {"logit_bias", p->n_bias > 0},
        {"allowed_token_ids", p->n_allowed > 0},
        {"bad_words", p->n_bad_words > 0},
        {"min_tokens", p->min_tokens > 0},
        {"logprob_token_ids", p->logprob_ids != NULL},
        {r->form == FORM_COMPLETIONS ? "logprobs" : "top_logprobs",
         p->top_logprobs > MAX_TOP_LOGPROBS},
        {"repetition_penalty", p->repetition_penalty != own->repetition_penalty},
        {"frequency_penalty", p->frequency_penalty != own->frequency_penalty},
        {"presence_penalty", p->presence_penalty != own->presence_penalty},
        {r->thinking_param, r->thinking_param && r->thinking_budget >= 0},
        {r->constraint_param, r->constraint_param != NULL},
        {r->tool_param, r->tool_mode == TOOLS_MUST},
    };
    if (!r->beams) {
        return true;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (others[i].asked) {
            return refuse(r, others[i].key ? others[i].key : "tool_choice");
        }
    }
    if (r->n > MAX_BEAMS) {
        return call_error_set(
            &r->error, 400, "integer_above_max_value", "n",
            "Invalid 'n': with 'use_beam_search' it is the number of beams, which is at most %d.",
            MAX_BEAMS);
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        if (r->prompts[i].max_tokens == 0) { // there is nothing to search
            r->beams = false;
        }
    }
    return true;
}

/* ---- memory ------------------------------------------------------------------------------------
 */

/* Each step adds at most one node per live beam, and one per beam that ends. */
static bool open_search(struct search *s, struct engine_request *whole, int32_t n)
{
    int32_t max_tokens = whole->params.max_tokens, n_top = whole->params.top_logprobs;
    size_t n_nodes = (size_t)max_tokens * 2 * (size_t)n;
    s->whole = whole;
    s->width = n;
    s->n_live = 1;
    s->live[0].node = NO_NODE;
    s->nodes = mem_try_calloc(n_nodes, sizeof s->nodes[0]);
    bool good = s->nodes != NULL;
    if (whole->params.logprobs) {
        size_t n_tops = n_nodes * (size_t)greater(n_top, 1);
        s->tops = mem_try_calloc(n_nodes, sizeof s->tops[0]);
        s->top_ids = mem_try_calloc(n_tops, sizeof s->top_ids[0]);
        s->top_logprobs = mem_try_calloc(n_tops, sizeof s->top_logprobs[0]);
        good = good && s->tops && s->top_ids && s->top_logprobs;
    }
    for (int32_t i = 0; i < n && good; i++) {
        size_t n_ids = (size_t)whole->n_prompt + (size_t)max_tokens;
        s->probes[i].ids = mem_try_calloc(n_ids, sizeof(int32_t));
        good = s->probes[i].ids != NULL;
        if (good) {
            memcpy(s->probes[i].ids, whole->prompt, (size_t)whole->n_prompt * sizeof(int32_t));
        }
    }
    return good;
}

bool beams_open(struct call *c, struct call_error *e)
{
    c->beams = mem_try_calloc(1, sizeof(struct beams) + c->n_requests * sizeof(struct search));
    if (!c->beams) {
        return call_error_no_memory(e);
    }
    c->server->n_beam_calls++;
    c->beams->n = c->n_requests;
    for (size_t i = 0; i < c->n_requests; i++) {
        if (!open_search(&c->beams->searches[i], &c->requests[i], c->request.n)) {
            return call_error_no_memory(e);
        }
    }
    return true;
}

void beams_close(struct call *c)
{
    if (!c->beams) {
        return;
    }
    for (size_t i = 0; i < c->beams->n; i++) {
        struct search *s = &c->beams->searches[i];
        for (int32_t k = 0; k < MAX_BEAMS; k++) {
            free(s->probes[k].ids);
        }
        free(s->nodes);
        free(s->tops);
        free(s->top_ids);
        free(s->top_logprobs);
    }
    c->server->n_beam_calls--;
    free(c->beams);
    c->beams = NULL;
}

/* ---- a step's requests -------------------------------------------------------------------------
 */

static int32_t length_of(const struct search *s, int32_t node)
{
    return node == NO_NODE ? 0 : s->nodes[node].n;
}

/* The ids already begin with the prompt. */
static void make_probe(struct search *s, int32_t i)
{
    struct probe *p = &s->probes[i];
    int32_t n = length_of(s, s->live[i].node);
    for (int32_t at = s->live[i].node; at != NO_NODE; at = s->nodes[at].parent) {
        p->ids[s->whole->n_prompt + s->nodes[at].n - 1] = s->nodes[at].token;
    }
    p->logprobs = (struct token_logprobs){.top_ids = p->top_ids, .top_logprobs = p->top_logprobs};
    p->output =
        (struct engine_output){.tokens = &p->token, .logprobs = &p->logprobs, .stop_id = -1};
    p->request = *s->whole;
    p->request.prompt = p->ids;
    p->request.n_prompt = s->whole->n_prompt + n;
    p->request.n = 1;
    p->request.outputs = &p->output;
    p->request.tells_prompt = false;
    struct sampling_params *params = &p->request.params;
    params->temperature = 0;
    params->max_tokens = 1;
    params->logprobs = true;
    params->top_logprobs = greater(2 * s->width, s->whole->params.top_logprobs);
    if (n > 0) { // only one sample reports on the prompt
        params->prompt_logprobs = false;
        p->request.prompt_logprobs = NULL;
    }
}

static enum status refused(struct call *c, enum status st, const struct err *why,
                           struct call_error *e)
{
    if (st == ERR_INVALID) {
        call_error_set(e, 400, "invalid_value", NULL, "%s", why->text);
    } else if (st != ERR_BUSY) {
        c->server->counts.rejected[REJECT_DEAD]++;
        call_error_set(e, 503, "engine_dead", NULL, "The engine does not accept requests.");
    }
    return st;
}

enum status beams_submit(struct call *c, struct call_error *e)
{
    for (size_t i = 0; i < c->beams->n; i++) {
        struct search *s = &c->beams->searches[i];
        while (!s->over && s->n_submitted < s->n_live) {
            struct err err = {""};
            make_probe(s, s->n_submitted);
            enum status st =
                engine_submit(c->server->engine, &s->probes[s->n_submitted].request, &err);
            if (st != OK) {
                return refused(c, st, &err, e);
            }
            s->n_submitted++;
            c->n_submitted++;
        }
    }
    return OK;
}

void beams_cancel(struct call *c)
{
    for (size_t i = 0; i < c->beams->n; i++) {
        struct search *s = &c->beams->searches[i];
        for (int32_t k = 0; k < s->n_submitted; k++) {
            if (!s->probes[k].request.done) {
                engine_cancel(c->server->engine, &s->probes[k].request);
            }
        }
    }
}

static struct search *search_of(struct call *c, const struct engine_request *r)
{
    for (size_t i = 0; i < c->beams->n; i++) {
        struct search *s = &c->beams->searches[i];
        const char *at = (const char *)r, *first = (const char *)s->probes;
        if (at >= first && at < first + sizeof s->probes) {
            return s;
        }
    }
    return NULL;
}

/* Takes the result of a request. Values for the whole prompt come from the first request. */
void beams_take(struct call *c, struct engine_request *r)
{
    struct search *s = search_of(c, r);
    s->n_done++;
    if (s->n_steps == 0) {
        atomic_store(&s->whole->n_cached, atomic_load(&r->n_cached));
        atomic_store(&s->whole->n_recomputed, atomic_load(&r->n_recomputed));
        s->whole->t_submit_ns = r->t_submit_ns;
        s->whole->t_scheduled_ns = r->t_scheduled_ns;
        s->whole->t_first_token_ns = r->t_first_token_ns;
    }
    s->whole->n_preemptions += r->n_preemptions;
}

/* ---- the search --------------------------------------------------------------------------------
 */

static bool ends(const struct search *s, int32_t token)
{
    const struct sampling_params *p = &s->whole->params;
    for (int32_t i = 0; i < p->n_stop_ids; i++) {
        if (p->stop_ids[i] == token) {
            return true;
        }
    }
    return false;
}

/* Likeliest first; equal candidates keep their order. */
static int by_sum(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->sum != y->sum) {
        return x->sum > y->sum ? -1 : 1;
    }
    if (x->beam != y->beam) {
        return x->beam - y->beam;
    }
    return x->rank - y->rank;
}

static int32_t collect(const struct search *s, struct candidate *list)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_live; i++) {
        const struct token_logprobs *lp = &s->probes[i].logprobs;
        int32_t n_top = lesser(lp->n_top, 2 * s->width);
        for (int32_t k = 0; k < n_top; k++) {
            if (isfinite(lp->top_logprobs[k])) {
                list[n++] = (struct candidate){.beam = i,
                                               .rank = k,
                                               .token = lp->top_ids[k],
                                               .logprob = lp->top_logprobs[k],
                                               .sum = s->live[i].sum + (double)lp->top_logprobs[k],
                                               .ends = ends(s, lp->top_ids[k])};
            }
        }
    }
    qsort(list, (size_t)n, sizeof list[0], by_sum);
    return n;
}

static int32_t add_node(struct search *s, const struct candidate *c)
{
    int32_t at = s->n_nodes++, parent = s->live[c->beam].node;
    s->nodes[at] = (struct node){parent, c->token, length_of(s, parent) + 1, c->logprob};
    if (s->tops) {
        const struct token_logprobs *from = &s->probes[c->beam].logprobs;
        int32_t most = s->whole->params.top_logprobs;
        struct token_logprobs *to = &s->tops[at];
        size_t first = (size_t)at * (size_t)greater(most, 1);
        *to = (struct token_logprobs){c->logprob, lesser(from->n_top, most), s->top_ids + first,
                                      s->top_logprobs + first};
        memcpy(to->top_ids, from->top_ids, (size_t)to->n_top * sizeof to->top_ids[0]);
        memcpy(to->top_logprobs, from->top_logprobs,
               (size_t)to->n_top * sizeof to->top_logprobs[0]);
    }
    return at;
}

/* vLLM's score: the length includes the prompt, but not a token that ends the text. */
static double score(const struct search *s, double sum, int32_t n, double penalty)
{
    return sum / pow((double)(s->whole->n_prompt + n), penalty);
}

static int by_score(const void *a, const void *b)
{
    const struct beam *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->node - y->node; // of equal scores, first the beam that ended earlier
}

/* The best score that a live beam can still reach: its sum never grows, but the divisor may. */
static double hope(const struct search *s, const struct beam *live, double penalty)
{
    double now = score(s, live->sum, length_of(s, live->node), penalty);
    double last = score(s, live->sum, s->whole->params.max_tokens, penalty);
    return greater(now, last);
}

/* True if no live beam can become better than those that have ended. */
static bool is_decided(const struct search *s, double penalty)
{
    if (s->n_ended < s->width) {
        return false;
    }
    for (int32_t i = 0; i < s->n_live; i++) {
        if (hope(s, &s->live[i], penalty) >= s->ended[s->width - 1].score) {
            return false;
        }
    }
    return true;
}

/* Continues with the likeliest candidates as live beams. Ended beams are kept while they are among
 * the best. */
static void advance(struct search *s, double penalty)
{
    struct candidate list[MAX_BEAMS * SEEN];
    struct beam live[MAX_BEAMS];
    int32_t n = collect(s, list), n_live = 0, n_new_ended = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct candidate *c = &list[i];
        if (c->ends && n_new_ended < s->width) {
            struct beam *b = &s->ended[s->n_ended++];
            n_new_ended++;
            *b = (struct beam){.node = add_node(s, c), .sum = c->sum};
            b->score = score(s, b->sum, s->nodes[b->node].n - 1, penalty);
        } else if (!c->ends && n_live < s->width) {
            live[n_live++] = (struct beam){.node = add_node(s, c), .sum = c->sum};
        }
    }
    memcpy(s->live, live, (size_t)n_live * sizeof live[0]);
    qsort(s->ended, (size_t)s->n_ended, sizeof s->ended[0], by_score);
    s->n_ended = lesser(s->n_ended, s->width);
    s->n_live = n_live;
    s->n_submitted = s->n_done = 0;
    s->n_steps++;
    s->over = n_live == 0 || s->n_steps == s->whole->params.max_tokens || is_decided(s, penalty);
}

/* Writes one beam to one output. The token that ended it is left out, unless stop strings are
 * kept. */
static void put_output(const struct search *s, const struct beam *b, bool ended, bool with_stop,
                       struct engine_output *o)
{
    int32_t at = b->node, n = length_of(s, at);
    if (ended && !with_stop) {
        at = s->nodes[at].parent;
        n--;
    }
    for (; at != NO_NODE; at = s->nodes[at].parent) {
        int32_t i = s->nodes[at].n - 1;
        o->tokens[i] = s->nodes[at].token;
        if (o->logprobs) {
            const struct token_logprobs *from = &s->tops[at];
            struct token_logprobs *to = &o->logprobs[i];
            to->logprob = from->logprob;
            to->n_top = from->n_top;
            memcpy(to->top_ids, from->top_ids, (size_t)from->n_top * sizeof to->top_ids[0]);
            memcpy(to->top_logprobs, from->top_logprobs,
                   (size_t)from->n_top * sizeof to->top_logprobs[0]);
        }
    }
    atomic_store(&o->n_tokens, n);
    atomic_store(&o->finish, ended ? FINISH_STOP : FINISH_LENGTH);
}

/* Writes the best beams, ended or cut off, in order. */
static void finish(struct search *s, const struct request *r)
{
    int32_t k = 0, i = 0, j = 0;
    for (int32_t m = 0; m < s->n_live; m++) {
        struct beam *b = &s->live[m];
        b->score = score(s, b->sum, length_of(s, b->node), r->length_penalty);
    }
    qsort(s->live, (size_t)s->n_live, sizeof s->live[0], by_score);
    for (; k < s->width && (i < s->n_ended || j < s->n_live); k++) {
        bool ended = j == s->n_live || (i < s->n_ended && s->ended[i].score >= s->live[j].score);
        const struct beam *b = ended ? &s->ended[i++] : &s->live[j++];
        put_output(s, b, ended, r->output.include_stop, &s->whole->outputs[k]);
    }
    for (; k < s->width; k++) { // a vocabulary with fewer tokens than beams
        atomic_store(&s->whole->outputs[k].finish, FINISH_STOP);
    }
    s->whole->t_done_ns = clock_now_ns();
    s->whole->done = true;
}

struct engine_request *beams_step(struct call *c)
{
    for (size_t i = 0; i < c->beams->n; i++) {
        struct search *s = &c->beams->searches[i];
        if (s->over || s->n_done < s->n_live) {
            continue;
        }
        advance(s, c->request.length_penalty);
        if (s->over) {
            finish(s, &c->request);
            return s->whole;
        }
    }
    return NULL;
}
