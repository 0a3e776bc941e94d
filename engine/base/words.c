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
