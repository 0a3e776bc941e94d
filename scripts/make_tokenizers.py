#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the small tokenizers of test/tokenizers/ and writes the results of Hugging Face's library for
many texts with each (NAME.json and NAME.vectors.json). The corpus is this repository.

    pip install tokenizers && scripts/make_tokenizers.py [NAME...]"""
import codecs
import json
import pathlib
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, __version__, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "test" / "tokenizers"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
          r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# A class with an intersection, which PCRE2 does not support.
HAN_APART = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "   x", "\n", "\n\n", "\n \n", "\t", "\r\n", " \r\n ", "a", "A", "é", "Hello world",
    " Hello  world ", "Hello, world!", "The server answers 3 requests.", "It's we'll I'd they'RE 'tis",
    "don't DON'T Don’t", "HTTPServer getURLFor camelCase snake_case SCREAMING_CASE", "1 12 123 1234 12345",
    "3.14159e-10", "x=1;y=[2,3];", "if (n > 0) {\n    return n - 1;\n}\n", "\tint i;\n\t\tfor (;;)\n",
    "def f(x):\n    return x\n\n\n", "{\"a\": [1, 2.5, null], \"b\": \"c\"}", "https://example.com/a/b?c=d&e=f#g",
    "a//b/c/\n/", "!!! ??? ... --- ===", "(((nested)))", "café naïve Zürich", "cafe\u0301 nai\u0308ve",
    "\u212b \u2126 ﬁ ﬂ ① ２ ½ ²", "ſ 's 'ſ K", "Ünïcödé ÀÉÎÕÜ", "Привет, мир! Это тест.", "Γειά σου Κόσμε",
    "שלום עולם", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好，世界。今天天气很好！", "日本語のテスト：カタカナとひらがな",
    "한국어 테스트입니다", "\u1112\u1161\u11ab", "中文English混合123文字", "😀 👍🏽 👨‍👩‍👧‍👦 🇩🇪", "\u200b\u200d\ufeff\u00a0\u3000\u2028x",
    "\ufffd", "\x00\x01\x7f\x85", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠀀𠀁", "▁ already ▁▁ there", "<0x41> <0xE2>", "Ġ Ċ Ã©",
    "a" * 100, " " * 50, "ab" * 60, "\n" * 30, "é" * 40, "中" * 40, "aA" * 40, "1" * 50, "'" * 20,
    "<s>", "</s>", "<s>Hello</s>", "x<s>y</s>z", " <s> ", "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_start|><|im_end|><|im_start|>", "<|im_sta", "<tool_call>{\"name\": 1}</tool_call>",
    "a<think>\nhm\n</think>\n\nb", "  <|strip|>  x", "x <|strip|>\n\n y", "word wordy sword word", "<|im_end|>word",
]

# For the tokenizers with unusual steps: combining marks newer than the library's normal forms, boundaries next to marks,
# tokens inside space stripped by other tokens, tokens inside words.
ODD_TEXTS = TEXTS + [
    "\u0327\u0898\u0323\u0301", "a\u1df6\u0301", "\U0001e030\U0001fbf1\u32ff", "\U00011935\U00011930", "\u0345\u0334",
    "\u1e9b\u0323", "か\u3099 が", "é a", "a²b½c", "a.b_c-d", "x    y", "x  <|end|>  y", "<|end|>    <|end|>\n\n z", "swords word",
    "Word WORD wOrD", "ſwordK", "[unk][UNK]", "\u00a0 \u3000", "AＢＣ ﷺ", "Straße ẞ İi ıI ǅ",
]


def corpus():
    for pattern in ("engine/base/*.[ch]", "server/*.c", "scripts/*.py", "test/**/*.md", "test/*.h"):
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text()
    for _ in range(20):
        yield from TEXTS[:56]


def byte_level(name, pattern=None, normalizer=None, size=700, bos=False, ignore_merges=False, pre=None,
               prefix_space=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    elif pattern:
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(p), "isolated") for p in pattern]
            + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"]))
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    if bos:
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                          special_tokens=[("<s>", t.token_to_id("<s>"))])])
    t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False),
                  AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return name, t


def spm(name, gemma=False, metaspace=False, flags=False):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    t.normalizer = replace if gemma else normalizers.Sequence([normalizers.Prepend("▁"), replace])
    t.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    raw = t.normalizer
    t.normalizer = None
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=900, show_progress=False, limit_alphabet=150, max_token_length=16,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]))
    t.normalizer = None if metaspace else raw
    t.pre_tokenizer = (pre_tokenizers.Metaspace(prepend_scheme="first", split=False) if metaspace else
                       pre_tokenizers.Split(" ", "merged_with_previous") if gemma else None)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    t.decoder = decoders.Sequence(steps if gemma else steps + [decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", t.token_to_id("<s>"))])
    j = json.loads(t.to_str())
    # The fallback bytes are ordinary tokens; only three tokens are special.
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    j["pre_tokenizer"] = j["pre_tokenizer"] if t.pre_tokenizer is not None else None
    t = Tokenizer.from_str(json.dumps(j))
    special = [AddedToken("<|im_start|>", special=True, normalized=False, rstrip=flags),
               AddedToken("<|im_end|>", special=True, normalized=False, rstrip=flags)]
    if flags:
        special += [AddedToken("<|strip|>", special=True, normalized=False, lstrip=True, rstrip=True),
                    AddedToken("word", normalized=False, single_word=True)]
    t.add_special_tokens(special)
    return name, t


def unigram(name, byte_fallback=False):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    if byte_fallback:
        special += [f"<0x{b:02X}>" for b in range(256)]
        t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    t.train_from_iterator(corpus(), trainers.UnigramTrainer(
        vocab_size=800, unk_token="<unk>", special_tokens=special, show_progress=False))
    t.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", t.token_to_id("</s>"))])
    j = json.loads(t.to_str())
    j["model"]["byte_fallback"] = byte_fallback
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    return name, Tokenizer.from_str(json.dumps(j))


def wordpiece(name):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=800, limit_alphabet=200, show_progress=False,
        special_tokens=["[UNK]", "[CLS]", "[SEP]", "[PAD]"]))
    t.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return name, t


def suffixed(name):
    """End-of-word suffixes; merges that produce a special token; every flag."""
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.BPEDecoder("</w>")
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=600, limit_alphabet=120, end_of_word_suffix="</w>", show_progress=False, special_tokens=["<unk>"]))
    t.add_special_tokens([AddedToken("str", single_word=True, normalized=False),
                          AddedToken("  ", lstrip=True, rstrip=True, normalized=False),
                          AddedToken("<|end|>", rstrip=True, normalized=False), AddedToken("[UNK]", normalized=True)])
    t.add_tokens([AddedToken("Word", normalized=True, single_word=True, lstrip=True)])
    return name, t


def bounded(name):
    """Word boundaries by the library's \\w, and compatibility forms before byte level."""
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\b"), "merged_with_next"),
                                   pre_tokenizers.Split(Regex(r"[a-z&&[^aeiou]]+|\B\d"), "isolated", invert=True),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return byte_level(name, pre=pre, normalizer=normalizers.NFKC(), size=500)


def all_tokenizers():
    p = pre_tokenizers
    yield byte_level("gpt2")
    yield byte_level("gpt2-prefix", prefix_space=True)
    yield byte_level("llama3", [LLAMA3], bos=True, ignore_merges=True)
    yield byte_level("qwen2", [QWEN2], normalizers.NFC())
    yield byte_level("qwen35", [QWEN35], normalizers.NFC())
    yield byte_level("o200k", [O200K], ignore_merges=True)
    yield byte_level("deepseek", [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK], bos=True)
    yield byte_level("han-apart", [HAN_APART])
    yield byte_level("starcoder", pre=p.Sequence([p.Digits(True), p.ByteLevel(add_prefix_space=False)]))
    yield byte_level("falcon", pre=p.Sequence([
        p.Punctuation("contiguous"), p.ByteLevel(add_prefix_space=False), p.Digits(False),
        p.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
    yield spm("llama2")
    yield spm("phi3", flags=True)
    yield spm("gemma", gemma=True)
    yield spm("mistral", metaspace=True)
    yield unigram("unigram")
    yield unigram("unigram-bytes", byte_fallback=True)
    yield wordpiece("wordpiece")
    yield suffixed("suffix")
    yield bounded("boundaries")


def piece_of(t, j, i):
    """The text that the token adds to a stream, computed independently of the library's decoders."""
    text, kind = t.id_to_token(i), json.dumps(j["decoder"])
    if '"ByteLevel"' in kind:
        bytes_of = {}
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [b for b in range(256) if b not in plain]
        bytes_of.update({chr(b): b for b in plain})
        bytes_of.update({chr(256 + k): b for k, b in enumerate(others)})
        return bytes(bytes_of[c] for c in text) if all(c in bytes_of for c in text) else text.encode()
    if '"WordPiece"' in kind:
        word = text[2:] if text.startswith("##") else " " + text
        return word.replace(" .", ".").replace(" ?", "?").replace(" !", "!").replace(" ,", ",").encode()
    if "ByteFallback" in kind and len(text) == 6 and text.startswith("<0x"):
        return bytes([int(text[3:5], 16)])
    return text.replace("▁", " ").encode()


def stream(t, j, ids):
    special = {i for i, a in t.get_added_tokens_decoder().items() if a.special}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    deltas = [decoder.decode(b"" if i in special else piece_of(t, j, i)) for i in ids]
    return {"ids": ids, "deltas": deltas, "flush": decoder.decode(b"", True)}


def vectors(name, t):
    j = json.loads(t.to_str())
    encode, seen = [], []
    for text in ODD_TEXTS if name in ("suffix", "boundaries") else TEXTS:
        t.encode_special_tokens = False
        ids = t.encode(text, add_special_tokens=False).ids
        t.encode_special_tokens = True
        plain = t.encode(text, add_special_tokens=False).ids
        row = {"text": text, "ids": ids}
        if plain != ids:
            row["ids_nospecial"] = plain
        decoded, skipped = t.decode(ids, skip_special_tokens=False), t.decode(ids)
        if decoded != text:
            row["decoded"] = decoded
        if skipped != decoded:
            row["decoded_skip_special"] = skipped
        encode.append(row)
        seen.append(ids)
    t.encode_special_tokens = False
    # Ids that no text encodes to: partial characters.
    n = t.get_vocab_size()
    torn = [[(k * 7 + s * 131) % n for k in range(5 + s)] for s in range(12)]
    torn = [[i for i in ids if t.id_to_token(i) is not None] for ids in torn]
    whole = t.encode("", add_special_tokens=True).ids
    suffix = [i for i in whole if t.id_to_token(i) in ("</s>", "[SEP]")]
    decode = [{"ids": ids, "decoded": t.decode(ids, skip_special_tokens=False),
               "decoded_skip_special": t.decode(ids)} for ids in torn]
    rows = [stream(t, j, ids) for ids in seen[20:60:2] + torn[:6]]
    return {"made_with": f"tokenizers {__version__}", "tokenizer_file": f"{name}.json", "real_ids": True,
            "add_special": {"prefix": whole[:len(whole) - len(suffix)], "suffix": suffix},
            "encode": encode, "decode": decode, "stream": [] if name in ("wordpiece", "suffix") else rows}


def main():
    OUT.mkdir(exist_ok=True)
    for name, t in all_tokenizers():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        (OUT / f"{name}.json").write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False,
                                                     separators=(",", ":")) + "\n")
        (OUT / f"{name}.vectors.json").write_text(
            json.dumps(vectors(name, t), ensure_ascii=False, separators=(",", ":")) + "\n")


main()
