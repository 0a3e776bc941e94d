// SPDX-License-Identifier: Apache-2.0
/* API keys and what they may do, from the configuration and from a file of lines
 *
 *     KEY [inference,admin,metrics] [NAME] [SETTING=VALUE ...]      # a comment
 *
 * A line without scopes means inference. Settings (tenant.h) stand for the options' defaults. Each
 * line is a tenant, which stays the same one while its key stays. Keys are compared in constant
 * time and never printed. Thread: the loop. */
#ifndef SLUICE_SERVER_API_KEYS_H
#define SLUICE_SERVER_API_KEYS_H

#include "engine/base/status.h"
#include "server/config/config.h"

struct keys;
struct tenant;

/* *out is NULL, with OK, when the configuration names no keys: then nothing is guarded. */
enum status keys_open(const struct config *config, struct keys **out, struct err *err);
void keys_close(struct keys *keys); // accepts NULL

/* Reads the file again; on error the old keys stay. */
enum status keys_reload(struct keys *keys, struct err *err);

/* The scopes of a key, 0 if unknown; *name is what the log calls it, and *tenant its holder: both
 * valid until the next reload. */
unsigned keys_find(const struct keys *keys, const char *key, const char **name,
                   struct tenant **tenant);

#endif
