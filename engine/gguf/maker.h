// SPDX-License-Identifier: Apache-2.0
/* Turns keys of a GGUF file into members of config.json. Shared by config.c, archs.c and maker.c.
 * Private to this folder.
 * Thread: any. */
#ifndef SLUICE_ENGINE_GGUF_MAKER_H
#define SLUICE_ENGINE_GGUF_MAKER_H

#include "engine/base/buf.h"
#include "engine/gguf/gguf.h"

struct maker {
    const struct gguf *g;
    const struct arch *arch;
    struct buf *out;
    struct err *err;
};

enum rename_kind { INTEGER, NUMBER, FLAG };

/* The part of a key after the architecture's prefix, and the config member that it becomes. */
struct rename {
    const char *key, *as;
    enum rename_kind kind;
};

struct arch {
    const char *name, *model_type;
    const struct rename *renames; // in addition to the common ones; NULL-terminated
    /* Rotated pairs are adjacent: the converter has permuted the rows of q and k. */
    bool pairs_together;
    bool is_hybrid;        // some layers have no attention
    bool norms_plus_one;   // stored norm weights already include the 1 that the family adds
    const char *constants; // members that no key provides; each ends with a comma
    enum status (*more)(const struct maker *m);
    /* Writes the sizes and ropes, if layers differ in them; NULL: they are alike. */
    enum status (*by_layer)(const struct maker *m);
};

/* Puts the architecture's prefix in front of the key. */
void maker_full_key(const struct maker *m, const char *key, char out[96]);
/* Reads a number, or a list that repeats one number. */
enum status maker_get_number(const struct maker *m, const char *key, double *out, bool *found);
double maker_number_or(const struct maker *m, const char *key, double otherwise);
enum status maker_need_number(const struct maker *m, const char *key, double *out);
/* A layer's number in a list, or the number of all layers; booleans count as 0 and 1. */
bool maker_number_at(const struct maker *m, const char *key, size_t layer, double *out);
/* Writes a member and a comma. */
void maker_put_number(const struct maker *m, const char *name, double v);
void maker_put_flag(const struct maker *m, const char *name, bool v);
/* Writes the members whose keys the file has. The list of rows ends with NULL, and may be NULL. */
enum status maker_put_all(const struct maker *m, const struct rename *rows);
bool maker_has_tensor(const struct maker *m, const char *name);

/* arch_gemma4.c: as `by_layer`. */
enum status maker_put_gemma4(const struct maker *m);
/* arch_hybrid.c: the number that some layers have, where others have 0; and as `more`. */
enum status maker_of_some_layers(const struct maker *m, const char *key, double *out);
enum status maker_more_lfm2(const struct maker *m);
enum status maker_more_falcon_h1(const struct maker *m);
enum status maker_more_nemotron_h(const struct maker *m);
enum status maker_more_granite_hybrid(const struct maker *m);

/* archs.c: the row of the file's architecture. */
enum status maker_find_arch(const struct gguf *g, const struct arch **out, struct err *err);

#endif
