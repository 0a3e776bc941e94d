// SPDX-License-Identifier: Apache-2.0
/* Explains in one sentence why a download failed, and what to do. */
#include "engine/base/optional.h"
#include "server/hub/pull.h"

#include <stdio.h>
#include <string.h>

/* Gated models need an account that was granted access, and its token. */
static enum status explain_gated(struct pull *p)
{
    const struct hub_settings *s = p->settings;
    const char *id = p->name->id;
    if (s->token[0]) {
        return err_set(p->err, ERR_INVALID,
                       "%s is gated, and the account of this token has no access: request "
                       "access at %s/%s and try again when it is granted",
                       id, s->endpoint, id);
    }
    return err_set(p->err, ERR_INVALID,
                   "%s is gated: accept its terms at %s/%s, create a token at %s/settings/tokens "
                   "and set HF_TOKEN to it",
                   id, s->endpoint, id, s->endpoint);
}

/* The hub answers 401 for repositories whose existence it hides from anonymous clients. */
static enum status explain_missing(struct pull *p)
{
    const struct hub_settings *s = p->settings;
    return err_set(p->err, ERR_INVALID, "there is no model %s at %s, or it is private%s",
                   p->name->id, s->endpoint,
                   s->token[0] ? " and the account of this token has no access to it"
                               : ": in that case set HF_TOKEN to a token that may read it");
}

/* Says which part of the address does not exist: the file, the revision or the model. */
static enum status explain_404(struct pull *p, const struct net_request *r, const char *what)
{
    const struct hub_name *n = p->name;
    if (what) {
        return err_set(p->err, ERR_INVALID,
                       "%s has no file %.150s at revision %s, though it is "
                       "listed: try again later",
                       n->id, what, n->revision);
    }
    if (strcmp(r->answer.error_code, "RevisionNotFound") == 0) {
        return err_set(p->err, ERR_INVALID,
                       "%s has no revision '%s': its branches and tags are at "
                       "%s/%s/tree/main",
                       n->id, n->revision, p->settings->endpoint, n->id);
    }
    if (n->revision_given && strcmp(r->answer.error_code, "RepoNotFound") != 0) {
        return err_set(p->err, ERR_INVALID,
                       "there is no model %s at %s, or it has no revision "
                       "'%s'",
                       n->id, p->settings->endpoint, n->revision);
    }
    return explain_missing(p);
}

/* Explains an answer with an error status. If it has the hub's error code, that says more than the
 * status. */
static enum status explain_answer(struct pull *p, const struct net_request *r, const char *what)
{
    const struct net_answer *a = &r->answer;
    const char *id = p->name->id;
    if (strcmp(a->error_code, "GatedRepo") == 0) {
        return explain_gated(p);
    }
    if (strcmp(a->error_code, "RepoNotFound") == 0) {
        return explain_missing(p);
    }
    if (a->status == 404) {
        return explain_404(p, r, what);
    }
    if (a->status == 401) {
        if (p->settings->token[0]) {
            return err_set(p->err, ERR_INVALID,
                           "%s does not accept the token: create a new one at %s/settings/tokens "
                           "and set HF_TOKEN to it",
                           p->settings->endpoint, p->settings->endpoint);
        }
        return explain_missing(p);
    }
    if (a->status == 403) {
        return err_set(p->err, ERR_INVALID, "%s cannot be read%s: see %s/%s", id,
                       p->settings->token[0] ? " with this token" : " without a token (HF_TOKEN)",
                       p->settings->endpoint, id);
    }
    if (a->status == 429 && a->retry_after_s > 0) {
        return err_set(p->err, ERR_BUSY,
                       "the hub has received too many requests from this address (429): try again "
                       "in %lld s; the download continues where it stopped",
                       (long long)a->retry_after_s);
    }
    return err_set(p->err, ERR_IO,
                   "%s: the hub answered with status %ld for %.150s: try again later; the download "
                   "continues where it stopped",
                   id, a->status, or_text(what, "its list of files"));
}

/* Explains a request that got no answer: names, connections, certificates, timeouts. */
static enum status explain_failure(struct pull *p, const struct net_request *r, const char *what)
{
    const char *endpoint = p->settings->endpoint, *id = p->name->id;
    switch (r->code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
        return err_set(p->err, ERR_IO,
                       "%s is not completely in the cache, and %.150s cannot be reached (%.150s): "
                       "check the network, or set HTTPS_PROXY if you need a proxy",
                       id, endpoint, r->why);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
        return err_set(
            p->err, ERR_IO,
            "%s: the certificate is not trusted (%.150s): install the package ca-certificates, or "
            "set SSL_CERT_FILE to a file with the certificate authority of your network",
            id, r->why);
    case CURLE_OPERATION_TIMEDOUT:
        return err_set(p->err, ERR_TIMEOUT,
                       "%s: no byte of %.100s was received for %d s: try again; the download "
                       "continues where it stopped (HF_HUB_DOWNLOAD_TIMEOUT sets this time)",
                       id, or_text(what, "its list of files"), p->settings->timeout_s);
    default:
        return err_set(p->err, ERR_IO,
                       "%s: the transfer of %.100s failed (%.200s): try again; the download "
                       "continues where it stopped",
                       id, or_text(what, "its list of files"), r->why);
    }
}

/* Keeps the first error of a download. */
enum status pull_explain(struct pull *p, const struct net_request *r, const char *what)
{
    if (p->st == OK) {
        if (r->end == NET_ANSWERED) {
            p->st = explain_answer(p, r, what);
        } else {
            p->st = explain_failure(p, r, what);
        }
    }
    return p->st;
}
