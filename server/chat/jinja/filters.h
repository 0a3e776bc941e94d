// SPDX-License-Identifier: Apache-2.0
/* The filters that the table in filters.c names.
 * Thread: one owner (of the runtime). */
#ifndef SLUICE_SERVER_CHAT_JINJA_FILTERS_H
#define SLUICE_SERVER_CHAT_JINJA_FILTERS_H

#include "server/chat/jinja/eval.h"

#define FILTER(name)                                                                               \
    bool name(struct jrt *rt, struct jv v, const struct jv *a, const struct jargs *args,           \
              struct jv *out)

/* Returns the string as the result, as Markup if `like` is. False if s is NULL. */
static inline bool jf_give(struct jv like, struct jstr *s, struct jv *out)
{
    *out = jv_str(s);
    out->flag = like.flag;
    return s != NULL;
}

/* The truth of an argument that may be absent; for numbers use jv_int_or. */
static inline bool jf_truth_or(struct jv v, bool otherwise)
{
    if (jv_is_given(v)) {
        return jv_truth(v);
    }
    return otherwise;
}

/* The table, terminated by a row without a name. */
extern const struct jinja_filter jinja_filters[];

FILTER(jf_upper);
FILTER(jf_lower);
FILTER(jf_capitalize);
FILTER(jf_title);
FILTER(jf_trim);
FILTER(jf_replace);
FILTER(jf_string);
FILTER(jf_safe);
FILTER(jf_escape);
FILTER(jf_forceescape);
FILTER(jf_striptags);
FILTER(jf_center);
FILTER(jf_indent);
FILTER(jf_truncate);
FILTER(jf_wordcount);
FILTER(jf_format);
FILTER(jf_urlencode);
FILTER(jf_xmlattr);
FILTER(jf_int);
FILTER(jf_float);
FILTER(jf_abs);
FILTER(jf_round);
FILTER(jf_filesizeformat);
FILTER(jf_default);
FILTER(jf_tojson);
FILTER(jf_attr);
FILTER(jf_pprint);
FILTER(jf_urlize);
FILTER(jf_unsupported);

FILTER(jf_length);
FILTER(jf_list);
FILTER(jf_first);
FILTER(jf_last);
FILTER(jf_join);
FILTER(jf_reverse);
FILTER(jf_sort);
FILTER(jf_unique);
FILTER(jf_min);
FILTER(jf_max);
FILTER(jf_sum);
FILTER(jf_map);
FILTER(jf_select);
FILTER(jf_reject);
FILTER(jf_selectattr);
FILTER(jf_rejectattr);
FILTER(jf_groupby);
FILTER(jf_batch);
FILTER(jf_slice);
FILTER(jf_items);
FILTER(jf_dictsort);
FILTER(jf_random);

#endif
