# SPDX-License-Identifier: Apache-2.0
"""A tokenizer from a GGUF file's metadata gives the ids that the library gives with the same tokenizer's own file: all
vectors of test_tokenizer.py of the kinds that such files support, for our tokenizers and those of real models
($SLUICE_SHARED). Excluded are runs of spaces as added tokens: GGUF files store them as spaces, and the library never finds them."""
import json

import pytest

import gguf_files
from nightly import NIGHTLY
from test_tokenizer import NAMES, ROOT, SHARED, TOK, check, decode_lines, encode_lines, run, stream_lines, unpack, \
    without_special_ids

OWN = {"gpt2": "gpt-2", "llama3": "llama-bpe", "qwen2": "qwen2", "qwen35": "qwen35", "o200k": "gpt-4o",
       "deepseek": "deepseek-v3", "falcon": "falcon", "starcoder": "starcoder", "llama2": "", "gemma": ""}
REAL = {"deepseek-llm": "deepseek-llm", "gpt-2": "gpt-2", "llama-3": "llama-bpe", "qwen2": "qwen2", "gpt-oss": "gpt-4o", "granite-3": "refact",
        "tekken-style": "tekken", "deepseek3-style": "deepseek-v3", "llama-2": "", "phi-3": "", "mini-llama-2": "",
        "mini-llama-3": "llama-bpe", "mini-qwen2": "qwen2"}


def write(path, tok, vectors, pre, arch="llama"):
    w = gguf_files.Writer()
    w.key("general.architecture", gguf_files.STRING, arch)
    prefix = vectors["add_special"]["prefix"]
    texts = {i: t for t, i in tok["model"]["vocab"].items()}
    texts.update({a["id"]: a["content"] for a in tok["added_tokens"]})
    config = {"add_bos_token": bool(prefix), "add_eos_token": bool(vectors["add_special"]["suffix"])}
    if prefix:
        config["bos_token"] = texts[prefix[0]]
    gguf_files.vocab_keys(w, tok, config, pre)
    return w.write(path)


def test_listed_merges_of_a_vocabulary_with_spaces_as_marks(tmp_path):
    """Gemma 4's files have merges where others of this kind have scores only."""
    source = ROOT / "test" / "tokenizers" / "gemma.json"
    vectors = json.loads((source.parent / "gemma.vectors.json").read_text())
    tok = json.loads(source.read_text())
    path = write(tmp_path / "t.gguf", tok, vectors, "")
    w = gguf_files.read(path)
    merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
    w.keys = [k for k in w.keys if k[0] not in ("tokenizer.ggml.model", "tokenizer.ggml.pre")]
    w.key("tokenizer.ggml.model", gguf_files.STRING, "gemma4")
    w.key("tokenizer.ggml.merges", [gguf_files.STRING], merges)
    check_file(w.write(path), source, vectors)


def check_file(path, source, vectors, streams=True):
    real_id = {} if vectors.get("real_ids") else without_special_ids(source)
    check(path, encode_lines(vectors, real_id), lambda a: a.get("ids"))
    check(path, decode_lines(vectors), lambda a: a.get("text"), "--decode")
    if streams:
        check(path, stream_lines(vectors), lambda a: (a.get("deltas"), a.get("flush")), "--stream")


@pytest.mark.parametrize("name", OWN)
def test_own(name, tmp_path):
    source = ROOT / "test" / "tokenizers" / f"{name}.json"
    vectors = json.loads((source.parent / f"{name}.vectors.json").read_text())
    path = write(tmp_path / "t.gguf", json.loads(source.read_text()), vectors, OWN[name])
    check_file(path, source, vectors)


@pytest.mark.skipif(not NAMES, reason="no shared data")
@pytest.mark.parametrize("name", REAL)
def test_real(name, tmp_path):
    vectors = json.loads((TOK / f"{name}.vectors.json").read_text())
    source = unpack(SHARED / vectors["tokenizer_file"], tmp_path)
    tok = json.loads((tmp_path / "tokenizer.json").read_text())
    arch = "phi3" if name == "phi-3" else "llama"
    # The code that streams text does not depend on the file format: test_own and test_tokenizer.py test it.
    check_file(write(tmp_path / "t.gguf", tok, vectors, REAL[name], arch), source, vectors, streams=NIGHTLY)


SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
NOT_HAN = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]%s[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]%s"
O200K = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]%s[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]%s"
BEHIND = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
BY_THREE = SHORT + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" + BEHIND
BY_ONE = BY_THREE.replace("{1,3}", "")
O200K_WORDS = "|".join([O200K % ("*", "+") + SHORT + "?", O200K % ("+", "*") + SHORT + "?", "\\p{N}{1,3}",
                        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*", BEHIND])
# The patterns in the families' own files; several are applied in turn.
PATTERNS = {
    "laguna": ["[^\\n]+|[\\n]+", BY_ONE], "cohere2moe": ["\\d{1,3}(?=(?:\\d{3})*\\b)", O200K_WORDS],
    "jais-2": BY_THREE.replace("\\s+(?!\\S)|\\s+", "|".join("\\s{%d}(?!\\S)" % (1 << i) for i in range(9, 1, -1))
                               + "|\\s{1,2}(?!\\S)|\\s{1}"),
    "afmoe": ["\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
              "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f\u0e80-\u0eff"
              "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
              "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
              "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" + BEHIND],
    "glm4": BY_THREE, "glm5": BY_THREE, "chatglm-bpe": BY_THREE,
    "kimi-k2": "|".join(["[\\p{Han}]+", NOT_HAN % ("*", "+") + SHORT + "?", NOT_HAN % ("+", "*") + SHORT + "?", "\\p{N}{1,3}",
                         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*", BEHIND]),
    "minimax-m2": O200K_WORDS,
    "exaone-moe": "|".join([SHORT, "[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+", "\\p{N}",
                            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?", "\\s*[\\r\\n]", "\\s+(?!\\S)", "\\s+"])}
TEXTS = ["Hello world, it's 12345 o'clock\n\n  x", "\u6c49\u5b57 and Kana \u304b\u306a\u6f22\u5b57abc", "XMLHttp URLs don'T\r\n/path/to//x\n",
         "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 one two  three", "  \t\n \r\n!!!\n/ //\n", "na\u00efve \u01c5 \u02b0 \u0301a 3\u00bd\u216b",
         "\u6f22a\u6f22 \u3007\u3400\u4e00x \u5b57's", "a b c d  e f\ng",
         "1234567 12 " + 90 * " " + "x 1000000a \uff66\uff67 .net #tag"]


@pytest.mark.parametrize("pre", PATTERNS)
def test_patterns_as_the_library_reads_them(pre, tmp_path):
    """The vocabulary has merges across most of the places at which patterns split."""
    tokenizers = pytest.importorskip("tokenizers")
    tok = json.loads((ROOT / "test" / "tokenizers" / "gpt2.json").read_text())
    texts, letters = set(tok["model"]["vocab"]), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges = list(tok["model"]["merges"])
    for text in TEXTS:  # every prefix is a token, so ids tell where the text was split
        whole = letters.pre_tokenize_str(text)[0][0]
        for i in range(1, len(whole)):
            if whole[:i + 1] not in texts:
                texts.add(whole[:i + 1])
                merges.append([whole[:i], whole[i]])
    added = sorted(texts - set(tok["model"]["vocab"]))
    first = max([*tok["model"]["vocab"].values(), *(a["id"] for a in tok["added_tokens"])]) + 1
    tok["model"]["vocab"].update({text: first + i for i, text in enumerate(added)})
    tok["model"].update(merges=merges, ignore_merges=pre in ("glm4", "glm5", "kimi-k2"))
    tok["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        *({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
          for pattern in (PATTERNS[pre] if isinstance(PATTERNS[pre], list) else [PATTERNS[pre]])),
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tok))
    path = write(tmp_path / "t.gguf", tok, {"add_special": {"prefix": [], "suffix": []}}, pre)
    answers = run(path, [{"text": text, "add_special_tokens": False} for text in TEXTS])
    for text, answer in zip(TEXTS, answers):
        assert answer["ids"] == theirs.encode(text, add_special_tokens=False).ids, text
