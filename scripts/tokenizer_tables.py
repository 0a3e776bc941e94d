#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes engine/tokenizer/tables.c: the classes of each code point in Hugging Face `tokenizers`.

The regex engine inside that library, and the Rust functions that it calls, each follow their own
version of Unicode. Every class is therefore measured: each code point is passed through the library, and the
result becomes a bit. Run it again when the library's tables change:

    pip install tokenizers && scripts/tokenizer_tables.py > engine/tokenizer/tables.c
"""
import sys
import unicodedata

from tokenizers import Regex, __version__, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

# (name, members) in the order of enum unicode_bit in engine/tokenizer/unicode.h
ONIG = [("L", r"\p{L}"), ("LU", r"\p{Lu}"), ("LT", r"\p{Lt}"), ("LM", r"\p{Lm}"), ("LO", r"\p{Lo}"),
        ("LL", r"\p{Ll}"), ("M", r"\p{M}"), ("N", r"\p{N}"), ("P", r"\p{P}"), ("S", r"\p{S}"),
        ("SPACE", r"\s"), ("DIGIT", r"\d"), ("WORD", r"\w"), ("HAN", r"\p{Han}"),
        ("PUNCT", r"[[:punct:]]")]

MORE = [("ALPHA", "[[:alpha:]]"), ("UPPER", "[[:upper:]]"), ("LOWER", "[[:lower:]]"),
        ("MN", r"\p{Mn}"), ("MC", r"\p{Mc}"), ("NO", r"\p{No}"), ("SO", r"\p{So}"),
        ("SM", r"\p{Sm}"), ("CF", r"\p{Cf}")]


def members_of(pre, text, step=1, first=0):
    """Code points that a splitter with the behaviour 'removed' drops from text."""
    kept = bytearray(len(text))
    for _, (a, b) in pre.pre_tokenize_str(text):
        kept[a:b] = b"\1" * (b - a)
    return {ord(text[i]) for i in range(first, len(text), step) if not kept[i]}


def classes():
    everything = "".join(map(chr, POINTS))
    for name, pattern in ONIG:
        yield name, members_of(pre_tokenizers.Split(Regex(pattern), "removed"), everything)
    yield "BERT_PUNCT", members_of(pre_tokenizers.Punctuation("removed"), everything)
    # Digits isolates digits: a one-character piece between letters is a digit.
    spread = "".join("a" + chr(c) for c in POINTS) + "a"
    alone = set()
    for _, (a, b) in pre_tokenizers.Digits(True).pre_tokenize_str(spread):
        if b - a == 1 and a % 2 == 1:
            alone.add(ord(spread[a]))
    yield "NUMERIC", alone
    # Whitespace keeps runs of \w together (the \w of Rust's regex crate).
    words = set()
    spread = "".join("a" + chr(c) + " " for c in POINTS)
    for _, (a, b) in pre_tokenizers.Whitespace().pre_tokenize_str(spread):
        if b - a >= 2 and a % 3 == 0:
            words.add(ord(spread[a + 1]))
    yield "RUST_WORD", words
    strip = normalizers.StripAccents()
    yield "MARK", {c for c in POINTS if strip.normalize_str(chr(c)) == ""}
    bert = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False,
                                      strip_accents=True, lowercase=False)
    yield "BERT_ACCENT", {c for c in POINTS if bert.normalize_str(chr(c)) == ""}
    bert = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False,
                                      strip_accents=False, lowercase=False)
    yield "BERT_CONTROL", {c for c in POINTS if bert.normalize_str(chr(c)) == ""}
    yield "NFC_UNSAFE", nfc_unsafe()
    # Unassigned in Unicode 14, the oldest version of a supported PCRE2.
    assert unicodedata.unidata_version == "14.0.0"
    yield "NEW", {c for c in POINTS if unicodedata.category(chr(c)) == "Cn"}
    for name, pattern in MORE:
        yield name, members_of(pre_tokenizers.Split(Regex(pattern), "removed"), everything)


def nfc_unsafe():
    """Code points that NFC may change, reorder, or compose with the previous one. Those that this
    Python does not know count as unsafe, and take the slow path."""
    nfc = normalizers.NFC()
    seconds = set()
    for c in POINTS:
        d = unicodedata.normalize("NFD", chr(c))
        seconds.update(map(ord, d[1:]))
    seconds.update(range(0x1161, 0x1176))
    seconds.update(range(0x11A7, 0x11C3))
    unsafe = set()
    for c in POINTS:
        s = chr(c)
        if (unicodedata.combining(s) or c in seconds or nfc.normalize_str(s) != s
                or unicodedata.normalize("NFC", s) != s
                or unicodedata.category(s) == "Cn"):
            unsafe.add(c)
    return unsafe


def forms_leave_alone():
    """Code points that the library's normalisation does not know: it follows an older Unicode than
    utf8proc. They neither decompose nor reorder nor compose these. (All code points in NEW behave alike.)"""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    unknown = set()
    for c in POINTS:
        s = chr(c)
        # A mark is reordered before one of a higher class, or after one of a lower class.
        if (unicodedata.combining(s) and nfd.normalize_str("\u0345" + s) == "\u0345" + s
                and nfd.normalize_str(s + "\u0334") == s + "\u0334"
                and s not in "\u0334\u0345" and unicodedata.combining(s) not in (1, 240)):
            unknown.add(c)
        if unicodedata.normalize("NFKD", s) != s and nfkd.normalize_str(s) == s:
            unknown.add(c)
            parts = unicodedata.normalize("NFD", s)
            unknown.update(map(ord, parts[-1] if parts != s else ""))
    ranges = []
    for c in sorted(unknown):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def lowercase():
    """Differences from the simple mapping of this Python's Unicode, which utf8proc shares."""
    low = normalizers.Lowercase()
    for c in POINTS:
        s = low.normalize_str(chr(c))
        if s != chr(c):
            yield c, s


def rows(values, per_line):
    for i in range(0, len(values), per_line):
        yield "    " + ", ".join(map(str, values[i:i + per_line])) + ","


def print_unformed():
    ranges = forms_leave_alone()
    print("/* First and last code point of each range that the normalisation forms leave unchanged. */")
    print(f"const uint32_t unicode_unformed[{len(ranges)}][2] = {{")
    print("\n".join(rows(["{" + f"{a:#x}, {b:#x}" + "}" for a, b in ranges], 5)) + "\n};")
    print(f"const size_t unicode_n_unformed = {len(ranges)};")


def main():
    names, flags = [], [0] * 0x110000
    for bit, (name, members) in enumerate(classes()):
        names.append(name)
        print(name, len(members), file=sys.stderr)
        for c in members:
            flags[c] |= 1 << bit
    kinds = {}
    kind_of = [kinds.setdefault(f, len(kinds)) for f in flags]
    assert len(kinds) <= 256
    blocks, index = {}, []
    for i in range(0, 0x110000, 128):
        index.append(blocks.setdefault(tuple(kind_of[i:i + 128]), len(blocks)))
    lower = list(lowercase())
    single = [(c, ord(s)) for c, s in lower if len(s) == 1]
    assert [c for c, s in lower if len(s) != 1] == [0x130]
    print("// SPDX-License-Identifier: Apache-2.0")
    print("/* Generated by scripts/tokenizer_tables.py with tokenizers " + __version__ + ": do not edit. */")
    print('#include "engine/tokenizer/unicode.h"\n')
    print("/* Bits: " + ", ".join(f"{n} {i}" for i, n in enumerate(names)) + ". */")
    print(f"const uint32_t unicode_kind_flags[{len(kinds)}] = {{")
    print("\n".join(rows([hex(k) for k in kinds], 8)) + "\n};\n")
    print(f"const uint16_t unicode_block_of[{len(index)}] = {{")
    print("\n".join(rows(index, 16)) + "\n};\n")
    print(f"const uint8_t unicode_kinds[{len(blocks)} * 128] = {{")
    print("\n".join(rows([k for b in blocks for k in b], 24)) + "\n};\n")
    print("/* Code point and its lower case, by code point. U+0130 becomes two code points and is left out. */")
    print(f"const uint32_t unicode_lower[{len(single)}][2] = {{")
    print("\n".join(rows(["{" + f"{a:#x}, {b:#x}" + "}" for a, b in single], 5)) + "\n};")
    print(f"const size_t unicode_n_lower = {len(single)};\n")
    print_unformed()


if __name__ == "__main__":
    main()
