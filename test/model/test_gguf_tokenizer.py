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
       "deepseek": "deepseek-v3", "starcoder": "starcoder", "llama2": "", "gemma": ""}
REAL = {"gpt-2": "gpt-2", "llama-3": "llama-bpe", "qwen2": "qwen2", "gpt-oss": "gpt-4o", "granite-3": "refact",
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
