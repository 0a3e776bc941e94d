#include "server/hub/private.h"

#include <stdio.h>

const char *hub_size_text(int64_t n_bytes, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)n_bytes;
    int unit = 0;
    while (v >= 999.5 && unit < 6) {
        v /= 1000;
        unit++;
    }
    snprintf(out, 32, unit == 0 || v >= 99.95 ? "%.0f %s" : "%.1f %s", v, units[unit]);
    return out;
}

enum status hub_get(const struct hub_settings *s, const struct hub_name *name, bool newest,
                    char folder[PATH_MAX], struct err *err)
{
    const bool asks = newest && !s->offline;
    if (!asks && hub_find(s, name, folder)) {
        return OK;
    }
    if (s->offline) {
        return err_set(err, ERR_IO, "%s@%s is not, or not all of it, in the cache %.200s, and "
                       "HF_HUB_OFFLINE forbids the network: unset it, or give a model that 'sluice "
                       "list' shows as complete", name->id, name->revision, s->cache);
    }
    return hub_pull(s, name, folder, err);
}
