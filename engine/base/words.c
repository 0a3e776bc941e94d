// SPDX-License-Identifier: Apache-2.0
/* Lists of words, and ids that clients choose. */
#include "engine/base/words.h"

#include <string.h>

int words_find(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (int i = 0; *list; i++) {
        size_t n_item = strcspn(list, "|");
        if (n_item == n && memcmp(list, word, n) == 0) {
            return i;
        }
        list += n_item + (list[n_item] == '|');
    }
    return -1;
}

/* Letters, digits and "._:-" only, so that an id can be part of a log line, a path or a
 * header. */
bool words_is_id(const char *id, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        char c = id[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && (c == '\0' || !strchr("._:-", c))) {
            return false;
        }
    }
    return n_bytes > 0 && n_bytes <= 128;
}
