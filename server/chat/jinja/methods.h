// SPDX-License-Identifier: Apache-2.0
/* The methods that templates can call, by kind of object: each is a function in one of methods_*.c
 * and a row of the table in methods.c. Private to those files.
 * Thread: as the runtime. */
#ifndef SLUICE_SERVER_CHAT_JINJA_METHODS_H
#define SLUICE_SERVER_CHAT_JINJA_METHODS_H

#include "server/chat/jinja/eval.h"

/* self is the object, a[] the bound parameters of the table's row. */
#define METHOD(name)                                                                               \
    bool jm_##name(struct jrt *rt, struct jv self, const struct jv *a, const struct jargs *args,   \
                   struct jv *out)

/* The result of a str method: Markup stays Markup. */
bool jm_give(struct jv self, struct jstr *s, struct jv *out);

extern const struct jinja_method_table jinja_methods;

METHOD(str_upper);
METHOD(str_lower);
METHOD(str_casefold);
METHOD(str_capitalize);
METHOD(str_title);
METHOD(str_swapcase);
METHOD(str_strip);
METHOD(str_lstrip);
METHOD(str_rstrip);
METHOD(str_split);
METHOD(str_rsplit);
METHOD(str_splitlines);
METHOD(str_partition);
METHOD(str_rpartition);
METHOD(str_join);
METHOD(str_replace);
METHOD(str_removeprefix);
METHOD(str_removesuffix);
METHOD(str_startswith);
METHOD(str_endswith);
METHOD(str_find);
METHOD(str_rfind);
METHOD(str_index);
METHOD(str_rindex);
METHOD(str_count);
METHOD(str_ljust);
METHOD(str_rjust);
METHOD(str_center);
METHOD(str_zfill);
METHOD(str_expandtabs);
METHOD(str_isalpha);
METHOD(str_isdigit);
METHOD(str_isdecimal);
METHOD(str_isnumeric);
METHOD(str_isalnum);
METHOD(str_isspace);
METHOD(str_isprintable);
METHOD(str_isascii);
METHOD(str_isidentifier);
METHOD(str_islower);
METHOD(str_isupper);
METHOD(str_istitle);
METHOD(str_format);
METHOD(str_format_map);
METHOD(str_encode);
METHOD(bytes_decode);
METHOD(list_count);
METHOD(list_index);
METHOD(list_copy);
METHOD(dict_get);
METHOD(dict_keys);
METHOD(dict_values);
METHOD(dict_items);
METHOD(dict_copy);
METHOD(cycler_next);
METHOD(cycler_reset);
METHOD(loop_cycle);
METHOD(loop_changed);
METHOD(int_bit_length);
METHOD(num_conjugate);
METHOD(float_is_integer);

#endif
