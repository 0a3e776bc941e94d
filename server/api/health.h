// SPDX-License-Identifier: Apache-2.0
/* The states that the watchdog tells apart (health.c). Thread: any. */
#ifndef SLUICE_SERVER_API_HEALTH_H
#define SLUICE_SERVER_API_HEALTH_H

enum api_health {
    HEALTH_OK,
    HEALTH_LOADING,
    HEALTH_DRAINING,
    HEALTH_STALLED,
    HEALTH_DEAD,
    N_HEALTHS,
};
extern const char *const api_health_names[N_HEALTHS]; // "ok", "loading", ...

#endif
