// SPDX-License-Identifier: Apache-2.0
/* Shared by the files that implement a call: call.c begins it, call_progress.c takes the engine's
 * output, call_end.c ends it. Thread: the one that drains the engine. */
#ifndef SLUICE_SERVER_CALL_CALL_PRIVATE_H
#define SLUICE_SERVER_CALL_CALL_PRIVATE_H

#include "server/call/call.h"

/* call.c: submits calls that found the engine full, in the order of their arrival. */
void call_submit_queued(struct call_server *s);

/* ---- call_end.c ---- */

/* Called at the call's first token or at its end: it no longer counts in its tenant's share of the
 * queue. */
void call_stop_waiting(struct call *c);
void call_start_deadline(struct call *c);

/* Ends the answer with an error: an event of the stream, or the whole answer. Engine work is
 * cancelled. */
void call_fail(struct call *c, const struct call_error *e);
/* Ends a background response with the output so far, either now or once its beginning is stored. */
void call_end_kept(struct call *c);
void call_give_back(struct call *c); // ends a call whose client has left
void call_let_go(struct call *c);    // ends a call whose sink has received the answer
void call_finish_if_complete(struct call *c);

/* Frees the call if both its sink and the engine have let go of it. Within engine_drain the memory
 * must outlast the drain: call_forget_dead frees it afterwards. */
void call_release(struct call *c);
void call_forget_dead(struct call_server *s);

/* No answer may silently lack text because an allocation has failed: call_lacks_memory fails the
 * call if this has happened since call_watch_memory. */
void call_watch_memory(struct call_server *s);
bool call_lacks_memory(struct call *c);

#endif
