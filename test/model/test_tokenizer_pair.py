# SPDX-License-Identifier: Apache-2.0
"""Folders without tokenizer.json: vocab.json and merges.txt give the ids that transformers' class makes of them."""
import json
import pathlib
import subprocess

import pytest

import golden

ROOT = pathlib.Path(__file__).parents[2]
TEXTS = ["Hello world", " leading  and   inner spaces\n\n\ttabs ", "it's 12345 o'clock, don't!", "na\u00efve \u6c49\u5b57 \U0001f600 \u0301",
         "", "a</s>b<pad> <|endoftext|>c <extra>d<a><y>", "def f(x):\n    return x ** 2\n"]


def folder(path, config=None, specials=None, added=None, model=None, more=(), crlf=False):
    tok = json.loads((ROOT / "test" / "tokenizers" / "gpt2.json").read_text())["model"]
    vocab = dict(tok["vocab"])
    for text in more:
        vocab[text] = len(vocab)
    path.mkdir()
    (path / "vocab.json").write_text(json.dumps(vocab))
    end = "\r\n" if crlf else "\n"
    lines = ["#version: 0.2", *(m if isinstance(m, str) else " ".join(m) for m in tok["merges"]), ""]
    (path / "merges.txt").write_bytes(end.join(lines).encode())
    for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", specials), ("added_tokens.json", added),
                          ("config.json", model)):
        if content is not None:
            (path / name).write_text(json.dumps(content))
    return path


def ours(path, *flags, lines=None):
    lines = lines or [{"text": text} for text in TEXTS]
    done = subprocess.run([golden.SLUICE, "tokenize", *flags, str(path)], input="".join(json.dumps(x) + "\n" for x in lines),
                          capture_output=True, text=True, timeout=60)
    return done


def whole(text):
    return {"content": text, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "__type": "AddedToken"}


OPT = {"bos_token": whole("</s>"), "eos_token": whole("</s>"), "unk_token": whole("</s>"), "pad_token": whole("<pad>"),
       "add_bos_token": True, "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer"}
FORMS = {
    "opt": {"config": OPT, "specials": {"bos_token": "</s>", "eos_token": "</s>"}, "more": ["<pad>", "</s>"], "model": {"model_type": "opt"}},
    "gpt2": {"model": {"model_type": "gpt2"}, "more": ["<|endoftext|>"]},
    "old gpt2": {"config": {"model_max_length": 1024}, "model": {"model_type": "gpt2"}, "more": ["<|endoftext|>"],
                 "specials": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}},
    "spaced": {"config": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, "more": ["<|endoftext|>"],
               "model": {"model_type": "gpt2"}},
    "added": {"config": {"tokenizer_class": "GPT2Tokenizer", "pad_token": "<pad>"}, "more": ["<|endoftext|>", "<pad>"],
              "model": {"model_type": "gptj"}},
}


@pytest.mark.parametrize("name", FORMS)
def test_ids_of_the_class(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    values = dict(FORMS[name])
    path = folder(tmp_path / "t", **values)
    if name == "added":
        n = len(json.loads((path / "vocab.json").read_text()))
        (path / "added_tokens.json").write_text(json.dumps({"<y>": n + 1, "<extra>": n, "<a>": n + 2}))
    theirs = transformers.AutoTokenizer.from_pretrained(str(path))
    done = ours(path)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
    assert answers == [theirs(text).input_ids for text in TEXTS]
    back = ours(path, "--decode", lines=[{"ids": ids} for ids in answers])
    assert [json.loads(line)["text"] for line in back.stdout.splitlines()] == [
        theirs.decode(ids, clean_up_tokenization_spaces=False) for ids in answers]


def test_ends_of_lines_do_not_matter(tmp_path):
    paths = [folder(tmp_path / str(crlf), model={"model_type": "gpt2"}, crlf=crlf) for crlf in (False, True)]
    first, second = (ours(path).stdout for path in paths)
    assert first == second and '"ids"' in first


@pytest.mark.parametrize("values, word", [
    ({"config": {"tokenizer_class": "RobertaTokenizer"}, "model": {"model_type": "gpt2"}}, "RobertaTokenizer"),
    ({"model": {"model_type": "qwen2"}}, "unnamed class"),
    ({}, "unnamed class"),
])
def test_other_classes_are_refused(values, word, tmp_path):
    done = ours(folder(tmp_path / "t", **values))
    assert done.returncode == 1 and word in done.stderr and "tokenizer.json" in done.stderr, done.stderr


@pytest.mark.parametrize("name, text", [("vocab.json", "[1]"), ("vocab.json", "{"), ("merges.txt", "a b c\n"), ("merges.txt", "zz zzz\n"),
                                        ("merges.txt", "alone\n"), ("special_tokens_map.json", "["), ("added_tokens.json", '{"x": "y"}')])
def test_broken_files_are_refused(name, text, tmp_path):
    path = folder(tmp_path / "t", model={"model_type": "gpt2"})
    (path / name).write_text(text)
    done = ours(path)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert str(path) in done.stderr


def test_a_model_is_served_with_them(tmp_path):
    """Text in, text out, from the two files alone."""
    path = tmp_path / "model"
    folder(path, **FORMS["opt"])
    (path / "config.json").write_text(json.dumps({
        "model_type": "opt", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "vocab_size": 1024}))
    lines = json.dumps({"prompt": "Hello world", "max_tokens": 3}) + "\n"
    done = subprocess.run([*golden.RUN, str(path), "--json", "--load-format", "dummy", "--log-level", "error"], input=lines,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["usage"]["prompt_tokens"] == len(json.loads(ours(path, lines=[{"text": "Hello world"}]).stdout)["ids"])
