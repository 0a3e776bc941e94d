# SPDX-License-Identifier: Apache-2.0
"""Our tokenizer compared with that of Hugging Face: all vectors, through `sluice tokenize`.

test/tokenizers/ has our own small tokenizers with vectors from the library; $SLUICE_SHARED
(default ../shared), if present, those of real models."""
import gzip
import hashlib
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
SHARED = pathlib.Path(os.environ.get("SLUICE_SHARED", ROOT / ".." / "shared")) / "data"
TOK = SHARED / "tok"


def run(directory, lines, *options):
    """The answers of one process to all lines."""
    if not lines:
        return []
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    done = subprocess.run([SLUICE, "tokenize", *options, str(directory)], input=text.encode(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    answers = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    assert len(answers) == len(lines)
    return answers


def unpack(path, tmp):
    raw = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    (tmp / "tokenizer.json").write_bytes(raw)
    return tmp


def without_special_ids(directory):
    """ids_nospecial was made with a tokenizer without the special tokens, whose other added
    tokens therefore have other ids. Maps those to the real ones."""
    j = json.loads((directory / "tokenizer.json").read_text() if directory.is_dir()
                   else directory.read_text())
    vocab = j["model"]["vocab"]
    vocab = {v[0] for v in vocab} if isinstance(vocab, list) else vocab
    plain = [a for a in j["added_tokens"] if not a["special"] and a["content"] not in vocab]
    return {len(vocab) + i: a["id"] for i, a in enumerate(plain)}


def encode_lines(vectors, real_id):
    prefix, suffix = vectors["add_special"]["prefix"], vectors["add_special"]["suffix"]
    for v in vectors["encode"]:
        yield {"text": v["text"], "add_special_tokens": False}, v["ids"]
        yield {"text": v["text"], "add_special_tokens": True}, prefix + v["ids"] + suffix
        yield ({"text": v["text"], "add_special_tokens": False, "parse_special": False},
               [real_id.get(i, i) for i in v["ids_nospecial"]] if "ids_nospecial" in v
               else v["ids"])


def decode_lines(vectors):
    for v in vectors["encode"]:
        whole = v.get("decoded", v["text"])
        yield {"ids": v["ids"]}, whole
        yield ({"ids": v["ids"], "skip_special_tokens": True}, v.get("decoded_skip_special", whole))
    for v in vectors["decode"]:
        yield {"ids": v["ids"]}, v["decoded"]
        yield ({"ids": v["ids"], "skip_special_tokens": True},
               v.get("decoded_skip_special", v["decoded"]))


def stream_lines(vectors):
    for v in vectors["stream"]:
        yield {"ids": v["ids"], "skip_special_tokens": True}, (v["deltas"], v["flush"])


def check(directory, pairs, read, *options):
    pairs = list(pairs)
    answers = run(directory, [line for line, _ in pairs], *options)
    wrong = [(line, want, answer) for (line, want), answer in zip(pairs, answers)
             if read(answer) != want]
    assert not wrong, f"{len(wrong)} of {len(pairs)} differ, first: {wrong[0]}"
    return len(pairs)


def check_vectors(directory, vectors):
    real_id = {} if vectors.get("real_ids") else without_special_ids(directory)
    check(directory, encode_lines(vectors, real_id), lambda a: a.get("ids"))
    check(directory, decode_lines(vectors), lambda a: a.get("text"), "--decode")
    check(directory, stream_lines(vectors), lambda a: (a.get("deltas"), a.get("flush")), "--stream")


OWN = sorted((ROOT / "test" / "tokenizers").glob("*.vectors.json"))
NAMES = [m["name"] for m in json.loads((TOK / "manifest.json").read_text())] if TOK.exists() else []


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name.split(".")[0])
def test_own(path):
    vectors = json.loads(path.read_text())
    check_vectors(path.parent / vectors["tokenizer_file"], vectors)


# The ids of Hugging Face's library (0.23) for "a日b<|begin|>本" if the model's ids have a gap, 700, so that the first added
# token gets the id of the model's own "<|begin|>".
GAPS = [(["日", "<|begin|>"], [68, 166, 249, 102, 69, 701, 166, 254, 109]),
        (["日", "本", "<|begin|>"], [68, 166, 249, 102, 69, 701, 702]),
        (["<|begin|>", "日"], [68, 701, 69, 31, 95, 69, 72, 74, 272, 95, 33, 166, 254, 109])]


@pytest.mark.parametrize("added, ids", GAPS, ids=lambda v: "-".join(map(str, v[:2])))
def test_a_token_whose_id_was_reassigned_is_never_found(added, ids, tmp_path):
    j = json.loads((ROOT / "test/tokenizers/gpt2.json").read_text())
    assert sorted(j["model"]["vocab"].values()) == list(range(700))
    j["model"]["vocab"]["<|begin|>"] = 701
    j["added_tokens"] = [{"id": 701, "content": c, "special": c != "日" and c != "本", "normalized": c in "日本",
                          "single_word": False, "lstrip": False, "rstrip": False} for c in added]
    (tmp_path / "tokenizer.json").write_text(json.dumps(j))
    (answer,) = run(tmp_path, [{"text": "a日b<|begin|>本", "add_special_tokens": False}])
    assert answer["ids"] == ids


@pytest.mark.skipif(not NAMES, reason="no shared data")
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_vectors(name, tmp_path):
    vectors = json.loads((TOK / f"{name}.vectors.json").read_text())
    check_vectors(unpack(SHARED / vectors["tokenizer_file"], tmp_path), vectors)


# Published vectors name real models; these are the vocabularies that we have.
REAL = {"llama.cpp:deepseek-llm": "deepseek-llm", "llama.cpp:phi-3": "phi-3",
        "llama.cpp:llama-spm": "llama-2", "llama.cpp:qwen2": "qwen2", "llama.cpp:llama-bpe": "llama-3",
        "llama.cpp:falcon": "falcon", "llama.cpp:gpt-2": "gpt-2", "Xenova/gpt2": "gpt-2",
        "openai-community/gpt2": "gpt-2", "distilgpt2": "gpt-2", "tiiuae/falcon-7b": "falcon"}
FINGERPRINTS = {"meta-llama/Meta-Llama-3-8B": ("llama-3", True), "Qwen/Qwen1.5-7B": ("qwen2", False),
                "Xenova/gpt-4o": ("gpt-oss", False), "openai-community/gpt2": ("gpt-2", False),
                "deepseek-ai/deepseek-llm-7b-base": ("deepseek-llm", True),
                "tiiuae/falcon-7b": ("falcon", False)}


@pytest.mark.skipif(not NAMES, reason="no shared data")
@pytest.mark.parametrize("name", sorted(set(REAL.values())))
def test_published_vectors(name, tmp_path):
    rows = [json.loads(line) for line in open(SHARED / "real_model_vectors.jsonl")]
    pairs = [({"text": r["text"], "add_special_tokens": False}, r["ids"]) for r in rows
             if REAL.get(r["model"]) == name]
    assert len(pairs) > 10
    check(unpack(TOK / f"{name}.json.gz", tmp_path), pairs, lambda a: a.get("ids"))


@pytest.mark.skipif(not NAMES, reason="no shared data")
@pytest.mark.parametrize("model", sorted(FINGERPRINTS))
def test_fingerprints(model, tmp_path):
    name, special = FINGERPRINTS[model]
    data = json.loads((SHARED / "tokenizer_fingerprints.json").read_text())
    want = {f["sha256"] for f in data["fingerprints"] if f["model"] == model}
    assert want
    directory = unpack(TOK / f"{name}.json.gz", tmp_path)
    ids = run(directory, [{"text": data["text"], "add_special_tokens": special}])[0]["ids"]
    assert hashlib.sha256(str(ids).encode()).hexdigest() in want
