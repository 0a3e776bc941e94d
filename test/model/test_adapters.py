# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters compared with PEFT's stored answers, and with themselves: whatever else the engine does at the same time."""
import json
import os
import shutil
import struct

import numpy
import pytest

import golden
import seeded
import torch_files
from test_checkpoint import Checkpoint

SOURCE = os.path.join(seeded.ROOT, "test", "golden-adapters")
FAMILIES = sorted(os.listdir(SOURCE))
MIXED = ["--max-num-batched-tokens", "23", "--max-num-seqs", "5"]
SAME_BITS = [] if golden.DEVICE == "cpu" else ["--deterministic"]


def adapter(family):
    return seeded.complete(os.path.join(SOURCE, family), os.path.join(seeded.ROOT, "build", "golden-adapters", family))


def model(family):
    return next(os.path.join(group, family) for group in (golden.GOLDEN, golden.FAMILIES)
                if os.path.isdir(os.path.join(group, family)))


def cases(family):
    with open(os.path.join(SOURCE, family, "expected.json")) as f:
        return json.load(f)["cases"]


def request(case, name=None):
    return {"prompt_token_ids": case["prompt"], "max_tokens": len(case["greedy"]), "temperature": 0, "ignore_eos": True,
            "prompt_logprobs": True, "model": name}


def answers(family, requests, *flags):
    return golden.generate(model(family), requests, "--lora-modules", f"it={adapter(family)},again={adapter(family)}", *flags)


def error(case, answer):
    return max(abs(w - h) for w, h in zip(case["prompt_logprobs"], answer["prompt_logprobs"][1:]))


def mean_error(case, answer):
    errors = [abs(w - h) for w, h in zip(case["prompt_logprobs"], answer["prompt_logprobs"][1:])]
    return sum(errors) / len(errors)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_equals_peft(family):
    """Beside requests without an adapter, which get the answers of the model itself."""
    both = [request(c, name) for c in cases(family) for name in ("it", None)]
    got = answers(family, both, "--dtype", "float32")
    plain = golden.generate(model(family), both[1::2], "--dtype", "float32")
    for case, with_it, without, alone in zip(cases(family), got[::2], got[1::2], plain):
        assert error(case, with_it) <= 1e-3
        assert with_it["outputs"][0]["token_ids"] == case["greedy"]
        assert error(case, without) > 1e-2
        if golden.DEVICE == "cpu":  # a GPU joins fewer ops in a pass with adapters, which rounds differently
            assert without == alone
        else:
            assert error({"prompt_logprobs": alone["prompt_logprobs"][1:]}, without) <= 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_the_others(family):
    """Chunks, other requests and the prefix cache; two names of one adapter share nothing and answer alike."""
    asked = [request(c, name) for c in cases(family) for name in ("it", "again", None)]
    alone = [answers(family, [r], *SAME_BITS)[0] for r in asked]
    mixed = answers(family, asked[::-1] + asked, *MIXED, *SAME_BITS)
    for got in (mixed[:len(asked)][::-1], mixed[len(asked):]):
        for a, b in zip(got, alone):
            assert a["outputs"] == b["outputs"] and a["prompt_logprobs"] == b["prompt_logprobs"]
        for it, again, without in zip(got[0::3], got[1::3], got[2::3]):
            assert it["outputs"] == again["outputs"] != without["outputs"]


@pytest.mark.skipif(golden.DEVICE != "cpu", reason="needs two GPUs")
@pytest.mark.parametrize("family", ["llama-3", "qwen3.5", "deepseek-v3", "gemma-3n"])
def test_ranks_divide_adapters(family):
    asked = [request(c, "it") for c in cases(family)]
    got = answers(family, asked, "--dtype", "float32", "--tensor-parallel-size", "2")
    for case, answer in zip(cases(family), got):
        assert error(case, answer) <= 1e-3 and answer["outputs"][0]["token_ids"] == case["greedy"]


# Modules of families that PEFT's stored answers do not cover: indexers, gates of attention, delta nets, shared experts.
WITHIN = [
    ("deepseek-v3.2", ["indexer.wq_b", "indexer.wk", "indexer.weights_proj", "q_b_proj", "shared_experts.up_proj"]),
    ("hy-4", ["q_b_proj", "kv_a_proj_with_mqa", "o_proj", "indexer.wq_b", "self_attn.linear_gate"]),
    ("laguna", ["g_proj", "q_proj", "o_proj", "shared_expert.down_proj"]),
    ("afmoe", ["self_attn.gate_proj", "v_proj"]),
    ("lfm3", ["self_attn.gate_proj", "conv.in_proj"]),
    ("olmo-hybrid", ["linear_attn.g_proj", "linear_attn.b_proj", "linear_attn.o_proj", "self_attn.k_proj"]),
]


def merge(c, modules):
    """Draws an adapter, and adds it to the weights of the checkpoint; returns its tensors."""
    rng, rank, weights, tensors, found = numpy.random.default_rng(5), 4, [], [], set()
    for name in sorted(n for n in c.header if n != "__metadata__"):
        dtype, shape, (begin, end) = (c.header[name][k] for k in ("dtype", "shape", "data_offsets"))
        raw = c.data[begin:end]
        module = next((m for m in modules if name.endswith(f".{m}.weight")), None)
        if module and int(name.partition(".layers.")[2].partition(".")[0]) < c.config["num_hidden_layers"]:
            found.add(module)
            values = numpy.frombuffer(raw, "<u2").astype("<u4") << 16 if dtype == "BF16" else numpy.frombuffer(raw, "<u4")
            w = values.view("<f4").reshape(shape)
            down = rng.standard_normal((rank, shape[1])).astype("<f4") / numpy.float32(shape[1] ** 0.5)
            up = rng.standard_normal((shape[0], rank)).astype("<f4") * w.std()
            dtype, raw = "F32", (w + up @ down).astype("<f4").tobytes()
            base = "base_model.model." + name.removesuffix(".weight").replace("linear_gate", "gate_proj")  # the module's name
            tensors += [(f"{base}.lora_{letter}.weight", list(m.shape), "F32", m.tobytes()) for letter, m in (("A", down), ("B", up))]
        weights.append((name, shape, dtype, raw))
    assert found == set(modules)
    seeded.write_file(os.path.join(c.folder, "model.safetensors"), weights, "merged")
    return tensors


@pytest.mark.parametrize("family, modules", WITHIN)
def test_an_adapter_equals_the_sum_of_the_matrices(family, modules, tmp_path):
    source = os.path.join(golden.FAMILIES, family)
    c = Checkpoint(tmp_path / "merged", source)
    os.mkdir(tmp_path / "adapter")
    seeded.write_file(str(tmp_path / "adapter" / "adapter_model.safetensors"), merge(c, modules), "drawn")
    with open(tmp_path / "adapter" / "adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 4}, f)
    ask = {"prompt_token_ids": [7 * i % 380 for i in range(40)], "max_tokens": 1, "prompt_logprobs": True}
    merged = golden.generate(c.folder, [ask], "--dtype", "float32")[0]["prompt_logprobs"]
    flags = ["--dtype", "float32", "--lora-modules", f"it={tmp_path / 'adapter'}"]
    for ranks in [[], *([["--tensor-parallel-size", "2", *golden.TWO_THREADS]] if golden.DEVICE == "cpu" else [])]:
        it, plain = (a["prompt_logprobs"] for a in golden.generate(source, [{**ask, "model": "it"}, ask], *flags, *ranks))
        assert max(abs(a - b) for a, b in zip(merged[1:], it[1:])) <= 1e-3
        assert max(abs(a - b) for a, b in zip(merged[1:], plain[1:])) > 1e-2


@pytest.mark.parametrize("config", ['{"method":"ngram","num_speculative_tokens":3}', '{"method":"draft_model","model":"%s","num_speculative_tokens":3}'])
def test_drafts_do_not_change_the_text(config):
    asked = [request(c, name) for c in cases("llama-3") for name in ("it", None)]
    drafted = answers("llama-3", asked, "--speculative-config", config.replace("%s", model("llama-3")), *SAME_BITS)
    assert [a["outputs"] for a in drafted] == [a["outputs"] for a in answers("llama-3", asked, *SAME_BITS)]


@pytest.mark.parametrize("quantization", ["fp8", "int4"])
def test_a_quantised_model_has_adapters(quantization):
    asked = [request(c, name) for c in cases("llama-3") for name in ("it", None)]
    got = answers("llama-3", asked, "--quantization", quantization)
    for case, with_it, without in zip(cases("llama-3"), got[::2], got[1::2]):
        assert mean_error(case, with_it) < 0.7 * mean_error(case, without)


def test_an_adapter_in_pytorchs_file(tmp_path):
    """As older versions of PEFT saved it."""
    folder = str(tmp_path / "it")
    os.mkdir(folder)
    shutil.copy(os.path.join(adapter("llama-3"), "adapter_config.json"), folder)
    tensors = torch_files.stored(os.path.join(adapter("llama-3"), "adapter_model.safetensors"))
    torch_files.save(os.path.join(folder, "adapter_model.bin"), tensors)
    asked = [request(c, "it") for c in cases("llama-3")]
    got = golden.generate(model("llama-3"), asked, "--dtype", "float32", "--lora-modules", f"it={folder}")
    for case, with_it in zip(cases("llama-3"), got):
        assert error(case, with_it) <= 1e-3
        assert with_it["outputs"][0]["token_ids"] == case["greedy"]


# ---- what is refused -----------------------------------------------------------------------------


def copied(tmp_path, family="llama-3"):
    return shutil.copytree(adapter(family), tmp_path / "adapter")


def refused(folder, family="llama-3", *flags):
    done = golden.subprocess.run([*golden.RUN, model(family), "--json", "--lora-modules", f"it={folder}", *flags], input="",
                                 capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    return done.stderr


def change(folder, **keys):
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    os.remove(path)
    with open(path, "w") as f:
        json.dump({**config, **keys}, f)


@pytest.mark.parametrize("keys, word", [
    ({"peft_type": "LOHA"}, "peft_type LOHA"),
    ({"use_dora": True}, "use_dora"),
    ({"bias": "all"}, "bias all"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights pissa_niter_4"),
    ({"r": 8}, "has rank 4, but adapter_config.json says 8"),
    ({"lora_alpha": 0}, "lora_alpha 0"),
    ({"rank_pattern": {"(": 3}}, "adapter 'it'"),
])
def test_a_config_that_would_change_answers_is_refused(tmp_path, keys, word):
    folder = copied(tmp_path)
    change(folder, **keys)
    assert word in refused(folder)


def rewrite(folder, edit):
    """Writes the tensors again, as edit(name, shape, dtype, data) returns them."""
    path = os.path.join(folder, "adapter_model.safetensors")
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    header.pop("__metadata__", None)
    tensors = [edit(n, t["shape"], t["dtype"], body[slice(*t["data_offsets"])]) for n, t in header.items()]
    seeded.write_file(path, [t for t in tensors if t], "changed")


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


@pytest.mark.parametrize("edit, word", [
    (lambda n, s, d, b: None if n == f"{FIRST}B.weight" else (n, s, d, b), f"there is no tensor {FIRST}B.weight"),
    (lambda n, s, d, b: (n.replace("layers.0.", "layers.9."), s, d, b), "changes layers.9."),
    (lambda n, s, d, b: (n.replace("self_attn.q_proj", "self_attn.r_proj"), s, d, b), "layers.0.self_attn.r_proj, which is not possible"),
    (lambda n, s, d, b: (n, [s[1], s[0]], d, b) if n == f"{FIRST}A.weight" else (n, s, d, b), "both must be the same"),
    (lambda n, s, d, b: (n, s, d, b"\xc0\x7f" + b[2:]) if n == f"{FIRST}A.weight" else (n, s, d, b), "not finite"),
    (lambda n, s, d, b: (n.replace("lora_A.weight", "lora_magnitude_vector"), s, d, b), "neither lora_A nor lora_B"),
    (lambda n, s, d, b: (n, [4, s[1] // 2], d, b[:len(b) // 2]) if n == f"{FIRST}A.weight" else (n, s, d, b), "made for another model"),
])
def test_tensors_that_do_not_fit_are_refused(tmp_path, edit, word):
    folder = copied(tmp_path)
    rewrite(folder, edit)
    assert word in refused(folder)


def test_folders_that_are_no_adapters_are_refused(tmp_path):
    assert "adapter_config.json" in refused(tmp_path / "none")
    assert "adapter_config.json" in refused(model("llama-3"))
    folder = copied(tmp_path)
    os.remove(os.path.join(folder, "adapter_model.safetensors"))
    assert "adapter_model.safetensors" in refused(folder)
