#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `sluice tokenize` with Hugging Face's library on random tokenizer.json files.

    pip install tokenizers && scripts/compare_tokenizers.py [CONFIGS (300)] [SEED (1)]

Small models of each kind are trained on this repository; each configuration is one of them with random flags, added tokens,
normalizers, pre-tokenizers, post-processors and decoders. Half of the configurations combine these as real models do. Ids
and decoded texts of 120 difficult strings each are compared. Prints differences, and configurations that we reject, with the
reason. Cases are skipped if the library itself panics, or picks at random among added tokens with equal normalised forms.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from collections import Counter

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[1]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
TEXTS = 120

BITS = [
    "", " ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u200b", "\u200d", "\ufeff", "\u0085", "\x00", "\x01",
    "\x7f", "\x1c", "\x0b", "a", "b", "A", "the", " the", "The", "word", "words", "Hello", "world", "don't", "'s", "'S", "'re", "ſ",
    "K", "é", "e\u0301", "\u0301", "\u0323\u0301", "Å", "\u212b", "ﬁ", "①", "½", "²", "٣", "१", "Ⅷ", "中", "文", "你好", "。", "！", "、",
    "カ", "が", "か\u3099", "한", "\u1112\u1161\u11ab", "\u1161", "İ", "ß", "ẞ", "Σ", "ΑΣ", "ς", "ǅ", "ŉ", "😀", "👍🏽", "👨\u200d👩", "🇩🇪",
    "\ufffd", "▁", "▁▁", "Ġ", "Ċ", "Ã©", "<0x41>", "<0xE2>", "<0x0A>", "<unk>", "<s>", "</s>", "[UNK]", "##ing", "ing", "</w>", ".",
    ",", "!", "?", "...", "-", "_", "__", "(", ")", "[", "]", "<", ">", "|", "\\", "/", "//", "@", "#", "$", "+", "=", "~", "`", "^",
    '"', "'", "*", "&", "%", ";", ":", "0", "1", "12", "123", "1234", "007", "3.14", "x=1", "กำ", "\u093f", "क्ष", "𝔘", "𠀀",
    "\U000e0001", "\u180e", "\u115f", "ﷺ", "ა", "Ა", "Ꭰ", "ꭰ", "\u0345", "\u1e9b\u0323", "\u0344", "‘", "’", "—", "…", "\u2060",
    "\u00ad", "aaaa", "a" * 50, "ab" * 6,
]
REGEXES = [
    r"\s+", r"\p{L}+", r"\d", r"[aeiou]", r" {2,}", r"\n", r"^\s", r"\s$", r"[^\p{L}\p{N}\s]+", r"\p{N}{1,3}", r"(?i:'s|'t)|\w+", r"\b",
    r"\B", r"x*", r"(?=[A-Z])", r"[[:punct:]]", r"\h+", r"\w+|[^\w\s]+", r"(?<=a)b", r"[一-龥]+", r"\p{Han}+", r".", r"\A.",
    r"[a-z&&[^aeiou]]+", r"\s?\p{P}+", r"(a|b)+", r"a+?", r"(?!\S)\s+", r"\R", r"[\p{L}&&\p{Latin}]+", r"\x{61}", r"\u0061",
    r"(?m:a.b)", r"a{,2}", r"a{2}+", r"\p{^L}+", r"\P{L}+", r"[^a]", r"$", r"^", r"\p{Word}+", r"[[:alpha:]_]+", r"\p{Lu}\p{Ll}*",
    r"''|``", r"[\r\n]+", r"\s*[\r\n]+|\s+(?!\S)|\s+", r"(?i)the", r"(?i:é)", r"[\-_.]", r"\p{M}+", r"\S+", r" ?[^\s\p{L}\p{N}]+",
    r"(?>a+)a", r"[]a]", r"[a-]+", r"(?:\w+)(?=\s|$)", r"\p{Sc}|\p{S}+",
]
LITERALS = [" ", "a", "th", ".", "▁", "é", "\n", "aa", "  ", "中", "``", "'", "", "\u0301"]
ADDED = ["<|im_start|>", "<|im_end|>", "<tool_call>", "word", "the", "é", "a", "  ", "\n", "中", "😀", "<s>", "</s>", "[UNK]", "İ", "THE",
         "ﬁ", "._.", "'s", "▁x", " hi ", "<|a|>", "<|a|><|b|>", "Hello", "_", "1", "café", "cafe\u0301"]
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SCHEMES = ["always", "first", "never"]


def base_models():
    """name -> the "model" section of a trained tokenizer."""
    corpus = [p.read_text() for p in sorted((ROOT / "engine/base").glob("*.c"))[:10]]
    corpus += ["Привет мир", "你好世界 今天天气", "café naïve Zürich Straße", "안녕 세상", "日本語 テスト", "مرحبا", "नमस्ते दुनिया", "12345 ½²③ ⅷ", "😀👍🏽"] * 30
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    pre = pre_tokenizers

    def train(model, trainer, splitter):
        t = Tokenizer(model)
        t.pre_tokenizer = splitter
        t.train_from_iterator(corpus, trainer)
        return json.loads(t.to_str())["model"]

    def bpe(splitter, size, special=(), prefix=None, suffix=None, **more):
        affixes = {k: v for k, v in (("continuing_subword_prefix", prefix), ("end_of_word_suffix", suffix)) if v}
        unk = "<unk>" if "<unk>" in special else None
        return train(models.BPE(unk_token=unk, **affixes), trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(special), show_progress=False, **affixes, **more), splitter)

    def unigram(splitter, size, special):
        return train(models.Unigram(), trainers.UnigramTrainer(
            vocab_size=size, unk_token="<unk>", special_tokens=special, show_progress=False), splitter)

    level, alphabet = pre.ByteLevel(add_prefix_space=False), pre.ByteLevel.alphabet()
    named = ["<unk>", "<s>", "</s>"]
    return {
        "bytes": bpe(level, 600, initial_alphabet=alphabet), "bytes-special": bpe(level, 600, named, initial_alphabet=alphabet),
        "bytes-partial": bpe(level, 400), "spm": bpe(pre.Metaspace(), 800, named + byte_tokens, limit_alphabet=100),
        "spm-partial": bpe(pre.Metaspace(), 800, named + byte_tokens[:128], limit_alphabet=100),
        "chars": bpe(pre.Metaspace(), 800, named, limit_alphabet=100), "chars-no-unk": bpe(pre.Metaspace(), 800, limit_alphabet=100),
        "spaced": bpe(pre.Split(" ", "merged_with_next"), 500, ["<unk>"], limit_alphabet=80, max_token_length=8),
        "suffix": bpe(pre.Whitespace(), 500, ["<unk>"], suffix="</w>", limit_alphabet=80),
        "prefix": bpe(pre.Whitespace(), 500, ["<unk>"], prefix="##", limit_alphabet=80),
        "both": bpe(pre.Whitespace(), 500, ["<unk>"], prefix="##", suffix="</w>", limit_alphabet=80),
        "unigram": unigram(pre.Metaspace(), 400, ["<unk>", "<s>"]),
        "unigram-bytes": unigram(pre.Metaspace(), 600, ["<unk>", "<s>", *byte_tokens]),
        "unigram-unsplit": unigram(pre.Split(Regex(r"\n|[^a-z ]"), "isolated"), 400, ["<unk>", "<s>"]),
        "wordpiece": train(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(
            vocab_size=500, limit_alphabet=150, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False), pre.BertPreTokenizer()),
        "wordlevel": train(models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(
            vocab_size=300, special_tokens=["[UNK]"], show_progress=False), pre.Whitespace()),
    }


class Maker:
    """Random sections of a tokenizer.json."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.models = base_models()

    def yes(self, p=.5):
        return self.r.random() < p

    def pattern(self):
        return {"String": self.r.choice(LITERALS)} if self.yes(.4) else {"Regex": self.r.choice(REGEXES)}

    def bert(self):
        return {"type": "BertNormalizer", "clean_text": self.yes(), "handle_chinese_chars": self.yes(),
                "strip_accents": self.r.choice([None, True, False]), "lowercase": self.yes()}

    def normalizer(self, depth=0):
        r = self.r
        kind = r.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "Strip", "Prepend", "Replace", "Replace",
                         "BertNormalizer", "ByteLevel" if depth == 0 else "NFC", "Sequence" if depth < 3 else "NFC"])
        more = {"Strip": lambda: {"strip_left": self.yes(), "strip_right": self.yes()},
                "Prepend": lambda: {"prepend": r.choice(["▁", " ", "x", "▁▁", "é", "<s>"])},
                "Replace": lambda: {"pattern": self.pattern(), "content": r.choice(["", " ", "▁", "b", "é", "<s>", "aa"])},
                "BertNormalizer": self.bert,
                "Sequence": lambda: {"normalizers": [self.normalizer(depth + 1) for _ in range(r.randrange(4))]}}
        return {"type": kind, **more.get(kind, dict)()}

    def level(self):
        return {"type": "ByteLevel", "add_prefix_space": self.yes(), "trim_offsets": self.yes(), "use_regex": self.yes()}

    def metaspace(self, replacements="▁"):
        return {"type": "Metaspace", "replacement": self.r.choice(replacements), "prepend_scheme": self.r.choice(SCHEMES), "split": self.yes()}

    def pre_tokenizer(self, depth=0):
        r = self.r
        kind = r.choice(["Split", "Split", "Split", "ByteLevel", "Digits", "Punctuation", "Metaspace", "Whitespace", "WhitespaceSplit",
                         "BertPreTokenizer", "CharDelimiterSplit", "FixedLength", "Sequence" if depth < 2 else "Split"])
        more = {"Split": lambda: {"pattern": self.pattern(), "behavior": r.choice(BEHAVIORS), "invert": self.yes(.3)},
                "ByteLevel": self.level, "Digits": lambda: {"individual_digits": self.yes()},
                "Punctuation": lambda: {"behavior": r.choice(BEHAVIORS)}, "Metaspace": lambda: self.metaspace("▁▁▁_é"),
                "CharDelimiterSplit": lambda: {"delimiter": r.choice(" _éa")}, "FixedLength": lambda: {"length": r.randrange(1, 6)},
                "Sequence": lambda: {"pretokenizers": [self.pre_tokenizer(depth + 1) for _ in range(r.randrange(4))]}}
        return {"type": kind, **more.get(kind, dict)()}

    def decoder(self, depth=0):
        r = self.r
        kind = r.choice(["ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "WordPiece", "BPEDecoder"]
                        + (["Sequence"] * 3 if depth < 2 else []))
        more = {"ByteLevel": self.level, "Metaspace": lambda: self.metaspace("▁▁_"),
                "Replace": lambda: {"pattern": self.pattern(), "content": r.choice(["", " ", "x"])},
                "Strip": lambda: {"content": r.choice(" a▁é"), "start": r.randrange(3), "stop": r.randrange(3)},
                "WordPiece": lambda: {"prefix": r.choice(["##", "@@", ""]), "cleanup": self.yes()},
                "BPEDecoder": lambda: {"suffix": r.choice(["</w>", "▁"])},
                "Sequence": lambda: {"decoders": [self.decoder(depth + 1) for _ in range(r.randrange(5))]}}
        return {"type": kind, **more.get(kind, dict)()}

    def post_processor(self, names):
        r = self.r
        name, i = r.choice(names)
        ends = [{"SpecialToken": {"id": name, "type_id": 0}}]
        template = {"type": "TemplateProcessing", "single": ends * r.randrange(3) + [{"Sequence": {"id": "A", "type_id": 0}}] + ends * r.randrange(3),
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {name: {"id": name, "ids": [i] * r.choice([1, 1, 2]), "tokens": [name]}}}
        ends = {"sep": [name, i], "cls": list(names[0])}
        return r.choice([None, self.level(), template, template, {"type": "Sequence", "processors": [self.level(), template]},
                         {"type": "BertProcessing", **ends},
                         {"type": "RobertaProcessing", **ends, "trim_offsets": self.yes(), "add_prefix_space": self.yes()}])

    def usual(self, j, name):
        """The steps of real models of this kind."""
        r = self.r
        space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        if name.startswith("bytes"):
            j["pre_tokenizer"] = r.choice([self.level(), {"type": "Sequence", "pretokenizers": [self.pre_tokenizer(1), self.level()]}])
            j["decoder"] = self.level()
            j["normalizer"] = self.normalizer() if self.yes(.3) else None
        elif name == "wordpiece":
            j.update(normalizer=self.bert(), pre_tokenizer={"type": "BertPreTokenizer"},
                     decoder={"type": "WordPiece", "prefix": "##", "cleanup": self.yes()})
        elif name in ("suffix", "prefix", "both", "wordlevel"):
            j["pre_tokenizer"] = {"type": r.choice(["Whitespace", "BertPreTokenizer", "WhitespaceSplit"])}
            j["decoder"] = {"type": "BPEDecoder", "suffix": "</w>"}
            j["normalizer"] = self.normalizer() if self.yes() else None
        else:
            kind = r.randrange(3)
            prepend = {"type": "Prepend", "prepend": "▁"}
            j["normalizer"] = [{"type": "Sequence", "normalizers": [prepend, space]}, None, space][kind]
            j["pre_tokenizer"] = self.metaspace() if kind == 1 else None
            fallback = [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
            j["decoder"] = r.choice([{"type": "Sequence", "decoders": [dict(space, pattern={"String": "▁"}, content=" "), *fallback]},
                                     self.metaspace(), {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, self.metaspace()]}])

    def model(self):
        name = self.r.choice(list(self.models))
        m = json.loads(json.dumps(self.models[name]))
        if m["type"] == "BPE":
            m.update(ignore_merges=self.yes(.3), fuse_unk=self.yes(), byte_fallback=self.yes(.6 if name.startswith("spm") else .2))
            if self.yes(.3):
                m["unk_token"] = self.r.choice([None, "a", "<unk>" if "<unk>" in m["vocab"] else None])
            if self.yes(.15):
                self.r.shuffle(m["merges"])
        elif m["type"] == "Unigram":
            m["byte_fallback"] = self.yes(.7 if "bytes" in name else .3)
        elif m["type"] == "WordPiece":
            m["max_input_chars_per_word"] = self.r.choice([100, 5, 10])
        return name, m

    def config(self):
        name, m = self.model()
        vocab = m["vocab"] if isinstance(m["vocab"], dict) else {p[0]: i for i, p in enumerate(m["vocab"])}
        added, next_id = [], len(vocab)
        for text in self.r.sample(ADDED, self.r.choice([0, 1, 3, 6, 10])):
            flags = {k: self.yes(p) for k, p in (("single_word", .3), ("lstrip", .3), ("rstrip", .3), ("normalized", .4), ("special", .5))}
            added.append({"id": vocab.get(text, next_id), "content": text, **flags})
            next_id += text not in vocab
        added.sort(key=lambda a: a["id"])
        j = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": None,
             "post_processor": self.post_processor(list(vocab.items())[:5] + [(a["content"], a["id"]) for a in added]),
             "decoder": None, "model": m}
        if self.yes():
            self.usual(j, name)
        else:
            for key, p in (("normalizer", .6), ("pre_tokenizer", .8), ("decoder", .8)):
                j[key] = getattr(self, key)() if self.yes(p) else None
        return name, j

    def text(self, added):
        r, out = self.r, []
        for _ in range(r.choice([1, 1, 2, 3, 4, 6, 10, 20])):
            s, kind = r.choice(BITS + added * 3), r.random()
            if kind < .06:
                s = chr(r.choice([r.randrange(1, 0x250), r.randrange(0x250, 0xD800), r.randrange(0xE000, 0x20000)]))
            elif kind < .12:
                s *= r.randrange(1, 5)
            elif kind < .25:
                s = s + " " if kind < .2 else s.upper()
            out.append(s)
        return "".join(out)


def library(call):
    """The library's result; None if it fails or panics."""
    try:
        return call()
    except BaseException as e:  # panics do not derive from Exception  # pylint: disable=broad-except
        if isinstance(e, KeyboardInterrupt):
            raise
        return None


def ours(folder, lines, *options):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    p = subprocess.run([SLUICE, "tokenize", *options, folder], input=text.encode(), capture_output=True, check=False)
    if p.returncode:
        return p.returncode, p.stderr.decode().strip()
    return 0, [json.loads(line) for line in p.stdout.decode().split("\n")[:-1]]


def ambiguous(t, j):
    """Added tokens with equal or empty normalised forms: the library picks one of them by hash order."""
    n = t.normalizer
    forms = [n.normalize_str(a["content"]) if n and a["normalized"] else a["content"] for a in j["added_tokens"] if a["normalized"]]
    return len(set(forms)) < len(forms) or "" in forms


def compare(t, j, folder, texts, rng):
    """Returns (number of comparisons, the difference or the reason for our rejection)."""
    lines = [{"text": x, "add_special_tokens": s} for x in texts for s in (False, True)]
    want = [library(lambda q=q: t.encode(q["text"], add_special_tokens=q["add_special_tokens"]).ids) for q in lines]
    code, got = ours(folder, lines)
    if code:
        return 0, got if code == 1 else f"CRASH {code}: {got}"
    bad = [(q, w, g.get("ids")) for q, w, g in zip(lines, want, got) if w is not None and g.get("ids") != w]
    n = t.get_vocab_size(True)
    lists = [w for w in want[::2] if w] + [[rng.randrange(n) for _ in range(rng.randrange(1, 12))] for _ in range(60)]
    decodes = [{"ids": w, "skip_special_tokens": s} for w in lists for s in (False, True)]
    want = [library(lambda q=q: t.decode(q["ids"], skip_special_tokens=q["skip_special_tokens"])) for q in decodes]
    code, got = ours(folder, decodes, "--decode")
    if code:
        return 0, f"CRASH {code}: {got}"
    bad += [(q, w, g.get("text")) for q, w, g in zip(decodes, want, got) if w is not None and g.get("text") != w]
    return len(lines) + len(decodes), sorted(bad, key=lambda row: len(str(row[0])))


def main():
    count, seed = (int(a) for a in (sys.argv[1:] + ["300", "1"][len(sys.argv) - 1:])[:2])
    maker, refused, compared, differ = Maker(seed), Counter(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            name, j = maker.config()
            texts = [maker.text([a["content"] for a in j["added_tokens"]]) for _ in range(TEXTS)]
            t = library(lambda: Tokenizer.from_str(json.dumps(j)))  # pylint: disable=cell-var-from-loop
            if t is None or ambiguous(t, j):
                continue
            pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(j))
            n, bad = compare(t, j, folder, texts, maker.r)
            compared += n
            if isinstance(bad, str):
                refused[bad[:200] if bad.startswith("CRASH") else bad.split(": ", 1)[-1][:120]] += 1
                if bad.startswith("CRASH"):
                    print(f"{i} {name}: {bad}")
                    pathlib.Path(tempfile.gettempdir(), "crash.json").write_text(json.dumps(j))
                    pathlib.Path(tempfile.gettempdir(), "crash.texts").write_text(json.dumps(texts))
            elif bad:
                differ += 1
                model = {k: v if k not in ("vocab", "merges") else len(v) for k, v in j["model"].items()}
                print(f"{i} {name}: {len(bad)} differ\n  {json.dumps(dict(j, model=model), ensure_ascii=False)}")
                for q, w, g in bad[:3]:
                    print(f"  {json.dumps(q, ensure_ascii=False)}\n    library {w!r}\n    ours    {g!r}")
    print(f"{count} configurations, {compared} comparisons, {differ} configurations differ")
    for why, n in refused.most_common():
        print(f"{n} refused: {why}")
    return differ > 0 or any("CRASH" in why for why in refused)


if __name__ == "__main__":
    sys.exit(main())
