#include "server/chat/jinja/filters.h"

#include <string.h>

static const struct jinja_filter filters[] = {
    {"abs", jf_abs, "", 0},
    {"attr", jf_attr, "name", 1},
    {"batch", jf_batch, "linecount,fill_with", 1},
    {"capitalize", jf_capitalize, "", 0},
    {"center", jf_center, "width", 0},
    {"count", jf_length, "", 0},
    {"d", jf_default, "default_value,boolean", 0},
    {"default", jf_default, "default_value,boolean", 0},
    {"dictsort", jf_dictsort, "case_sensitive,by,reverse", 0},
    {"e", jf_escape, "", 0},
    {"escape", jf_escape, "", 0},
    {"filesizeformat", jf_filesizeformat, "binary", 0},
    {"first", jf_first, "", 0},
    {"float", jf_float, "default", 0},
    {"forceescape", jf_forceescape, "", 0},
    {"format", jf_format, NULL, 0},
    {"groupby", jf_groupby, "attribute,default,case_sensitive", 1},
    {"indent", jf_indent, "width,first,blank", 0},
    {"int", jf_int, "default,base", 0},
    {"items", jf_items, "", 0},
    {"join", jf_join, "d,attribute", 0},
    {"last", jf_last, "", 0},
    {"length", jf_length, "", 0},
    {"list", jf_list, "", 0},
    {"lower", jf_lower, "", 0},
    {"map", jf_map, NULL, 0},
    {"max", jf_max, "case_sensitive,attribute", 0},
    {"min", jf_min, "case_sensitive,attribute", 0},
    {"pprint", jf_pprint, "", 0},
    {"random", jf_random, "", 0},
    {"reject", jf_reject, NULL, 0},
    {"rejectattr", jf_rejectattr, NULL, 0},
    {"replace", jf_replace, "old,new,count", 2},
    {"reverse", jf_reverse, "", 0},
    {"round", jf_round, "precision,method", 0},
    {"safe", jf_safe, "", 0},
    {"select", jf_select, NULL, 0},
    {"selectattr", jf_selectattr, NULL, 0},
    {"slice", jf_slice, "slices,fill_with", 1},
    {"sort", jf_sort, "reverse,case_sensitive,attribute", 0},
    {"string", jf_string, "", 0},
    {"striptags", jf_striptags, "", 0},
    {"sum", jf_sum, "attribute,start", 0},
    {"title", jf_title, "", 0},
    {"tojson", jf_tojson, "ensure_ascii,indent,separators,sort_keys", 0},
    {"trim", jf_trim, "chars", 0},
    {"truncate", jf_truncate, "length,killwords,end,leeway", 0},
    {"unique", jf_unique, "case_sensitive,attribute", 0},
    {"upper", jf_upper, "", 0},
    {"urlencode", jf_urlencode, "", 0},
    {"urlize", jf_urlize, "trim_url_limit,nofollow,target,rel,extra_schemes", 0},
    {"wordcount", jf_wordcount, "", 0},
    {"wordwrap", jf_unsupported, NULL, 0},
    {"xmlattr", jf_xmlattr, "autospace", 0},
};

const struct jinja_filter *jinja_filter_find(const char *name, size_t n_bytes)
{
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strlen(filters[i].name) == n_bytes && memcmp(filters[i].name, name, n_bytes) == 0) {
            return &filters[i];
        }
    }
    return NULL;
}
