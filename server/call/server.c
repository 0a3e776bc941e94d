// SPDX-License-Identifier: Apache-2.0
/* State shared by all calls. */
#include "server/call/call.h"

#include "engine/base/hash.h"

enum { SCRATCH_MAX_BYTES = 1 << 30, PART_MAX_BYTES = 256 << 20 };

void call_server_init(struct call_server *s, const struct config *config,
                      const struct call_host *host)
{
    *s = (struct call_server){.config = config, .host = host, .max_part_bytes = PART_MAX_BYTES};
    s->queue_tail = &s->queue;
    s->template_tail = &s->template_queue;
    s->next_seed = hash_process_key() ^ (uint64_t)config->seed;
    buf_init(&s->scratch, SCRATCH_MAX_BYTES);
}

void call_server_deinit(struct call_server *s)
{
    buf_deinit(&s->scratch);
}

void call_observe(struct call *c, enum call_measure what, double v)
{
    if (c->server->host->observe && !c->offline) {
        c->server->host->observe(c->server, what, v);
    }
}
