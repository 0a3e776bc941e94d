// SPDX-License-Identifier: Apache-2.0
/* In place of pull.c where libcurl's header was not there to build with (CURL=0). */
#include "server/hub/private.h"

enum status hub_pull(const struct hub_settings *s, const struct hub_name *name,
                     char folder[PATH_MAX], struct err *err)
{
    (void)folder;
    return err_set(err, ERR_UNSUPPORTED,
                   "%s is not in the cache %.200s, and this build cannot "
                   "download: it was made without libcurl (install libcurl4-gnutls-dev and build "
                   "again, or give a folder)",
                   name->id, s->cache);
}
