// SPDX-License-Identifier: Apache-2.0
/* The table of request members: each row is complete and consistent, so that a mistake in
 * a new row is found here and not by a client. */
#include "server/call/members.h"

#include "test/check.h"

/* A key may mean different things in different bodies, but must have one meaning in each. */
TEST(a_key_has_one_row_in_each_form)
{
    const struct member *m, *other;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        for (size_t k = i + 1; (other = member_at(k)) != NULL; k++) {
            bool same = strcmp(m->key, other->key) == 0;
            CHECK(!same || (m->forms & other->forms) == 0);
        }
    }
}

/* Each row does one thing: it says where a value is stored, who reads it, or why it is refused. */
TEST(rows_are_complete)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        int ways = (m->size > 0) + (m->read != NULL) + (m->with != NULL) + (m->use != MEMBER_READ);
        if (ways != 1 || !m->about || !*m->about || m->forms == 0) {
            CHECK_FAIL("the row of '%s'", m->key);
        }
        CHECK((m->use == MEMBER_REFUSED) == (m->off != NULL));
        CHECK((m->type == MEMBER_CHOICE) == (m->choices != NULL));
        CHECK(!m->flag || m->size > 0);
        CHECK(m->offset + m->size <= sizeof(struct request));
    }
}

/* The reader writes `size` bytes at `offset`, as a bool, a 32-bit number or a word; a row
 * with another width would overwrite neighbours. */
TEST(fields_are_as_wide_as_their_values)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        bool narrow = m->size == sizeof(bool), word = m->size == sizeof(void *);
        if (m->size > 0 && m->type == MEMBER_BOOL) {
            CHECK(narrow);
        } else if (m->size > 0 && m->type == MEMBER_CHOICE) {
            CHECK(narrow || word);
        } else if (m->size > 0) {
            CHECK(word || (m->type != MEMBER_STRING && m->size == 4));
        }
        bool wide = m->size == 4 && m->type == MEMBER_INT;
        CHECK(!wide || m->most > 0 || (m->min >= INT32_MIN && m->max <= INT32_MAX));
    }
}

/* `with` names the member whose reader handles this one, too; it must exist in all the
 * same forms. */
TEST(a_member_is_read_along_with_one_that_is_read)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        if (m->with) {
            const struct member *with = member_find(m->with, m->forms);
            REQUIRE(with && with->read);
        }
    }
    CHECK(!member_find("nonsense", ~0u));
    CHECK(!member_find("messages", FORM_COMPLETIONS));
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
