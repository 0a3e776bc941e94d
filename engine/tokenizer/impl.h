// SPDX-License-Identifier: Apache-2.0
/* Internals of struct tokenizer, private to engine/tokenizer/.
 *
 * Text passes through: added tokens that match raw text -> normalizer -> added tokens that match
 * normalised text -> pre-tokenizer stages -> model. A stretch is the text between two added tokens;
 * a piece is what the last stage passes to the model.
 *
 * Byte-level models spell tokens in an alphabet of 256 printable characters. Here their vocabulary
 * is stored as raw bytes, and the mapping is skipped wherever that has no visible effect.
 * Thread: as in tokenizer.h; a struct scratch belongs to one call at a time. */
#ifndef SLUICE_ENGINE_TOKENIZER_IMPL_H
#define SLUICE_ENGINE_TOKENIZER_IMPL_H

#include "engine/base/arena.h"
#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdatomic.h>

enum {
    MAX_TOKEN_ID = (1 << 24) - 1, // chosen: 60 times the largest vocabulary seen
    MAX_STAGES = 32,              // chosen: real files have at most 7
    UNK_MISSING = -2, // unk_token is named but is not in the vocabulary: an error once it is needed
    TEXT_MAX = 1 << 30,         // chosen: offsets fit 32 bits even if normalising doubles a text
    MAX_FILE_BYTES = 512 << 20, // chosen: 20 times the largest tokenizer.json seen
};

/* Strings by id, in one block of memory. */
struct strings {
    struct buf bytes;
    uint32_t *at, *n; // n[id] is UINT32_MAX if the id has no string
    int32_t n_ids, cap;
};

bool strings_set(struct strings *s, int32_t id, const char *text, size_t n_bytes);
const char *strings_get(const struct strings *s, int32_t id, size_t *n_bytes); // NULL if absent
void strings_deinit(struct strings *s);

/* Maps a string to its id in a struct strings: open addressing, keyed hash, full comparison. */
struct string_slot {
    uint32_t tag;
    int32_t id;     // -1: empty
    uint32_t at, n; // copied from `strings` to save a memory access
};
struct string_table {
    const struct strings *strings;
    struct string_slot *slots;
    size_t n, mask; // mask is 0 if there are no slots
    uint64_t key;
};

bool string_table_init(struct string_table *t, const struct strings *strings, size_t expected);
void string_table_deinit(struct string_table *t);
/* If strings are equal, the later one wins. */
bool string_table_put(struct string_table *t, int32_t id);
int32_t string_table_find(const struct string_table *t, const char *text, size_t n_bytes);

/* A lookup in separate steps, for many strings at a time: each step prefetches the memory that the
 * next step reads. */
uint64_t string_table_hash(const struct string_table *t, const char *text, size_t n_bytes);
void string_table_prefetch(const struct string_table *t, uint64_t hash);
void string_table_prefetch_text(const struct string_table *t, uint64_t hash);
int32_t string_table_find_hashed(const struct string_table *t, const char *text, size_t n_bytes,
                                 uint64_t hash);

/* A byte trie whose edges are one hash table; node 0 is the root. */
struct trie_edge {
    uint32_t node_byte; // node << 8 | byte
    uint32_t child;     // 0: empty slot
};
struct trie {
    struct trie_edge *edges;
    size_t n_edges, mask;
    int32_t *value; // by node; -1: no string ends at this node
    uint32_t n_nodes, cap_nodes;
    uint32_t first[256]; // children of the root
};

bool trie_init(struct trie *t);
void trie_deinit(struct trie *t);
bool trie_put(struct trie *t, const char *s, size_t n_bytes, int32_t value);

static inline uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte)
{
    if (node == 0) {
        return t->first[byte];
    }
    uint32_t key = node << 8 | byte;
    for (size_t i = (key * 0x9E3779B1u >> 7) & t->mask;; i = (i + 1) & t->mask) {
        if (t->edges[i].child == 0) {
            return 0;
        }
        if (t->edges[i].node_byte == key) {
            return t->edges[i].child;
        }
    }
}

struct scratch;
struct regex;
struct piece_cache;

/* Oniguruma (Ruby) patterns, run by PCRE2, or by a hand-written splitter for the well-known
 * ones. */
enum status regex_compile(const char *pattern, struct regex **out, struct err *err);
void regex_free(struct regex *re);
/* Finds the first match at or after `from`, like Oniguruma's find_iter (see regex_walk). 1: found;
 * 0: no match; -1: a limit of the matcher was exceeded. */
int regex_find(const struct regex *re, struct scratch *sc, const char *s, size_t n, size_t from,
               size_t *start, size_t *end);

/* Iterates over all matches; an empty match directly after another match is skipped. */
struct regex_walk {
    const struct regex *re;
    const char *s;
    size_t n, from, last_end;
    bool has_last;
};

struct pattern { // a regex, or a literal string
    struct regex *regex;
    char *literal;
    size_t literal_bytes;
};
enum status pattern_load(const struct json *object, struct pattern *p, struct err *err);
void pattern_deinit(struct pattern *p);

struct pattern_walk {
    struct regex_walk regex;
    const struct pattern *pattern;
    const char *s;
    size_t n, from;
};
void pattern_walk_init(struct pattern_walk *w, const struct pattern *p, const char *s, size_t n);
int pattern_walk_next(struct pattern_walk *w, struct scratch *sc, size_t *start, size_t *end);

/* ---- normalizers ---- */
enum normalizer_kind {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE,
    NORMALIZE_STRIP,
    NORMALIZE_STRIP_ACCENTS,
    NORMALIZE_PREPEND,
    NORMALIZE_REPLACE,
    NORMALIZE_BERT,
    NORMALIZE_NMT,
    NORMALIZE_BYTE_LEVEL,
    NORMALIZE_PRECOMPILED,
};
struct charsmap;
struct normalizer {
    enum normalizer_kind kind;
    bool left, right;                                     // Strip
    bool clean_text, chinese_chars, strip_accents, lower; // Bert
    struct pattern pattern;                               // Replace
    char *text;                                           // Replace's content, Prepend
    size_t text_bytes;
    struct charsmap *map; // Precompiled
};
enum status normalizer_load(const struct json *node, struct tokenizer *tok, struct err *err);
void normalizer_deinit(struct normalizer *op);
/* Returns in *s the normalised text, valid until the next call with this scratch; it may be s
 * itself. *dropped_head is set if characters at the very start were removed. False: a limit of the
 * matcher was exceeded. */
bool normalizer_apply(const struct tokenizer *tok, struct scratch *sc, const char **s, size_t *n,
                      bool *dropped_head);

struct charsmap *charsmap_load(const char *base64, size_t n_bytes);
void charsmap_free(struct charsmap *map);
void charsmap_apply(const struct charsmap *map, const char *s, size_t n, struct buf *out);

/* ---- pre-tokenizers ---- */
enum stage_kind {
    STAGE_SPLIT,        // at the matches of a pattern
    STAGE_CLASS,        // at the characters of a class
    STAGE_WORDS,        // keeps runs of word characters and runs of other visible ones
    STAGE_FIXED,        // pieces of a fixed number of characters
    STAGE_PREFIX_SPACE, // rewrites: adds a space at the front
    STAGE_BYTE_MAP,     // rewrites: replaces bytes by printable characters
    STAGE_METASPACE,    // rewrites: replaces spaces by another character, and adds one at the front
};
enum behavior { ISOLATED, REMOVED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };
struct stage {
    enum stage_kind kind;
    struct pattern pattern;     // SPLIT
    enum behavior behavior;     // SPLIT, CLASS
    bool invert;                // SPLIT: what counts as a match is the text between matches
    uint32_t flags;             // CLASS: characters with one of these unicode bits,
    uint32_t code_point;        // or this character
    enum prepend_scheme scheme; // METASPACE
    char replacement[4];
    size_t replacement_bytes;
    size_t length; // FIXED
};
enum status stages_load(const struct json *node, struct tokenizer *tok, struct err *err);
void stage_deinit(struct stage *st);
/* Runs the stages and the model on one stretch. `first`: it starts the text. */
enum status stages_run(const struct tokenizer *tok, struct scratch *sc, const char *s, size_t n,
                       bool first);

/* ---- models ---- */
enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL };

struct merge_slot {
    uint64_t pair; // left << 32 | right; UINT64_MAX: empty
    uint32_t rank;
    int32_t id;
};
struct merge_table {
    struct merge_slot *slots;
    size_t n;
    unsigned shift; // 64 - log2(slots)
};
struct json_scan;
/* Reads the list that follows in the scan. The vocabulary and the prefix must be known by then. */
enum status merges_read(struct tokenizer *tok, struct json_scan *scan, struct err *err);
/* Derives the merges of SentencePiece's BPE from the scores of its pieces; `scores` is indexed by
 * id. */
enum status merges_of_scores(struct tokenizer *tok, const double *scores, struct err *err);

/* The slot at which the search for a pair starts. */
static inline const struct merge_slot *merge_table_home(const struct merge_table *t, int32_t left,
                                                        int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return &t->slots[(size_t)(pair * 0x9E3779B97F4A7C15ULL >> t->shift)];
}
static inline const struct merge_slot *merge_table_find(const struct merge_table *t, int32_t left,
                                                        int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << (64 - t->shift)) - 1;
    for (size_t i = (size_t)(merge_table_home(t, left, right) - t->slots);; i = (i + 1) & mask) {
        if (t->slots[i].pair == pair) {
            return &t->slots[i];
        }
        if (t->slots[i].pair == UINT64_MAX) {
            return NULL;
        }
    }
}

struct byte_pair {
    uint32_t rank; // UINT32_MAX: the pair does not merge
    int32_t id;
};
struct merge_rules {
    struct merge_table table;
    struct byte_pair *byte_pairs; // [first byte][second]: the merge of two byte symbols
};
struct bpe {
    struct merge_rules merges;
    struct merge_rules guarded; // used for user input: without merges to special tokens
    bool has_guarded;           // false: no merge produces a special token
    bool ignore_merges, fuse_unk, byte_fallback, has_affixes;
    char *prefix, *suffix;    // continuing_subword_prefix, end_of_word_suffix
    int32_t unk;              // -1: none
    bool all_bytes;           // byte level, every byte is in the vocabulary, no affixes
    int32_t byte_symbol[256]; // by byte (if byte level) or by ASCII character; -1: not in the
                              // vocabulary
    int32_t byte_token[256];  // id of "<0x..>"; -1: absent
    struct cuts *cuts;        // NULL: pieces must not be cut
};
struct unigram {
    struct trie trie;
    double *score; // by id
    double unk_score;
    int32_t unk; // -1: none
    bool byte_fallback;
    int32_t byte_token[256];
};
struct wordpiece {
    char *prefix; // precedes pieces that continue a word
    int32_t unk;
    size_t max_chars;
};

enum status bpe_load(struct tokenizer *tok); // called before added tokens are read
enum status bpe_finish(struct tokenizer *tok, struct err *err); // called once tok->keys exist
void bpe_deinit(struct bpe *bpe);

/* Places where a long piece may be cut: between two characters that no merge can join. The texts
 * between cuts can be encoded independently. */
struct cuts *cuts_make(const struct tokenizer *tok);
void cuts_free(struct cuts *cuts);
/* The next cut after `from`, or n. */
size_t cuts_next(const struct cuts *cuts, const char *s, size_t n, size_t from);
enum status bpe_encode(const struct tokenizer *tok, struct scratch *sc, const char *s, size_t n);
/* Encodes a piece, or a part of one, by its merges only, without the cache. */
enum status bpe_merge_piece(const struct tokenizer *tok, struct scratch *sc, const char *s,
                            size_t n);
void piece_cache_free(struct piece_cache *cache);
enum status unigram_encode(const struct tokenizer *tok, struct scratch *sc, const char *s,
                           size_t n);
enum status wordpiece_encode(const struct tokenizer *tok, struct scratch *sc, const char *s,
                             size_t n);

/* ---- decoders ---- */
enum decoder_kind {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_METASPACE,
    DECODE_WORDPIECE,
    DECODE_BPE,
};
struct decoder {
    enum decoder_kind kind;
    struct pattern pattern; // Replace
    char *text;             // Replace's content, Strip's character, WordPiece's prefix, ...
    size_t text_bytes;
    size_t start, stop;        // Strip
    bool cleanup, keeps_first; // WordPiece; Metaspace with scheme never
};
enum status decoders_load(const struct json *node, struct tokenizer *tok, struct err *err);
void decoder_deinit(struct decoder *d);
/* Decodes byte symbols into an empty buffer; false if a character is not a symbol. */
bool spelled_as_bytes(const char *s, size_t n, struct buf *out);
/* Fills tok->pieces, once all tokens are known. */
enum status decoders_make_pieces(struct tokenizer *tok, struct err *err);

/* ---- added tokens ---- */
struct added {
    int32_t id;
    char *text;
    size_t n_bytes;
    char *normalized_text; // what is searched for and decoded instead of `text`, if the normalizer
                           // changes `text`
    size_t normalized_bytes;
    bool single_word, lstrip, rstrip, normalized, special;
    bool control; // never recognised in user input, because it is special or looks like markup
};
struct range {
    size_t start, end;
};
enum status added_load(const struct json *node, struct tokenizer *tok, struct err *err);
/* Adds the token, or updates the flags of an existing one. */
enum status added_put(struct tokenizer *tok, const struct added *token, struct err *err);
enum status added_finish(struct tokenizer *tok, struct err *err);

/* The state of one search over a text. added_search_next returns the next match, with the white
 * space that the token strips. */
struct added_search {
    const struct tokenizer *tok;
    const struct trie *trie;
    const uint64_t *first_bytes; // 256 bits
    const char *s;
    size_t n, from, covered; // covered: end of the previous match, including stripped white space
    // Ranges of user input, sorted; no control token is recognised inside them.
    const struct range *input;
    size_t n_input, next_input;
    bool parse_special;
};
bool added_search_next(struct added_search *a, struct range *match, int32_t *index);

/* "bos_token", "pad_token", ... of tokenizer_config.json and special_tokens_map.json. */
struct named_token {
    const char *name, *text;
    int32_t id; // -1 if it is not in the vocabulary
};

/* The ids that the post-processor adds to a pair of texts: before, between and after them. Of those
 * between, the ids from number type_at on have type 1, and so does all that follows; -1: everything
 * has type 0. */
struct pair_ends {
    int32_t ids[3][16];
    size_t n[3];
    int32_t type_at;
    bool unsupported; // the file's template for pairs has another form
};

/* ---- the whole ---- */
struct tokenizer {
    struct strings texts;        // spellings of the model's tokens and of added tokens
    struct strings keys;         // what the model looks up; raw bytes if byte level
    struct strings pieces;       // the text that each token adds to a stream
    struct string_table by_text; // the model's vocabulary
    struct string_table by_key;  // of `keys`, if byte level; otherwise unused
    bool byte_level;             // the model works on bytes, and keys are bytes
    int32_t n_model;             // number of entries of the model's vocabulary

    struct normalizer normalizers[MAX_STAGES];
    size_t n_normalizers;
    struct stage stages[MAX_STAGES];
    size_t n_stages;
    struct decoder decoders[MAX_STAGES];
    size_t n_decoders;
    bool has_decoder;

    enum model_kind model;
    struct bpe bpe;
    struct unigram unigram;
    struct wordpiece wordpiece;

    struct added *added;
    size_t n_added, cap_added;
    struct strings added_texts; // indexed like `added`
    struct string_table added_table;
    int32_t next_added_id;
    int32_t *added_of; // by id: index in `added`, or -1
    struct trie raw_trie, normalized_trie;
    bool has_normalized;
    uint64_t raw_first[4], normalized_first[4];

    int32_t prefix[16], suffix[16]; // ids that the post-processor adds around a text
    size_t n_prefix, n_suffix;
    struct pair_ends pair;

    struct named_token named[16];
    size_t n_named;
    struct arena arena; // names and other small strings
    size_t longest_piece;

    _Atomic(struct scratch *) scratches[16]; // scratches that are idle and kept between calls
};

/* Memory for one call. It is borrowed from the tokenizer and given back, so that buffers and the
 * cache of pieces are reused. */
struct symbol;
struct scratch {
    struct buf joined; // joined spans, or repaired text
    struct buf norm[2];
    struct buf stage[MAX_STAGES];
    struct buf word; // WordPiece: the word that is looked up
    struct ids *out;
    struct err *err;
    bool has_input; // the stretch contains user input, so the model must not yield special tokens
    void (*on_piece)(void *arg, const char *s, size_t n); // called instead of the model, if set
    void *on_piece_arg;
    void *match_data, *match_context, *jit_stack; // PCRE2's
    struct symbol *symbols;
    uint64_t *heap;
    size_t cap_symbols, n_heap, cap_heap;
    struct unigram_node *nodes;
    size_t cap_nodes;
    struct piece_cache *cache;
};
struct scratch *scratch_take(const struct tokenizer *tok);
void scratch_give(const struct tokenizer *tok, struct scratch *sc);
void scratch_free(struct scratch *sc);

enum status emit(struct scratch *sc, int32_t id);
static inline enum status emit_many(struct scratch *sc, const int32_t *id, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        TRY(emit(sc, id[i]));
    }
    return OK;
}

/* True if user text must not yield this token because it is special, although the model itself can
 * spell it. */
static inline bool is_barred(const struct tokenizer *tok, const struct scratch *sc, int32_t id)
{
    return sc->has_input && tokenizer_is_special(tok, id);
}

enum status post_load(const struct json *node, struct tokenizer *tok, struct err *err);
/* Reads tokenizer_config.json and special_tokens_map.json; either may be NULL. beside_override_ends
 * must be called once the post-processor and the ids are known. */
enum status beside_load(struct tokenizer *tok, const struct json *config, const struct json *map,
                        struct err *err);
void beside_override_ends(struct tokenizer *tok, const struct json *config);

#endif
