// SPDX-License-Identifier: Apache-2.0
/* Turns keys of a GGUF file into members of config.json. Shared by config.c, maker.c, archs.c
 * and arch_*.c.
 * Private to this folder.
 * Thread: any. */
#ifndef SLUICE_ENGINE_GGUF_MAKER_H
#define SLUICE_ENGINE_GGUF_MAKER_H

#include "engine/base/buf.h"
#include "engine/gguf/gguf.h"

enum { MOST_LAYERS = 1024 }; // no more are listed; readers of the config then refuse it

struct maker {
    const struct gguf *g;
    const struct arch *arch;
    struct buf *out;
    struct err *err;
};

enum rename_kind { INTEGER, NUMBER, FLAG };

/* The part of a key after the architecture's prefix, and the config member that it becomes; NULL:
 * the architecture reads the key elsewhere. */
struct rename {
    const char *key, *as;
    enum rename_kind kind;
};

/* How routers score experts, by its number in files. */
enum gating { GATING_ANY, GATING_SOFTMAX, GATING_SIGMOID };

struct arch {
    const char *name, *model_type;
    /* Several rows may have one name, all but one of them with conditions: the first of those that
     * is true decides, else the row without one. */
    bool (*is)(const struct gguf *g);
    const struct rename *renames; // in addition to the common ones; NULL-terminated
    const char *ffn;              // the key of intermediate_size; NULL: feed_forward_length
    enum gating gating;           // other kinds than this one are refused
    /* Rotated pairs are adjacent: the converter has permuted the rows of q and k. */
    bool pairs_together;
    bool full_first;       // of every n layers the first has no window, not the last
    bool is_hybrid;        // some layers have no attention
    bool whole_multiplier; // YaRN's log multiplier is not divided by ten
    bool norms_plus_one;   // stored norm weights already include the 1 that the family adds
    const char *constants; // members that no key provides; each ends with a comma
    /* For keys that files of Ollama leave out: the pre-tokenizer, the base and the kind of scaling
     * of ropes (0, NULL: the usual ones), and the factor by which positions are divided if the
     * context is long. */
    const char *pre, *scaling;
    double theta, long_factor;
    enum status (*more)(const struct maker *m);
    /* Writes the sizes and ropes, if layers differ in them; NULL: they are alike. */
    enum status (*by_layer)(const struct maker *m);
};

/* Puts the architecture's prefix in front of the key. */
void maker_full_key(const struct maker *m, const char *key, char out[96]);
/* Reads a number, or a list that repeats one number. */
enum status maker_get_number(const struct maker *m, const char *key, double *out, bool *found);
bool maker_has_key(const struct maker *m, const char *key);
double maker_number_or(const struct maker *m, const char *key, double otherwise);
enum status maker_need_number(const struct maker *m, const char *key, double *out);
/* A layer's number in a list, or the number of all layers; booleans count as 0 and 1. */
bool maker_number_of(const struct gguf *g, const char *full_key, size_t layer, double *out);
/* The same for a key with the architecture's prefix. */
bool maker_number_at(const struct maker *m, const char *key, size_t layer, double *out);
/* Writes a member and a comma. */
void maker_put_number(const struct maker *m, const char *name, double v);
void maker_put_flag(const struct maker *m, const char *name, bool v);
/* Writes the member if the file has its key. */
enum status maker_put_renamed(const struct maker *m, const struct rename *r);
/* The same for several. The list ends with NULL, and may
 * be NULL. */
enum status maker_put_all(const struct maker *m, const struct rename *rows);
/* Writes a list of the layers' numbers. The key has its prefix. */
enum status maker_put_list(const struct maker *m, const char *full_key, const char *as);
bool maker_has_tensor(const struct maker *m, const char *name);
/* Writes a switch that is off in files without its key. */
enum status maker_put_switch(const struct maker *m, const char *key, const char *name);
/* Whether a layer has the window, by the rule that maker_put_windows follows. */
enum status maker_has_window(const struct maker *m, size_t layer, double every, bool *out);
/* If there is a window, writes which layers have it: as the file lists, or all but every n-th,
 * where n is the file's number or `every` (0: all layers). */
enum status maker_put_windows(const struct maker *m, double every);
/* The same for architectures whose layers without a window must be every n-th: other files are
 * refused. */
enum status maker_need_windows(const struct maker *m, double every);
/* Refuses Granite's files whose positions are switched off. */
enum status maker_need_positions(const struct maker *m);
/* In Granite's configs a missing scale of scores means 1; in these files the usual one. */
enum status maker_put_granite_scale(const struct maker *m);
/* Refuses files whose weights of a token's experts are not divided by their sum. */
enum status maker_need_normed(const struct maker *m);
/* Writes which layers have experts: those with a router. */
enum status maker_put_experts(const struct maker *m);

/* The rotated share of a head, slightly larger than the quotient, because the loader truncates
 * share * dimensions. */
double maker_share(double rotated, double head);

/* ropes.c: writes the rope of all layers, */
enum status maker_put_rope(const struct maker *m);
/* or that of layers without a window, and that of layers with one, which is never scaled. */
struct two_ropes {
    double head, full, windowed; // dimensions, and how many of them each rope rotates
    double windowed_theta;       // without a key; 0: that of the others
};
enum status maker_put_two_ropes(const struct maker *m, const struct two_ropes *r);
/* Refuses scaled positions. */
enum status maker_need_unscaled(const struct maker *m);

/* arch_gemma3n.c, arch_gemma4.c: as `by_layer`. */
enum status maker_put_gemma3n(const struct maker *m);
enum status maker_put_gemma4(const struct maker *m);
/* arch_hybrid.c: the number that some layers have, where others have 0; 0 without the key. */
enum status maker_of_some_layers(const struct maker *m, const char *key, double *out);

struct arch_table {
    const struct arch *rows;
    size_t n;
};
extern const struct arch_table archs_dense, archs_plain, archs_moe, archs_layers, archs_mla,
    archs_hybrid, archs_classic;

/* archs.c: the row of the file's architecture. */
enum status maker_find_arch(const struct gguf *g, const struct arch **out, struct err *err);

#endif
