# SPDX-License-Identifier: Apache-2.0
"""`sluice quantize`: the written folder is read back with numpy, and run; and quantising while loading gives the same
result."""
import json
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest

import golden

DEMO = os.path.join(golden.ROOT, "models", "demo")
FORMATS = ["fp8", "fp8-block", "int4", "int8"]
PROMPTS = ["Tell me a story about a fox and a crow.", "What is 12 plus 7?", "The"]
NEMOTRON = os.path.join(golden.FAMILIES, "nemotron-3-nano")
DTYPES = {"F32": "<f4", "I64": "<i8", "I32": "<i4", "I8": "i1", "F8_E4M3": "u1", "BF16": "<u2"}


def quantize(model, out, *flags):
    return subprocess.run([golden.SLUICE, "quantize", str(model), str(out), *flags],
                          capture_output=True, text=True, timeout=120)


def tokens(model, *flags):
    requests = [{"prompt": p, "max_tokens": 24, "temperature": 0, "ignore_eos": True} for p in PROMPTS]
    return [a["outputs"][0]["token_ids"] for a in golden.generate(model, requests, *flags)]


def read(folder):
    """All tensors of a folder; bfloat16 as float32."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        for key, t in header.items():
            if key == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            values = np.frombuffer(data[begin:end], DTYPES[t["dtype"]])
            assert begin % values.itemsize == 0, key
            if t["dtype"] == "BF16":
                values = (values.astype("<u4") << 16).view("<f4")
            found[key] = values.reshape(t["shape"])
    return found


def write(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.astype("<f4").tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def e4m3(codes):
    sign, exponent, low = codes >> 7, (codes >> 3 & 15).astype(int), codes & 7
    value = np.where(exponent == 0, low / 512.0, (1 + low / 8.0) * 2.0 ** (exponent - 7))
    return np.where(sign, -value, value)


def dequantised(tensors, base):
    """A module's dequantised weights, and the largest rounding error of each, by the definition of the layouts."""
    scale = tensors[base + ".weight_scale"].astype("f8")
    if base + ".weight_packed" in tensors:
        packed, (rows, cols) = tensors[base + ".weight_packed"].view("<u4"), tensors[base + ".weight_shape"]
        codes = (packed[:, :, None] >> (4 * np.arange(8, dtype="u4")) & 15).reshape(rows, -1)[:, :cols].astype("f8") - 8
        wide = np.repeat(scale, -(-cols // scale.shape[1]), axis=1)[:, :cols]
        return codes * wide, wide * 0.55
    codes = tensors[base + ".weight"]
    blocks = scale.shape[0] != codes.shape[0] or scale.shape[1] > 1
    wide = scale
    if blocks:
        wide = np.repeat(np.repeat(scale, 128, 0)[: codes.shape[0]], 128, 1)[:, : codes.shape[1]]
    if codes.dtype == np.int8:
        return codes * wide, 0.5001 * wide
    values = e4m3(codes)
    return values * wide, np.maximum(np.abs(values), 2.0 ** -6) / 16 * 1.07 * wide


@pytest.fixture(scope="module", params=FORMATS)
def made(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("quantize") / request.param
    done = quantize(DEMO, out, "--format", request.param)
    assert done.returncode == 0, done.stderr
    return request.param, str(out)


def test_each_value_is_within_half_a_step(made):
    _, out = made
    plain, ours = read(DEMO), read(out)
    modules = [n[: -len(".weight_scale")] for n in ours if n.endswith(".weight_scale")]
    assert len(modules) == 77  # of ten layers and the multi-token prediction module
    for base in modules:
        got, bound = dequantised(ours, base)
        assert np.all(np.abs(got - plain[base + ".weight"]) <= bound), base
    others = [n for n in ours if n.rsplit(".", 1)[0] not in modules]
    assert set(others) == {n for n in plain if n.rsplit(".", 1)[0] not in modules}
    for name in others:
        assert np.array_equal(ours[name], plain[name]), name


def test_the_folder_is_complete(made):
    name, out = made
    with open(os.path.join(out, "config.json")) as f:
        config = json.load(f)
    told = config.pop("quantization_config")
    assert config == golden.config(DEMO)
    assert told["quant_method"] == "compressed-tensors" and "lm_head" in told["ignore"]
    assert told["config_groups"]["group_0"]["targets"] == ["Linear"]
    for other in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        with open(os.path.join(DEMO, other), "rb") as a, open(os.path.join(out, other), "rb") as b:
            assert a.read() == b.read()
    again = quantize(out, out + "-again", "--format", name)
    assert again.returncode == 1 and "quantised already" in again.stderr
    assert not os.path.exists(out + "-again")


def test_tokens_equal_those_of_quantising_while_loading(made):
    name, out = made
    here = tokens(out)
    assert all(len(t) == 24 for t in here)
    if name in ("fp8", "int4"):  # fp8 has blocks in mixtures only
        assert here == tokens(DEMO, "--quantization", name)


def test_the_quantised_module_drafts(made):
    """Its drafts are right about as often as the unquantised module's, and drafts change no answer."""
    _, out = made
    module = ("--speculative-config", '{"method":"mtp","num_speculative_tokens":2,"fixed":true}')
    chat = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
    requests = [{"prompt": chat % p, "max_tokens": 60, "temperature": 0}
                for p in ["Tell me a story about a fox and a crow.", "Copy: 81 seven boats, a red kite", "What is 12 plus 7?"]]

    def answers(model, *flags):
        """(tokens, drafts, accepted drafts) of all requests."""
        made = golden.generate(model, requests, *flags)
        counts = (sum(a["usage"].get(k, 0) for a in made) for k in ("draft_tokens", "accepted_draft_tokens"))
        return [a["outputs"][0]["token_ids"] for a in made], *counts

    have, drafts, right = answers(out, *module)
    _, plain_drafts, plain_right = answers(DEMO, *module)
    assert have == answers(out)[0]
    assert plain_right > plain_drafts / 2 and right / drafts > 0.9 * plain_right / plain_drafts, (right, drafts)


@pytest.mark.parametrize("family", ["deepseek-v3", "mixtral", "phi-3", "qwen2-moe", "starcoder2", "gpt-neox", "falcon",
                                    os.path.join(golden.FAMILIES, "glm-5")], ids=os.path.basename)
def test_the_same_modules_are_quantised_as_while_loading(family, tmp_path):
    model, out = os.path.join(golden.GOLDEN, family), str(tmp_path / "out")
    done = quantize(model, out, "--format", "int4")
    assert done.returncode == 0, done.stderr
    request = [{"prompt_token_ids": [5, 6, 7, 8, 9], "max_tokens": 6, "temperature": 0, "prompt_logprobs": True}]
    folder, loading = golden.generate(out, request), golden.generate(model, request, "--quantization", "int4")
    assert folder == loading and folder != golden.generate(model, request)


def test_a_config_with_a_bare_infinity(tmp_path):
    """As NVIDIA writes time_step_limit."""
    out = str(tmp_path / "out")
    assert quantize(NEMOTRON, out, "--format", "fp8").returncode == 0
    assert tokens(out) and tokens(NEMOTRON, "--quantization", "fp8")


def whole_blocks(folder, n_experts):
    """A random model whose matrices consist of whole blocks of 128 x 128."""
    config = {"model_type": "mixtral" if n_experts else "llama", "vocab_size": 384, "hidden_size": 128, "intermediate_size": 256,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}
    up, down, layer = (256, 128), (128, 256), "model.layers.0."
    shapes = {layer + "self_attn.%s_proj" % n: (128, 128) for n in "qkvo"}
    if n_experts:
        config.update(num_local_experts=n_experts, num_experts_per_tok=2)
        shapes[layer + "block_sparse_moe.gate"] = (n_experts, 128)
        for i in range(n_experts):
            shapes.update({layer + "block_sparse_moe.experts.%d.%s" % (i, n): s for n, s in (("w1", up), ("w2", down), ("w3", up))})
    else:
        shapes.update({layer + "mlp.%s_proj" % n: s for n, s in (("gate", up), ("up", up), ("down", down))})
    shapes.update({"model.embed_tokens": (384, 128), "lm_head": (384, 128)})
    draw = np.random.default_rng(7)
    tensors = {n + ".weight": draw.normal(0, 0.2, s).astype("f4") for n, s in shapes.items()}
    for norm in (layer + "input_layernorm", layer + "post_attention_layernorm", "model.norm"):
        tensors[norm + ".weight"] = np.ones(128, "f4")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write(folder / "model.safetensors", tensors)
    return str(folder)


@pytest.mark.parametrize("n_experts, form, loading",
                         [(0, "int4", "int4"), (4, "int4", "int4"), (0, "fp8", "fp8"), (4, "fp8-block", "fp8")])
def test_whole_blocks_are_quantised_as_while_loading(n_experts, form, loading, tmp_path):
    """Loading uses scales of blocks for FP8 in mixtures only."""
    model, out = whole_blocks(tmp_path / "model", n_experts), str(tmp_path / "out")
    done = quantize(model, out, "--format", form)
    assert done.returncode == 0, done.stderr
    request = [{"prompt_token_ids": [5, 6, 7, 8, 9], "max_tokens": 6, "temperature": 0, "prompt_logprobs": True}]
    assert golden.generate(out, request) == golden.generate(model, request, "--quantization", loading)


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.skipif(not golden.EXACT_RANKS, reason="the ranks of this device are not exact")
def test_ranks_give_the_tokens_of_one(name):
    flags = ["--quantization", name]
    assert tokens(DEMO, *flags, "--tensor-parallel-size", "2") == tokens(DEMO, *flags)


def test_shards_have_an_index(tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    assert quantize(DEMO, one, "--format", "int4").returncode == 0
    done = quantize(DEMO, many, "--format", "int4", "--max-shard-size", "2")
    assert done.returncode == 0, done.stderr
    with open(many / "model.safetensors.index.json") as f:
        index = json.load(f)
    files = sorted(n for n in os.listdir(many) if n.endswith(".safetensors"))
    assert len(files) > 2 and sorted(set(index["weight_map"].values())) == files
    a, b = read(one), read(many)
    assert set(a) == set(b) == set(index["weight_map"])
    assert all(np.array_equal(a[n], b[n]) for n in a)
    assert index["metadata"]["total_size"] == os.path.getsize(one / "model.safetensors") - header_bytes(one)
    assert tokens(str(many)) == tokens(str(one))


def header_bytes(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        return 8 + struct.unpack("<Q", f.read(8))[0]


def small(tmp_path, tensors):
    folder = tmp_path / "small"
    folder.mkdir()
    shutil.copy(os.path.join(DEMO, "config.json"), folder)
    write(folder / "model.safetensors", tensors)
    return folder


def test_odd_sizes_zero_rows_and_what_stays(tmp_path):
    values = np.random.default_rng(1).normal(size=(5, 37)).astype("f4")
    values[2] = 0
    names = {"model.layers.0.mlp.gate.weight": values, "lm_head.weight": values,
             "model.layers.0.mlp.up_proj.weight": values, "model.layers.0.mlp.up_proj.bias": values[:, 0]}
    folder = small(tmp_path, names)
    for name in FORMATS:
        out = tmp_path / name
        done = quantize(folder, out, "--format", name)
        assert done.returncode == 0, done.stderr
        ours = read(out)
        got, bound = dequantised(ours, "model.layers.0.mlp.up_proj")
        assert np.all(np.abs(got - values) <= bound) and not got[2].any()
        assert np.array_equal(ours["model.layers.0.mlp.gate.weight"], values)
        with open(out / "config.json") as f:
            assert json.load(f)["quantization_config"]["ignore"] == ["lm_head", "model.layers.0.mlp.gate"]


def test_refusals_name_what_is_wrong(tmp_path):
    good = np.ones((4, 8), "f4")
    up = "model.layers.0.mlp.up_proj.weight"
    for tensors, says in [({"model.layers.0.mlp.experts.gate_up_proj": np.ones((2, 4, 8), "f4")}, "experts.gate_up_proj"),
                          ({up: good * np.nan}, up), ({up: good * np.inf}, up),
                          ({"model.norm.weight": good[0]}, "no projection")]:
        folder = small(tmp_path, tensors)
        done = quantize(folder, tmp_path / "out", "--format", "fp8")
        assert done.returncode == 1 and says in done.stderr, done.stderr
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    folder = small(tmp_path, {up: good})
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    done = quantize(folder, full, "--format", "fp8")
    assert done.returncode == 1 and "not empty" in done.stderr and os.listdir(full) == ["mine"]
    done = quantize(folder, tmp_path / "out", "--format", "fp4")
    assert done.returncode == 1 and "fp4" in done.stderr and "int8" in done.stderr
    done = quantize(tmp_path / "nowhere", tmp_path / "out", "--format", "fp8")
    assert done.returncode == 1 and "config.json" in done.stderr
    for wrong in (["--format"], [], ["--format", "fp8", "--max-shard-size", "x"], ["--what"]):
        assert quantize(folder, tmp_path / "out", *wrong).returncode == 2
