// SPDX-License-Identifier: Apache-2.0
/* | API keys and their permissions, from the configuration and from a file of lines
 *
 *     KEY [inference,admin,metrics] [NAME] [SETTING=VALUE ...]      # a comment
 *
 * A line without scopes grants inference. Settings (tenant.h) override the options' defaults. Each
 * line defines a tenant, which persists while its key does. Keys are compared in constant time and
 * never printed.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_KEYS_H
#define SLUICE_SERVER_API_KEYS_H

#include "engine/base/status.h"
#include "server/config/config.h"

struct keys;
struct tenant;

/* *out is NULL, with OK, if the configuration has no keys: then access is not restricted. */
enum status keys_open(const struct config *config, struct keys **out, struct err *err);
void keys_close(struct keys *keys); // accepts NULL

/* Reads the file again; on error the old keys stay valid. */
enum status keys_reload(struct keys *keys, struct err *err);

/* The scopes of a key; 0: unknown key. *name is its name for the log and *tenant its tenant, both
 * valid until the next reload. */
unsigned keys_find(const struct keys *keys, const char *key, const char **name,
                   struct tenant **tenant);

#endif
