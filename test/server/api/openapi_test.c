// SPDX-License-Identifier: Apache-2.0
/* The OpenAPI document contains all rows of the tables. */
#include "server/api/api.h"
#include "server/api/openapi_parts.h"

#include "server/call/members.h"
#include "server/cli/config_load.h"
#include "server/jobs/lines.h"
#include "test/check.h"

/* The document of a server with these arguments, parsed. */
static struct json *make_document(int argc, const char **argv)
{
    struct config config;
    struct err err = {""};
    struct json *root = NULL;
    struct buf b;
    if (config_load(&config, argc, (char **)argv, NULL, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    buf_init(&b, 1 << 22);
    openapi_put(&b, api_routes, &(struct openapi_facts){.config = &config});
    struct json_limits limits = {64, 100000};
    if (b.failed || json_parse(b.data, b.n_bytes, &limits, &root, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    buf_deinit(&b);
    config_deinit(&config);
    return root;
}

static const struct json *at(const struct json *node, const char *key, const char *then)
{
    return json_get(json_get(node, key), then);
}

/* Fails if a route has no row in openapi.c. */
TEST(the_document_has_every_route)
{
    const char *argv[] = {"serve", "models/demo", "--max-loras", "1"}; // some routes need options
    struct json *doc = make_document(4, argv);
    for (const struct http_route *r = api_routes; r->method; r++) {
        char method[16];
        size_t n = strlen(r->method);
        for (size_t i = 0; i <= n; i++) {
            method[i] = (char)(r->method[i] >= 'A' ? r->method[i] | 0x20 : r->method[i]);
        }
        const struct json *operation = json_get(at(doc, "paths", r->path), method);
        const char *summary = json_get_string(operation, "summary");
        if (!summary || !*summary) { // a row is missing in openapi.c
            CHECK_FAIL("%s %s has no words", r->method, r->path);
        }
        const struct json *answers = json_get(operation, "responses");
        CHECK(json_get(answers, "default") &&
              (json_get(answers, "200") || json_get(answers, "204")));
        CHECK(!json_get(operation, "security")); // this server has no keys
    }
    json_free(doc);
}

/* An endpoint of batches is a route that answers errors in OpenAI's form, as the lines of a batch's
 * output do (answer.c). */
TEST(endpoints_of_batches_are_routes_of_openai)
{
    for (size_t i = 0; job_endpoint(i); i++) {
        const struct http_route *r = api_routes;
        while (r->method && (strcmp(r->path, job_endpoint(i)) || strcmp(r->method, "POST"))) {
            r++;
        }
        if (!r->method || reply_form_of(r) != REPLY_OPENAI) {
            CHECK_FAIL("%s is not such a route", job_endpoint(i));
        }
    }
}

/* Bodies of every form, except lines of `sluice generate`, have a schema. */
TEST(every_form_has_a_schema)
{
    for (int i = 0; i < N_FORMS; i++) {
        if (!(openapi_forms() & 1u << i) && i != KIND_GENERATE) {
            CHECK_FAIL("form %d has none", i);
        }
    }
}

/* The schemas are made from the table of members, and limits from the configuration of
 * this server. */
TEST(the_document_has_every_member)
{
    static const struct {
        const char *schema;
        unsigned form;
    } schemas[] = {
        {"ChatRequest", FORM_CHAT},
        {"CompletionRequest", FORM_COMPLETIONS},
        {"EmbeddingTexts", FORM_EMBEDDINGS},
        {"ResponseRequest", FORM_RESPONSES},
        {"TokenizeText", FORM_TOKENIZE_TEXT},
        {"TokenizeMessages", FORM_TOKENIZE_CHAT},
        {"DetokenizeRequest", FORM_DETOKENIZE},
    };
    const char *argv[] = {"serve", "models/demo", "--max-n", "7"};
    struct json *doc = make_document(4, argv);
    const struct json *all = at(doc, "components", "schemas");
    for (size_t s = 0; s < sizeof schemas / sizeof schemas[0]; s++) {
        const struct json *properties = at(all, schemas[s].schema, "properties");
        size_t n = 0;
        const struct member *m;
        for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
            if (!(m->forms & schemas[s].form) || m->unlisted) {
                continue;
            }
            const struct json *p = json_get(properties, m->key);
            if (!json_get_string(p, "description")) {
                CHECK_FAIL("%s lacks '%s'", schemas[s].schema, m->key);
            }
            CHECK(m->use != MEMBER_REFUSED || json_is(json_get(p, "enum"), JSON_ARRAY));
            CHECK(m->type != MEMBER_INT || json_get(p, "type") || json_get(p, "enum") ||
                  (m->may_be_false && json_get(p, "anyOf")));
            n++;
        }
        CHECK_EQ(json_count(properties), n);
    }
    const struct json *n = json_get(at(all, "ChatRequest", "properties"), "n");
    CHECK_EQ(json_get_int(n, "minimum", 0), 1);
    CHECK_EQ(json_get_int(n, "maximum", 0), 7); // the option of this server
    CHECK(json_get_bool(json_get(all, "ChatRequest"), "additionalProperties", false));
    json_free(doc);
}

/* The document depends on the configuration: it requires keys only if there are any, and allows
 * additional properties unless --strict-parameters is set. */
TEST(the_document_shows_keys_and_strictness)
{
    const char *argv[] = {"serve", "models/demo", "--api-key", "k", "--strict-parameters"};
    struct json *doc = make_document(5, argv);
    const struct json *paths = json_get(doc, "paths");
    CHECK_EQ(json_count(json_get(at(paths, "/v1/models", "get"), "security")), 2);
    CHECK(!json_get(at(paths, "/version", "get"), "security"));
    CHECK(!json_get_bool(json_get(at(doc, "components", "schemas"), "ChatRequest"),
                         "additionalProperties", true));
    json_free(doc);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
