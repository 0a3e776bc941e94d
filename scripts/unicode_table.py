#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes server/chat/jinja/unicode_table.c: the classes and case mappings of Python's str methods.

Usage: scripts/unicode_table.py > server/chat/jinja/unicode_table.c
A code point's record (class bits, the three case mappings) is shared by all code points that have the
same one; a two-level table with pages of 128 maps a code point to its record.
"""
import sys
import unicodedata

PAGE = 128
FLAGS = ["alpha", "digit", "decimal", "numeric", "lower", "upper", "title", "space", "printable",
         "cased", "case_ignorable", "id_start", "id_continue", "line_break"]


def cased(c):
    """True if c is cased and not ignorable: only then a sigma before c is not final."""
    return ("A\u03a3" + c).lower()[1] == "\u03c3"


def case_ignorable(c):
    """True if a sigma after c stays final, because c is cased or ignorable."""
    return ("A" + c + "\u03a3").lower()[-1] == "\u03c2" and not cased(c)


def flags(c):
    bits = [c.isalpha(), c.isdigit(), c.isdecimal(), c.isnumeric(), c.islower(), c.isupper(),
            unicodedata.category(c) == "Lt", c.isspace(), c.isprintable(), cased(c),
            case_ignorable(c), c.isidentifier(), ("a" + c).isidentifier(), len(("a" + c + "b").splitlines()) == 2]
    return sum(1 << i for i, b in enumerate(bits) if b)


def mapping(c, to):
    """A difference for one-to-one mappings, else the code points."""
    if len(to) == 1:
        return ord(to) - ord(c)
    return tuple(map(ord, to))


def main():
    records, index, pages, page_index = [], {}, [], {}
    extra, top = [], []
    for start in range(0, 0x110000, PAGE):
        page = []
        for cp in range(start, start + PAGE):
            c = chr(cp)
            if 0xD800 <= cp < 0xE000:
                rec = (0, 0, 0, 0, 0, -1)
            else:
                value = unicodedata.decimal(c, -1)
                rec = (flags(c), mapping(c, c.upper()), mapping(c, c.lower()), mapping(c, c.title()),
                       mapping(c, c.casefold()), value)
            if rec not in index:
                index[rec] = len(records)
                records.append(rec)
            page.append(index[rec])
        page = tuple(page)
        if page not in page_index:
            page_index[page] = len(pages)
            pages.append(page)
        top.append(page_index[page])
    out = sys.stdout.write
    out(f"// SPDX-License-Identifier: Apache-2.0\n"
        f"/* Made by scripts/unicode_table.py from Unicode {unicodedata.unidata_version}: do not edit. */\n"
        "// clang-format off\n"
        '#include "server/chat/jinja/unicode_table.h"\n\n')
    out("const struct uni_record uni_records[] = {\n")
    for bits, *maps, value in records:
        cells = []
        for m in maps:
            if isinstance(m, tuple):
                cells.append(0x400000 + len(extra))
                extra.append(m)
            else:
                cells.append(m)
        out("    {%s, %d, %d},\n" % ("{" + ", ".join(map(str, cells)) + "}", bits, value))
    out("};\n\nconst uint32_t uni_extra[][3] = {\n")
    for m in extra:
        m = list(m) + [0] * (3 - len(m))
        out("    {%s},\n" % ", ".join("0x%X" % x for x in m))
    out("};\n\nconst uint16_t uni_pages[][%d] = {\n" % PAGE)
    for p in pages:
        out("    {" + ",".join(map(str, p)) + "},\n")
    out("};\n\nconst uint16_t uni_top[%d] = {\n" % len(top))
    for i in range(0, len(top), 32):
        out("    " + ",".join(map(str, top[i:i + 32])) + ",\n")
    out("};\n")


main()
