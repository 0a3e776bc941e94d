// SPDX-License-Identifier: Apache-2.0
/* Replaces pull.c in builds without libcurl's header (CURL=0). */
#include "server/hub/private.h"

enum status hub_pull(const struct hub_settings *s, const struct hub_name *name,
                     char folder[PATH_MAX], struct err *err)
{
    (void)folder;
    return err_set(err, ERR_UNSUPPORTED,
                   "%s is not in the cache %.200s, and this build cannot download: it has no "
                   "libcurl (install libcurl4-gnutls-dev and build again, or pass a model folder)",
                   name->id, s->cache);
}
