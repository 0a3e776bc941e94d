# SPDX-License-Identifier: Apache-2.0
"""Encoders, compared with transformers' stored answers: pooled hidden states and logits of classifiers."""
import json
import os
import shutil
import subprocess

import pytest

import encoders
import golden

POOLINGS = ("mean", "last", "max", "first")
TOLERANCE = 1e-4


def run(folder, asked, *flags):
    """One vector for each (prompt, pooling)."""
    lines = "".join(json.dumps({"prompt_token_ids": p, "pool": pooling}) + "\n" for p, pooling in asked)
    done = subprocess.run([*golden.RUN, folder, "--json", "--log-level", "error", *flags], input=lines, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, golden.ended(done)
    return [json.loads(line) for line in done.stdout.splitlines()]


def vectors(folder, asked, *flags):
    answers = run(folder, asked, *flags)
    assert len(answers) == len(asked) and all("embedding" in a for a in answers), answers
    return [a["embedding"] for a in answers]


def off(want, have):
    assert len(want) == len(have)
    return max(abs(a - b) for a, b in zip(want, have))


def asked_of(name):
    return [(case["prompt"], pooling) for case in encoders.expected(name)["cases"] for pooling in POOLINGS]


PLAIN = [name for name in encoders.NAMES if "mean" in encoders.expected(name)["cases"][0]]
CLASSIFIERS = [name for name in encoders.NAMES if "logits" in encoders.expected(name)["cases"][0]]


@pytest.mark.parametrize("name", PLAIN)
def test_pooled_states_equal_transformers(name):
    have = iter(vectors(encoders.folder(name), asked_of(name), "--dtype", "float32"))
    for case in encoders.expected(name)["cases"]:
        for pooling in POOLINGS:
            assert off(case[pooling], next(have)) <= TOLERANCE, (len(case["prompt"]), pooling)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_logits_equal_transformers(name):
    cases = encoders.expected(name)["cases"]
    for case, have in zip(cases, vectors(encoders.folder(name), [(c["prompt"], "mean") for c in cases], "--dtype", "float32")):
        assert off(case["logits"], have) <= TOLERANCE, len(case["prompt"])


@pytest.mark.parametrize("name", encoders.NAMES)
def test_rounding_is_not_worse_than_transformers(name):
    exact = vectors(encoders.folder(name), asked_of(name), "--dtype", "float32")
    rough = vectors(encoders.folder(name), asked_of(name), "--dtype", "bfloat16")
    theirs = max(case["bf16_mean_error"] for case in encoders.expected(name)["cases"])
    errors = [abs(a - b) for e, r in zip(exact, rough) for a, b in zip(e, r)]
    assert sum(errors) / len(errors) <= 2 * theirs + 1e-3


@pytest.mark.parametrize("name", encoders.NAMES)
def test_same_bits_however_they_are_computed(name):
    folder, asked = encoders.folder(name), asked_of(name)
    asked += [(p[: len(p) // 2 + 1], pooling) for p, pooling in asked]
    together = vectors(folder, asked, "--deterministic")
    for one, want in zip(asked[::3], together[::3]):
        assert vectors(folder, [one], "--deterministic") == [want]
    if golden.EXACT_RANKS:
        assert vectors(folder, asked, "--tensor-parallel-size", "2") == together
        assert vectors(folder, asked, "--max-num-batched-tokens", "160", "--no-enable-prefix-caching") == together


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_a_prompt_must_fit_into_a_pass(name):
    folder = encoders.folder(name)
    prompt = encoders.expected(name)["cases"][1]["prompt"]
    small = ["--max-num-batched-tokens", "128", "--max-num-seqs", "8"]
    answer, short = run(folder, [(prompt, "mean"), (prompt[:100], "mean")], *small)
    assert "maximum context length is 128 tokens" in answer["error"] and "embedding" in short
    positions = run(folder, [(prompt + prompt, "mean")])[0]
    assert "maximum context length is 200 tokens" in positions["error"]


def copy_of(name, path):
    folder = os.path.join(path, "model")
    shutil.copytree(encoders.folder(name), folder)
    return folder


def rename(folder, change):
    """Changes the names of a file's tensors."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    header = {key if key == "__metadata__" else change(key): value for key, value in json.loads(data[8 : 8 + n]).items()}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.remove(path)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data[8 + n :])


OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def oldest(name):
    for new, old in OLD.items():
        name = name.replace(new, old)
    return name


@pytest.mark.parametrize("name, change", [
    ("bert", oldest), ("bert", lambda name: "bert." + name), ("bert", lambda name: "bert." + oldest(name)),
    ("roberta", lambda name: "roberta." + name), ("modernbert", lambda name: "model." + name),
    ("bert-reranker", oldest), ("embeddinggemma", lambda name: "model." + name)])
def test_other_names_of_tensors(name, change, tmp_path):
    want = vectors(encoders.folder(name), asked_of(name)[:2])
    folder = copy_of(name, tmp_path)
    rename(folder, change)
    assert vectors(folder, asked_of(name)[:2]) == want


def refusal(folder):
    done = subprocess.run([*golden.RUN, folder, "--json", "--log-level", "error"], input="", capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    return done.stderr


def write(folder, name, value):
    path = os.path.join(folder, name)
    os.remove(path)  # a link
    with open(path, "w") as f:
        json.dump(value, f)


def read(folder, name):
    with open(os.path.join(folder, name)) as f:
        return json.load(f)


@pytest.mark.parametrize("key, value, words", [
    ("position_embedding_type", "relative_key", "position_embedding_type 'relative_key'"),
    ("is_decoder", True, "is_decoder true is not supported"),
    ("type_vocab_size", 0, "type_vocab_size must be from 1"),
])
def test_other_configs_are_refused_by_name(key, value, words, tmp_path):
    folder = copy_of("bert", tmp_path)
    write(folder, "config.json", {**read(folder, "config.json"), key: value})
    assert words in refusal(folder)


RELEASED = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "intermediate_size": "n_inner",
            "layer_norm_eps": "layer_norm_epsilon"}


def released_nomic(folder):
    """The config in the form of nomic-embed-text-v1.5."""
    config = {RELEASED.get(key, key): value for key, value in read(folder, "config.json").items()}
    for key in ("hidden_act", "max_position_embeddings", "head_dim"):
        config.pop(key, None)
    base = config.pop("rope_parameters")["rope_theta"]
    return {**config, "activation_function": "swiglu", "rotary_emb_base": base, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
            "rotary_scaling_factor": None, "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
            "parallel_block": False, "use_rms_norm": False, "causal": False, "n_positions": 8192, "max_trained_positions": 200}


def test_released_config_of_nomic(tmp_path):
    folder = copy_of("nomic-bert", tmp_path)
    config = released_nomic(folder)
    write(folder, "config.json", config)
    assert vectors(folder, asked_of("nomic-bert")) == vectors(encoders.folder("nomic-bert"), asked_of("nomic-bert"))
    long = run(folder, [([5] * 300, "mean")])[0]
    assert "maximum context length is 200 tokens" in long["error"]
    for key, value in (("prenorm", True), ("mlp_fc1_bias", True), ("activation_function", "gelu"), ("rotary_scaling_factor", 2.0),
                       ("moe_every_n_layers", 2), ("rotary_emb_fraction", 0.5)):
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({**config, key: value}, f)
        assert key in refusal(folder)


def test_a_head_that_pools_logits_is_refused(tmp_path):
    config = {"model_type": "eurobert", "architectures": ["EuroBertForSequenceClassification"], "vocab_size": 99, "hidden_size": 32,
              "num_attention_heads": 4, "num_hidden_layers": 1, "classifier_pooling": "late"}
    with open(os.path.join(tmp_path, "config.json"), "w") as f:
        json.dump(config, f)
    done = subprocess.run([*golden.RUN, str(tmp_path), "--json", "--load-format", "dummy"], input="", capture_output=True, text=True,
                          timeout=60)
    assert done.returncode != 0 and "classifier_pooling 'late' is not supported" in done.stderr


def test_other_modules_are_refused_by_name(tmp_path):
    folder = copy_of("embeddinggemma", tmp_path)
    modules = read(folder, "modules.json")
    write(folder, "modules.json", [*modules[:2], {"idx": 2, "name": "2", "path": "2_LSTM", "type": "sentence_transformers.models.LSTM"}])
    assert "module 'LSTM' is not supported" in refusal(folder)
    with open(os.path.join(folder, "modules.json"), "w") as f:
        json.dump([*modules[:2], modules[-1], modules[2]], f)
    assert "module 'Dense' is not supported after Normalize" in refusal(folder)
    pooling = read(folder, "1_Pooling/config.json")
    os.remove(os.path.join(folder, "1_Pooling/config.json"))
    with open(os.path.join(folder, "1_Pooling/config.json"), "w") as f:
        json.dump({**pooling, "pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True}, f)
    assert "pooling weightedmean is not supported" in refusal(folder)
