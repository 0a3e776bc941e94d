// SPDX-License-Identifier: Apache-2.0
/* The pickle machine: what Python's pickler writes is read, and everything else is refused. The
 * pickles are those of Python, made by the expressions in the comments. */
#include "engine/torch/pickle.h"

#include "test/check.h"

enum { KNOWN = 7 };

static int32_t find(const char *module, const char *name)
{
    return strcmp(module, "m") == 0 && strcmp(name, "f") == 0 ? KNOWN : -1;
}

static enum status open_at(const void *data, size_t n, struct pickle *p, struct err *err)
{
    *err = (struct err){""};
    return pickle_open(data, n, "x.bin", find, p, err);
}

#define OPEN(bytes, p) open_at(bytes, sizeof(bytes) - 1, p, &err)

static const struct pickle_node *root(const struct pickle *p)
{
    return pickle_at(p, p->root);
}

static const struct pickle_node *item(const struct pickle *p, uint32_t i)
{
    return pickle_at(p, pickle_item_at(p, p->root, i));
}

/* pickle.dumps((1, 300, -5, 70000, 1 << 40, True, None, "ab", b"c", 0.5), protocol); in protocol 2
 * the bytes are as Python 2 writes them. */
static const char protocol2[] = "\x80\x02(K\x01M,\x01J\xfb\xff\xff\xffJp\x11\x01\x00\x8a\x06\x00"
                                "\x00\x00\x00\x00\x01\x88NX\x02\x00\x00\x00"
                                "abq\x00U\x01"
                                "cG?\xe0\x00\x00\x00\x00\x00\x00tq\x01.";
static const char protocol4[] = "\x80\x04\x95\x2f\x00\x00\x00\x00\x00\x00\x00(K\x01M,\x01J\xfb\xff"
                                "\xff\xffJp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x88N\x8c"
                                "\x02"
                                "ab\x94"
                                "C\x01"
                                "c\x94G?\xe0\x00\x00\x00\x00\x00\x00t\x94.";

static void check_values(const struct pickle *p)
{
    static const int64_t numbers[] = {1, 300, -5, 70000, INT64_C(1) << 40, 1, 0};
    CHECK_EQ(root(p)->kind, PICKLE_TUPLE);
    CHECK_EQ(root(p)->n, 10);
    for (uint32_t i = 0; i < 7; i++) {
        CHECK_EQ(item(p, i)->number, numbers[i]);
    }
    CHECK_EQ(item(p, 0)->kind, PICKLE_INT);
    CHECK_EQ(item(p, 5)->kind, PICKLE_BOOL);
    CHECK_EQ(item(p, 6)->kind, PICKLE_NONE);
    CHECK(item(p, 7)->n_bytes == 2 && memcmp(item(p, 7)->text, "ab", 2) == 0);
    CHECK(item(p, 8)->n_bytes == 1 && item(p, 8)->text[0] == 'c');
    CHECK_EQ(item(p, 9)->kind, PICKLE_FLOAT);
    CHECK_EQ(pickle_item_at(p, p->root, 10), 0);
}

TEST(values_are_read)
{
    struct pickle p;
    struct err err;
    CHECK_EQ(OPEN(protocol2, &p), OK);
    check_values(&p);
    pickle_close(&p);
    CHECK_EQ(OPEN(protocol4, &p), OK);
    check_values(&p);
    pickle_close(&p);
}

TEST(every_truncation_is_refused)
{
    struct pickle p;
    struct err err;
    for (size_t n = 0; n < sizeof protocol4 - 1; n++) {
        CHECK_EQ(open_at(protocol4, n, &p, &err), ERR_FORMAT);
        CHECK(strstr(err.text, "x.bin: its pickle is cut short"));
        pickle_close(&p);
    }
}

/* {"a": [1, 2], "b": [1, 2]} with one list */
TEST(values_are_shared)
{
    struct pickle p;
    struct err err;
    CHECK_EQ(OPEN("\x80\x02}q\x00(X\x01\x00\x00\x00"
                  "aq\x01]q\x02(K\x01K\x02"
                  "eX\x01\x00\x00\x00"
                  "bq\x03h\x02u.",
                  &p),
             OK);
    CHECK_EQ(root(&p)->kind, PICKLE_DICT);
    CHECK_EQ(root(&p)->n, 2);
    const struct pickle_item *a = &p.items[root(&p)->first], *b = &p.items[a->next];
    CHECK_EQ(a->value, b->value);
    CHECK_EQ(pickle_at(&p, a->value)->kind, PICKLE_LIST);
    CHECK_EQ(pickle_at(&p, a->value)->n, 2);
    CHECK_EQ(pickle_at(&p, b->key)->text[0], 'b');
    pickle_close(&p);
}

TEST(calls_are_kept_and_not_made)
{
    struct pickle p;
    struct err err;
    CHECK_EQ(OPEN("\x80\x02"
                  "cm\nf\nK\x05\x85R}b(K\x01K\x02u.",
                  &p),
             OK);
    CHECK_EQ(root(&p)->kind, PICKLE_CALL);
    CHECK_EQ(pickle_at(&p, root(&p)->function)->number, KNOWN);
    CHECK_EQ(pickle_at(&p, pickle_item_at(&p, root(&p)->args, 0))->number, 5);
    CHECK(root(&p)->has_state);
    CHECK_EQ(root(&p)->n, 1);
    pickle_close(&p);
}

/* As an attack would be written: os.system("echo") by each opcode that names a global. */
TEST(other_globals_are_refused_by_name)
{
    struct pickle p;
    struct err err;
    static const char *const ways[] = {
        "cos\nsystem\n(X\x04\0\0\0echotR.",
        "\x8c\x02os\x8c\x06system\x93\x8c\x04"
        "echo\x85R.",
    };
    static const size_t sizes[] = {27, 22};
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(open_at(ways[i], sizes[i], &p, &err), ERR_UNSUPPORTED);
        CHECK(strstr(err.text, "x.bin uses the pickled global os.system, which sluice does not "
                               "execute"));
        pickle_close(&p);
    }
    static const char names[][16] = {"c\nf\n.", "cm\n\n.", "cm\nf \n.", "cm\n\x1b[0\n."};
    for (size_t i = 0; i < 4; i++) {
        CHECK_EQ(open_at(names[i], strlen(names[i]), &p, &err), ERR_FORMAT);
        pickle_close(&p);
    }
}

/* INST and OBJ make objects, EXT and the buffers of protocol 5 refer to what is not in the file. */
TEST(other_opcodes_are_refused)
{
    struct pickle p;
    struct err err;
    static const unsigned char refused[] = {
        'i',  'o',  'P',  'I',  'L',  'F',  'S',  'V',  'p',  'g',  '0',  '1',  '2',  'd', 'l',
        0x82, 0x83, 0x84, 0x8b, 0x8e, 0x8f, 0x90, 0x91, 0x92, 0x96, 0x97, 0x98, 0x00, 0xff};
    for (size_t i = 0; i < sizeof refused; i++) {
        const char bytes[] = {(char)refused[i], 'N', '\n', '.'};
        CHECK_EQ(open_at(bytes, sizeof bytes, &p, &err), ERR_UNSUPPORTED);
        CHECK(strstr(err.text, "which state dicts do not need"));
        pickle_close(&p);
    }
}

/* Every opcode in every state of a small stack: it succeeds or is refused. */
TEST(no_opcode_reads_below_the_stack)
{
    static const char *const before[] = {"",         "N",  "(",   "N(",  "NN",   ")",
                                         "(N",       "]",  "](",  "}(N", "K\1",  "cm\nf\n",
                                         "cm\nf\n)", "(]", "(}N", "((",  "N(N(N"};
    struct err err;
    int n_good = 0;
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        for (int op = 0; op < 256; op++) {
            struct pickle p;
            char bytes[32];
            const size_t n = strlen(before[i]);
            memcpy(bytes, before[i], n);
            memset(bytes + n, 0, 10);
            bytes[n] = (char)op;
            bytes[n + 10] = '.';
            n_good += open_at(bytes, n + 1, &p, &err) == OK; // only where it is the end
            pickle_close(&p);
            open_at(bytes, n + 11, &p, &err);
            pickle_close(&p);
        }
    }
    CHECK_EQ(n_good, 5); // those that have one value, and no mark
}

TEST(what_is_not_one_value_is_refused)
{
    struct pickle p;
    struct err err;
    static const char *const bad[] = {".",        "NN.",    "N(.",  "(.",        "h\1.",
                                      "Nq\1h\2.", "K\1)R.", "NNR.", "NNNs.",     "}Nu.",
                                      "](Nu.",    "}(N(u.", "N(e.", "\x80\x06N."};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const size_t n = bad[i][0] == '\x80' ? 4 : strlen(bad[i]);
        CHECK_EQ(open_at(bad[i], n, &p, &err), ERR_FORMAT);
        pickle_close(&p);
    }
}

TEST(numbers_that_are_too_large_are_refused)
{
    struct pickle p;
    struct err err;
    CHECK_EQ(OPEN("\x8a\x09\0\0\0\0\0\0\0\0\1.", &p), ERR_FORMAT);
    pickle_close(&p);
    CHECK_EQ(OPEN("Nr\xff\xff\xff\xff.", &p), ERR_FORMAT); // would need 16 GB
    pickle_close(&p);
    CHECK_EQ(OPEN("X\xff\xff\xff\xff.", &p), ERR_FORMAT);
    pickle_close(&p);
    CHECK_EQ(OPEN("\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", &p), ERR_FORMAT);
    pickle_close(&p);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
