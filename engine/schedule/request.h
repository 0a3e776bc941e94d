// SPDX-License-Identifier: Apache-2.0
/* A request as it is passed to the engine, and its results: plain data. engine.h, which includes
 * this file, documents what a caller may do with it.
 * Thread: the caller's until engine_submit, then the engine's until it is done; atomic members may
 * be read at any time. */
#ifndef SLUICE_ENGINE_SCHEDULE_REQUEST_H
#define SLUICE_ENGINE_SCHEDULE_REQUEST_H

#include "engine/base/queue.h"
#include "engine/base/status.h"
#include "engine/device/params.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct grammar; // engine/grammar/grammar.h
struct grammar_vocab;

enum finish_reason {
    FINISH_NONE, // not finished
    FINISH_STOP, // a stop id, or engine_stop
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_ERROR, // see engine_request.error
};
enum {
    GRAMMAR_AFTER_MAX = 64, // chosen: maximum bytes of grammar_after
    N_FINISH_REASONS = FINISH_ERROR + 1,
    MAX_DRAFTS = 16,       // chosen: drafts per sequence and step; for a tree, its depth
    MAX_SALT_BYTES = 1024, // chosen: longer cache_salts are never shared
};

struct token_logprobs {
    float logprob; // of the token itself
    int32_t n_top;
    int32_t *top_ids;    // [n_top], most likely first; allocated for the requested number
    float *top_logprobs; // [n_top]
};

/* One of the n samples of a request. */
struct engine_output {
    int32_t *tokens;                 // [max_tokens]; readable below n_tokens
    struct token_logprobs *logprobs; // [max_tokens], or NULL if not requested
    _Atomic int32_t n_tokens;
    _Atomic int32_t finish; // enum finish_reason; once set, n_tokens is final
    int32_t stop_id;        // the stop id that ended it (also its last token), or -1
};

/* How much the client values keeping the tokens [start, end) in the cache after the request has
 * ended, and for how long. A hint: it never changes an answer. */
enum { HINT_OUTPUT = -1, MAX_HINT_PRIORITY = 100 };
struct cache_hint {
    int32_t start, end; // end is exclusive; start HINT_OUTPUT: the first token after the prompt
    int32_t priority;   // 1 to MAX_HINT_PRIORITY; 0: the tokens will not be used again
    int64_t duration_ns;
};

/* A text in an answer: one token, or tokens that spell it. */
struct text_marker {
    const char *text;
    int32_t id; // the token that stands for it; -1: none
};

/* Special tokens with words between them. */
struct token_marker {
    const int32_t *ids;
    int32_t n;
};

/* The maximum number of reasoning tokens in an answer: after these the tokens of `end` are
 * forced. */
enum { MAX_THINKING_MARKS = 6 }; // chosen
struct thinking_limit {
    int32_t most;
    bool opened; // the prompt opens reasoning; else an answer that begins with one of `opens`
    int32_t n_opens, n_closes;
    struct text_marker opens[MAX_THINKING_MARKS], closes[MAX_THINKING_MARKS];
    /* If n > 0, this replaces `opens`: reasoning begins wherever it occurs in the answer. All
     * reasoning counts; reasoning that begins when no token is left ends at once, with last_end. */
    struct token_marker channel;
    struct token_marker end, last_end;
    const struct grammar_vocab *vocab; // texts of this model's tokens
};

struct engine_request {
    struct queue_link link; // inbox, then outbox

    /* Constant after submit. */
    const int32_t *prompt; // [n_prompt], at least 1
    int32_t n_prompt;
    struct sampling_params params;
    int32_t n;                     // samples, at most MAX_SAMPLES; seeds are params.seed + index
    struct engine_output *outputs; // [n]; may be NULL if nothing is sampled (pool)
    int32_t priority; // a lower value comes first, within limits: see priority_worth_ns
    /* Set if nobody waits for the result. While other requests arrive, steps with prompts of
     * background requests are kept short, so that those others wait less for the step in flight. */
    bool background;
    int32_t adapter; // 1 + its index in the engine's options; 0: none. Blocks are never shared
                     // between different ones
    uint32_t adapter_version; // set by the engine, which may replace adapters
    const char *cache_salt;   // cached blocks are shared only between requests with the same salt;
                              // NULL: no salt
    /* The sender, and the share of all blocks that may stay cached for the sender's requests while
     * others need space. owner 0: no particular sender. */
    uint64_t owner;
    double cache_share;
    const struct cache_hint *hints; // [n_hints]
    int32_t n_hints;
    /* Every sample matches the grammar, or is a prefix of a match if max_tokens or a stop truncates
     * it. It must be compiled with this model's vocabulary and end ids. Until the request is done,
     * only the engine thread uses it, so requests may share one. NULL: any text. */
    struct grammar *grammar;
    /* The grammar applies after the first occurrence of this text, or of the token
     * grammar_after_id, which spells it. Before that, any text is allowed, but not the end of the
     * answer. NULL: the grammar applies from the beginning. */
    const char *grammar_after;
    int32_t grammar_after_id;
    const struct thinking_limit *thinking; // NULL: reasoning may have any length
    /* The prompt consists of two texts, of which the second begins at this token; 0: of one. Models
     * with token types tell them apart. */
    int32_t second;
    enum pool_kind pool; // unless POOL_NONE, no tokens are sampled and `pooled` is filled in
    bool tells_prompt;   // signals progress after each chunk of the prompt, too
    int64_t deadline_ns; // on the monotonic clock; 0: none
    void *user;          // for the caller's use

    /* Written by the engine into the caller's memory; readable once the request is done
     * (prompt_logprobs: once n_tokens > 0, too). */
    struct token_logprobs *prompt_logprobs; // [n_prompt], entry 0 unused; NULL if not requested
    /* With pool: room for the wider of [hidden] and [info.pooled_width], of which the latter is
     * filled in; POOL_TOKENS: [n_prompt, hidden]. */
    float *pooled;
    int32_t n_preemptions;
    /* May be read at any time. The engine increases n_accepted after n_drafts, so a reader that
     * loads n_accepted first never sees more accepted drafts than drafts. */
    _Atomic int32_t n_cached; // prompt tokens found in the prefix cache
    // With tells_prompt: prompt tokens cached or computed so far; 0: none yet.
    _Atomic int32_t n_prefilled;
    _Atomic int32_t n_recomputed; // cached tokens that were recomputed because the recurrent state
                                  // or a window was missing; -1: the model has neither
    _Atomic int32_t n_drafts, n_accepted; // speculation, over all samples
    int64_t t_submit_ns, t_scheduled_ns, t_first_token_ns, t_done_ns;
    enum status error;
    char error_text[160];
    bool done; // set by engine_drain: from then on the request belongs to the caller again

    /* Private to the engine. */
    uint64_t order;     // unique; also the request's name in messages
    int32_t n_live;     // samples that have not ended
    bool listed, ended; // protected by the outbox's lock
    // The next request with news in one engine_drain; used by the draining thread.
    struct engine_request *next_event;
};

#endif
