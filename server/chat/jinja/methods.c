/* Which methods there are; those of one name stand together. */
#include "server/chat/jinja/methods.h"

#include <string.h>

enum {
    STR = 1 << JV_STR,
    LISTS = 1 << JV_LIST | 1 << JV_TUPLE,
    DICT = 1 << JV_DICT,
    INTS = 1 << JV_BOOL | 1 << JV_INT | 1 << JV_BIG,
};

/* Sorted by name. */
static const struct jinja_method methods[] = {
    {"bit_length", INTS, jm_int_bit_length, "", 0, true},
    {"capitalize", STR, jm_str_capitalize, "", 0, true},
    {"casefold", STR, jm_str_casefold, "", 0, true},
    {"center", STR, jm_str_center, "width,fillchar", 1, true},
    {"changed", 1 << JV_LOOP, jm_loop_changed, NULL, 0, true},
    {"conjugate", INTS | 1 << JV_FLOAT, jm_num_conjugate, "", 0, true},
    {"copy", 1 << JV_LIST, jm_list_copy, "", 0, true},
    {"copy", DICT, jm_dict_copy, "", 0, true},
    {"count", STR, jm_str_count, "sub,start,end", 1, true},
    {"count", LISTS, jm_list_count, "value", 1, true},
    {"cycle", 1 << JV_LOOP, jm_loop_cycle, NULL, 0, true},
    {"decode", 1 << JV_BYTES, jm_bytes_decode, "encoding,errors", 0, false},
    {"encode", STR, jm_str_encode, "encoding,errors", 0, false},
    {"endswith", STR, jm_str_endswith, "suffix,start,end", 1, true},
    {"expandtabs", STR, jm_str_expandtabs, "tabsize", 0, false},
    {"find", STR, jm_str_find, "sub,start,end", 1, true},
    {"format", STR, jm_str_format, NULL, 0, false},
    {"format_map", STR, jm_str_format_map, "mapping", 1, true},
    {"get", DICT, jm_dict_get, "key,default", 1, true},
    {"index", STR, jm_str_index, "sub,start,end", 1, true},
    {"index", LISTS, jm_list_index, "value,start,stop", 1, true},
    {"is_integer", 1 << JV_FLOAT, jm_float_is_integer, "", 0, true},
    {"isalnum", STR, jm_str_isalnum, "", 0, true},
    {"isalpha", STR, jm_str_isalpha, "", 0, true},
    {"isascii", STR, jm_str_isascii, "", 0, true},
    {"isdecimal", STR, jm_str_isdecimal, "", 0, true},
    {"isdigit", STR, jm_str_isdigit, "", 0, true},
    {"isidentifier", STR, jm_str_isidentifier, "", 0, true},
    {"islower", STR, jm_str_islower, "", 0, true},
    {"isnumeric", STR, jm_str_isnumeric, "", 0, true},
    {"isprintable", STR, jm_str_isprintable, "", 0, true},
    {"isspace", STR, jm_str_isspace, "", 0, true},
    {"istitle", STR, jm_str_istitle, "", 0, true},
    {"isupper", STR, jm_str_isupper, "", 0, true},
    {"items", DICT, jm_dict_items, "", 0, true},
    {"join", STR, jm_str_join, "iterable", 1, true},
    {"keys", DICT, jm_dict_keys, "", 0, true},
    {"ljust", STR, jm_str_ljust, "width,fillchar", 1, true},
    {"lower", STR, jm_str_lower, "", 0, true},
    {"lstrip", STR, jm_str_lstrip, "chars", 0, true},
    {"next", 1 << JV_CYCLER, jm_cycler_next, "", 0, true},
    {"partition", STR, jm_str_partition, "sep", 1, true},
    {"removeprefix", STR, jm_str_removeprefix, "prefix", 1, true},
    {"removesuffix", STR, jm_str_removesuffix, "suffix", 1, true},
    {"replace", STR, jm_str_replace, "old,new,count", 2, true},
    {"reset", 1 << JV_CYCLER, jm_cycler_reset, "", 0, true},
    {"rfind", STR, jm_str_rfind, "sub,start,end", 1, true},
    {"rindex", STR, jm_str_rindex, "sub,start,end", 1, true},
    {"rjust", STR, jm_str_rjust, "width,fillchar", 1, true},
    {"rpartition", STR, jm_str_rpartition, "sep", 1, true},
    {"rsplit", STR, jm_str_rsplit, "sep,maxsplit", 0, false},
    {"rstrip", STR, jm_str_rstrip, "chars", 0, true},
    {"split", STR, jm_str_split, "sep,maxsplit", 0, false},
    {"splitlines", STR, jm_str_splitlines, "keepends", 0, false},
    {"startswith", STR, jm_str_startswith, "prefix,start,end", 1, true},
    {"strip", STR, jm_str_strip, "chars", 0, true},
    {"swapcase", STR, jm_str_swapcase, "", 0, true},
    {"title", STR, jm_str_title, "", 0, true},
    {"upper", STR, jm_str_upper, "", 0, true},
    {"values", DICT, jm_dict_values, "", 0, true},
    {"zfill", STR, jm_str_zfill, "width", 1, true},
};

enum { N_METHODS = sizeof methods / sizeof methods[0] };

static int order(const char *name, const char *s, size_t n_bytes)
{
    size_t n = strlen(name);
    int c = memcmp(name, s, n < n_bytes ? n : n_bytes);
    return c != 0 ? c : n < n_bytes ? -1 : n > n_bytes;
}

const struct jinja_method *jinja_methods_find(const char *name, size_t n_bytes)
{
    size_t low = 0, high = N_METHODS;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (order(methods[mid].name, name, n_bytes) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < N_METHODS && order(methods[low].name, name, n_bytes) == 0 ? &methods[low] : NULL;
}

const struct jinja_method *jinja_method_for(const struct jinja_method *first, struct jv self)
{
    for (const struct jinja_method *m = first;
         m && m < methods + N_METHODS && strcmp(m->name, first->name) == 0; m++) {
        if (m->types >> self.type & 1) {
            return m;
        }
    }
    return NULL;
}

bool jinja_is_mutator(struct jv self, const char *name, size_t n_bytes)
{
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const of_list[] = {"append", "clear", "pop",    "reverse",
                                          "insert", "sort",  "extend", "remove"};
    bool dict = self.type == JV_DICT;
    if (!dict && self.type != JV_LIST) {
        return false;
    }
    size_t n = dict ? sizeof of_dict / sizeof of_dict[0] : sizeof of_list / sizeof of_list[0];
    for (size_t i = 0; i < n; i++) {
        const char *one = dict ? of_dict[i] : of_list[i];
        if (strlen(one) == n_bytes && memcmp(one, name, n_bytes) == 0) {
            return true;
        }
    }
    return false;
}
