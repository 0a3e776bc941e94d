// SPDX-License-Identifier: Apache-2.0
/* Hints about the prefix cache (kv_hints): what is read from them, and that a malformed
 * hint is an error. */
#include "engine/schedule/request.h"
#include "test/server/call/request_bed.h"

#define HINTS(actions)                                                                             \
    "{" HI                                                                                         \
    ",\"kv_hints\":{\"protocol_version\":\"0.1\",\"message_id\":\"m\",\"actions\":[" actions "]}}"
#define ACTION(type, version, payload)                                                             \
    "{\"action_id\":\"a\",\"action_type\":\"" type "\",\"action_version\":\"" version              \
    "\",\"payload\":{" payload "}}"
/* An action of an unknown type is skipped, since hints are advisory; one that we know must
 * be well formed. */
#define RETAIN(directives) ACTION("kv.retain", "1.0", "\"directives\":[" directives "]")
#define KEEP "{\"priority\":7}"
#define FOUR(x) x "," x "," x "," x

static void check_hint(const struct cache_hint *h, int32_t start, int32_t end, int32_t priority,
                       int64_t seconds)
{
    CHECK_EQ(h->start, start);
    CHECK_EQ(h->end, end);
    CHECK_EQ(h->priority, priority);
    CHECK_EQ(h->duration_ns, seconds * 1000000000);
}

/* Two retained ranges and the output; times are clamped to an hour, positions to int32_t.
 * The unknown action between them is not an error, even with nonsense in it. */
TEST(hints_about_the_cache)
{
    ACCEPTS(KIND_CHAT,
            HINTS(RETAIN("{\"start\":0,\"end\":16,\"priority\":80,\"duration\":12.5},{\"start\":16,"
                         "\"end\":99999999999,\"priority\":80,\"duration\":2592000}") "," //
                  ACTION("kv.prefetch", "9", "\"directives\":7") ","                      //
                  RETAIN("{\"covers_output\":true,\"priority\":0,\"duration\":null}")));
    CHECK_EQ(r.n_hints, 3);
    CHECK_EQ(r.hints[0].duration_ns, INT64_C(12500000000));
    CHECK_EQ(r.hints[0].end, 16);
    check_hint(&r.hints[1], 16, INT32_MAX, 80, 3600); // an hour at most
    check_hint(&r.hints[2], HINT_OUTPUT, INT32_MAX, 0, 3600);
    DONE();
}

/* Clients without hints send empty envelopes. */
TEST(an_empty_list_of_actions_has_no_hints)
{
    ACCEPTS(KIND_MESSAGES, "{\"max_tokens\":3," HI ",\"kv_hints\":{\"protocol_version\":\"0.1\","
                           "\"message_id\":\"\",\"actions\":[]}}");
    CHECK_EQ(r.n_hints, 0);
    DONE();
}

TEST(an_empty_envelope_is_no_hint)
{
    ACCEPTS(KIND_CHAT, "{" HI ",\"kv_hints\":{}}");
    CHECK_EQ(r.n_hints, 0);
    DONE();
}

/* One error per line: types, versions, ranges, counts (16 actions, 128 directives), and priorities
 * that differ although only one is allowed. */
TEST(hints_are_checked)
{
#define REFUSES_HINTS(actions) REFUSES(KIND_CHAT, HINTS(actions), "invalid_value", "kv_hints")
#define REFUSES_DIRECTIVE(d) REFUSES_HINTS(RETAIN(d))
    REFUSES(KIND_CHAT, "{" HI ",\"kv_hints\":[]}", "invalid_type", "kv_hints");
    REFUSES(KIND_CHAT,
            "{" HI ",\"kv_hints\":{\"protocol_version\":1,\"message_id\":\"\",\"actions\":[]}}",
            "invalid_value", "kv_hints");
    REFUSES_HINTS("7");
    REFUSES_HINTS("{\"action_id\":\"a\",\"action_type\":\"kv.retain\",\"action_version\":\"1.0\"}");
    REFUSES_HINTS(ACTION("kv.retain", "1.0", ""));
    REFUSES_HINTS(ACTION("kv.retain", "2.0", "\"directives\":[]"));
    REFUSES_HINTS(ACTION("kv.retain", "10", "\"directives\":[]"));
    REFUSES_HINTS(ACTION("kv.retain", "1.0", "\"scope\":5,\"directives\":[]"));
    REFUSES_HINTS(ACTION("kv.retain", "1.0", "\"scope\":\"a\",\"directives\":[]") "," RETAIN(""));
    REFUSES_HINTS(FOUR(FOUR(RETAIN(""))) "," RETAIN(""));
    REFUSES_DIRECTIVE(FOUR(FOUR(FOUR(KEEP))) "," FOUR(FOUR(FOUR(KEEP))) "," KEEP);
    REFUSES_DIRECTIVE("7");
    REFUSES_DIRECTIVE("{}");
    REFUSES_DIRECTIVE("{\"priority\":101}");
    REFUSES_DIRECTIVE("{\"priority\":-1}");
    REFUSES_DIRECTIVE("{\"priority\":1.5}");
    REFUSES_DIRECTIVE("{\"priority\":true}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"ttl\":5}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"start\":-1}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"start\":null}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"start\":8,\"end\":8}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"duration\":-1}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"duration\":2592001}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"duration\":\"5\"}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"covers_output\":1}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"covers_output\":true,\"end\":9}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"start\":0},{\"priority\":2,\"start\":9}");
    REFUSES_DIRECTIVE("{\"priority\":1,\"start\":3},{\"priority\":2,\"covers_output\":true}");
    REFUSES_HINTS(
        RETAIN("{\"priority\":1,\"start\":3}") "," RETAIN("{\"priority\":2,\"start\":4}"));
}

int main(int argc, char **argv)
{
    return request_main(argc, argv);
}
