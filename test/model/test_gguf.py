# SPDX-License-Identifier: Apache-2.0
"""Models in GGUF files: the families' stored answers, from files as llama.cpp's converter would write them; each tensor type
compared with the same values stored plainly; split files; unsupported files."""
import json
import os
import subprocess

import numpy
import pytest

import gguf_files
import gguf_grids
import golden
from gguf_files import BOOL, F32, I32, STRING, U16, U32

# Features of golden folders that such a file cannot express.
CANNOT_SAY = {
    "gemma-2": "another scale of queries", "gemma-3-linear": "another scale of queries",
    "llama-dynamic": "a scaling that grows with the text", "mistral": "a window", "qwen2-window": "a window",
    "starcoder2": "a window", "qwen2-moe": "layers without experts", "qwen3-moe-window": "a window",
    "gpt-oss-clamp": "another limit of the activation",
}
FAMILIES = [f for f in golden.families() if f not in CANNOT_SAY]
BLOCKS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
          *gguf_grids.FORMATS]


def known(family):
    with open(os.path.join(golden.GOLDEN, family, "config.json")) as f:
        return json.load(f)["model_type"] in gguf_files.ARCHS


@pytest.mark.parametrize("family", [f for f in FAMILIES if known(f)])
def test_stored_answers(family, tmp_path, monkeypatch):
    path = gguf_files.convert(os.path.join(golden.GOLDEN, family), str(tmp_path / "m.gguf"))
    stored = golden.expected(family)
    monkeypatch.setattr(golden, "expected", lambda _: stored)
    golden.check_exact(path)


@pytest.mark.parametrize("family", ["qwen3-next", "qwen3.5", "qwen3.5-moe"])
def test_models_with_delta_nets(family, tmp_path, monkeypatch):
    """Their value heads are tiled in the file, except Qwen3-Next's; drafting layers are left out."""
    folder = os.path.join(golden.FAMILIES, family)
    path = gguf_files.convert(folder, str(tmp_path / "m.gguf"))
    w = gguf_files.read(path)
    arch, layers = next((name.split(".")[0], v) for name, _, v in w.keys if name.endswith(".block_count"))
    w.keys = [k for k in w.keys if not k[0].endswith(".block_count")]
    w.key(arch + ".block_count", U32, layers + 1)
    w.key(arch + ".nextn_predict_layers", *((F32, 1.0) if family == "qwen3.5" else (U32, 1)))
    w.key(arch + ".rope.dimension_sections", [I32], [2, 1, 1, 0])
    w.tensor("blk.%d.nextn.eh_proj.weight" % layers, "F32", (64, 128), bytes(64 * 128 * 4))
    w.write(path)
    stored = golden.expected(folder)
    monkeypatch.setattr(golden, "expected", lambda _: stored)
    golden.check_exact(path)
    golden.check_exact(path, 1e-3, "--tensor-parallel-size", "2", *golden.TWO_THREADS)


@pytest.mark.parametrize("family", ["lfm2", "lfm2-moe", "granite-4", "falcon-h1", "nemotron-nano-2", "nemotron-3-nano", "nemotron-3-super"])
def test_models_with_other_states(family, tmp_path, monkeypatch):
    """Layers without key/value heads have a short convolution or Mamba-2; Falcon-H1's have both."""
    folder = os.path.join(golden.FAMILIES, family)
    path = gguf_files.convert(folder, str(tmp_path / "m.gguf"))
    stored = golden.expected(folder)
    monkeypatch.setattr(golden, "expected", lambda _: stored)
    golden.check_exact(path)
    golden.check_exact(path, 1e-3, "--tensor-parallel-size", "2", *golden.TWO_THREADS)
    w = gguf_files.read(path)
    arch, kv = next((name.split(".")[0], v) for name, _, v in w.keys if name.endswith("head_count_kv"))
    if len(kv if isinstance(kv, list) else []) == 7:
        for heads, words in (([0, 0, 2, 0, 1, 1, 0], "differs from layer to layer"), ([0, 0], "no number for layer 2")):
            w.keys = [k for k in w.keys if not k[0].endswith("head_count_kv")]
            w.key(arch + ".attention.head_count_kv", [U32], heads)
            refused(w.write(str(tmp_path / "broken.gguf")), "head_count_kv", words)


@pytest.mark.parametrize("family", ["gemma-4", "gemma-4-e", "gemma-4-moe", "gemma-4-unified"])
def test_models_whose_layers_differ(family, tmp_path, monkeypatch):
    folder = os.path.join(golden.FAMILIES, family)
    path = gguf_files.convert(folder, str(tmp_path / "m.gguf"))
    stored = golden.expected(folder)
    monkeypatch.setattr(golden, "expected", lambda _: stored)
    golden.check_exact(path)
    name = "gemma4.feed_forward_length"
    w = gguf_files.read(path)
    for changes, words in (
            ([(name, [U32], [96] * 5)], ["feed_forward_length", "layer"]),
            ([(name, [U32], [96, 100, *[96] * 6])], ["feed_forward_length is 100 in layer 1"]),
            ([("gemma4.attention.sliding_window_pattern", None, None)], ["sliding_window_pattern", "layer 0"]),
            ([("gemma4.attention.sliding_window_pattern", [BOOL], [True] * 8)], ["no layer has full attention"]),
            ([("gemma4.rope.dimension_count_swa", U32, 8)], ["rope.dimension_count_swa"]),
            ([("gemma4.attention.shared_kv_layers", F32, -1.0)], ["shared_kv_layers must be from 0 to"]),
            ([("gemma4.attention.shared_kv_layers", U32, 9)], ["shared_kv_layers must be from 0 to"])):
        broken = gguf_files.read(path)
        for key, kind, v in changes:
            broken.keys = [k for k in broken.keys if k[0] != key]
            if kind is not None:
                broken.key(key, kind, v)
        refused(broken.write(str(tmp_path / "broken.gguf")), *words)
    n_pairs = next(t[2][0] for t in w.tensors if t[0] == "rope_freqs.weight")
    for n, divisor, words in ((n_pairs, 2, "2 is neither 1 nor 1e30"), (n_pairs // 2, 1, "has %d pairs" % (n_pairs // 2))):
        w.tensors = [("rope_freqs.weight", "F32", (n,), numpy.full(n, divisor, "<f4").tobytes())
                     if t[0] == "rope_freqs.weight" else t for t in w.tensors]
        refused(w.write(str(tmp_path / "broken.gguf")), words)


@pytest.mark.parametrize("family, arch", [("qwen2", "qwen2vl"), ("qwen3", "qwen3vl"), ("qwen3-moe", "qwen3vlmoe")])
def test_language_parts_of_qwen_vl(family, arch, tmp_path, monkeypatch):
    with open(os.path.join(golden.GOLDEN, family, "config.json")) as f:
        monkeypatch.setitem(gguf_files.ARCHS, json.load(f)["model_type"], arch)
    path = gguf_files.convert(os.path.join(golden.GOLDEN, family), str(tmp_path / "m.gguf"))
    w = gguf_files.read(path)
    w.key(arch + ".rope.dimension_sections", [I32], [4, 2, 2, 0])
    w.key(arch + ".n_deepstack_layers", U32, 3)
    w.write(path)
    stored = golden.expected(family)
    monkeypatch.setattr(golden, "expected", lambda _: stored)
    golden.check_exact(path)


def run(path, *flags, prompt="hello"):
    command = [golden.SLUICE, "generate", str(path), prompt, "--max-tokens", "2", "--device", golden.DEVICE, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


# ---- types of tensors ----

CONFIG = {"model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256, "moe_intermediate_size": 256,
          "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 384, "rms_norm_eps": 1e-6,
          "max_position_embeddings": 256, "rope_theta": 10000.0}


def shapes(experts):
    n, h = CONFIG["num_experts"], CONFIG["hidden_size"]
    q, kv = CONFIG["num_attention_heads"] * CONFIG["head_dim"], CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    yield "token_embd.weight", (CONFIG["vocab_size"], h)
    yield "output_norm.weight", (h,)
    for i in range(CONFIG["num_hidden_layers"]):
        layer = {"attn_norm": (h,), "ffn_norm": (h,), "attn_q": (q, h), "attn_k": (kv, h), "attn_v": (kv, h),
                 "attn_output": (h, q), "attn_q_norm": (CONFIG["head_dim"],), "attn_k_norm": (CONFIG["head_dim"],)}
        if experts:
            layer.update(ffn_gate_inp=(n, h), ffn_gate_exps=(n, 256, h), ffn_up_exps=(n, 256, h), ffn_down_exps=(n, h, 256))
        else:
            layer.update(ffn_gate=(256, h), ffn_up=(256, h), ffn_down=(h, 256))
        for name, shape in layer.items():
            yield "blk.%d.%s.weight" % (i, name), shape


def small_model(path, kinds, experts=False, keys=()):
    """kinds: the tensor types of its matrices, in turn."""
    w = gguf_files.Writer()
    config = dict(CONFIG, model_type="qwen3_moe" if experts else "qwen3")
    if not experts:
        config.update(num_experts=None, num_experts_per_tok=None, moe_intermediate_size=None)
    gguf_files.model_keys(w, config)
    gguf_files.tokenizer_keys(w, os.path.join(golden.GOLDEN, "qwen3"), "qwen2")
    for row in keys:
        w.keys = [k for k in w.keys if k[0] != row[0]] + [row]
    rng, turn = numpy.random.default_rng(7), 0
    for i, (name, shape) in enumerate(shapes(experts)):
        plain = len(shape) == 1 or "ffn_gate_inp" in name
        x = 1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else 0.05 * rng.standard_normal(shape)
        kind = "F32" if plain else kinds[turn % len(kinds)]
        turn += not plain
        w.tensor(name, kind, shape, gguf_files.encode(x.astype("<f4"), kind, i))
    return w.write(str(path))


PROMPTS = [[(7 * i + 13 * j) % 384 for i in range(n)] for j, n in enumerate((3, 40, 130))]


def scores(path, *flags):
    requests = [{"prompt_token_ids": p, "max_tokens": 6, "temperature": 0, "logprobs": 5, "prompt_logprobs": True,
                 "ignore_eos": True} for p in PROMPTS]
    return golden.generate(path, requests, *flags)


@pytest.mark.parametrize("kind", [*BLOCKS, "F16", "BF16"])
def test_blocks_equal_their_plain_values(kind, tmp_path):
    """To the bit, whether blocks are dequantised while loading (float32) or before each product."""
    path = small_model(tmp_path / "m.gguf", [kind])
    twin = gguf_files.plain_twin(path, str(tmp_path / "plain.gguf"))
    for dtype in ("float32", "bfloat16"):
        assert scores(path, "--dtype", dtype) == scores(twin, "--dtype", dtype), dtype


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_types_mix(experts, tmp_path):
    """Parts of one product may have different types, as in most files."""
    path = small_model(tmp_path / "m.gguf", ["Q4_K", "IQ3_S", "Q6_K", "Q4_K", "Q5_0", "Q2_K", "IQ2_XS", "Q8_0", "F16", "IQ1_M", "MXFP4"],
                       experts)
    twin = gguf_files.plain_twin(path, str(tmp_path / "plain.gguf"))
    for dtype in ("float32", "bfloat16", "float16"):
        assert scores(path, "--dtype", dtype) == scores(twin, "--dtype", dtype), dtype


# Two value heads of 128 for each of two key heads; blocks of 256 have the columns of two heads.
DELTA_NET = {"model_type": "qwen3_5_moe_text", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 64, "moe_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 2,
             "shared_expert_intermediate_size": 256, "vocab_size": 384, "rms_norm_eps": 1e-6, "max_position_embeddings": 256,
             "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 128,
             "linear_conv_kernel_dim": 4, "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}}


def delta_net_model(path, kind, together):
    """together: gate and up of all experts are one tensor."""
    h, n, w, rng = 256, 4, gguf_files.Writer(), numpy.random.default_rng(2)
    gguf_files.model_keys(w, DELTA_NET)
    rows = {"token_embd.weight": (384, h), "output_norm.weight": (h,)}
    for i in range(4):
        layer = {"attn_norm.weight": (h,), "post_attention_norm.weight": (h,), "ffn_gate_inp.weight": (n, h),
                 "ffn_gate_exps.weight": (n, 256, h), "ffn_up_exps.weight": (n, 256, h), "ffn_down_exps.weight": (n, h, 256),
                 "ffn_gate_inp_shexp.weight": (h,), "ffn_gate_shexp.weight": (256, h), "ffn_up_shexp.weight": (256, h),
                 "ffn_down_shexp.weight": (h, 256)}
        if i == 3:
            layer.update({"attn_q.weight": (512, h), "attn_k.weight": (128, h), "attn_v.weight": (128, h),
                          "attn_output.weight": (h, 256), "attn_q_norm.weight": (64,), "attn_k_norm.weight": (64,)})
        else:
            layer.update({"attn_qkv.weight": (768, h), "attn_gate.weight": (512, h), "ssm_beta.weight": (4, h),
                          "ssm_alpha.weight": (4, h), "ssm_conv1d.weight": (768, 4), "ssm_a": (4,), "ssm_dt.bias": (4,),
                          "ssm_norm.weight": (128,), "ssm_out.weight": (h, 512)})
        rows.update({"blk.%d.%s" % (i, name): shape for name, shape in layer.items()})
    for i, (name, shape) in enumerate(rows.items()):
        plain = len(shape) == 1 or "conv1d" in name or "gate_inp" in name
        x = rng.normal(0, 0.5, shape)
        x = -numpy.exp(x) if "ssm_a" in name else x + 1.0 if "norm" in name else x
        w.tensor(name, "F32" if plain else kind, shape, gguf_files.encode(x, "F32" if plain else kind, i))
    if together:
        stored = {t[0]: t for t in w.tensors}
        for i in range(4):
            gate, up = (stored.pop("blk.%d.ffn_%s_exps.weight" % (i, half)) for half in ("gate", "up"))
            size = len(gate[3]) // n
            both = b"".join(t[3][e * size:(e + 1) * size] for e in range(n) for t in (gate, up))
            name = "blk.%d.ffn_gate_up_exps.weight" % i
            stored[name] = (name, kind, (n, 512, h), both)
        w.tensors = list(stored.values())
    return w.write(path)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "IQ2_S", "BF16"])
def test_tiled_heads_in_blocks_equal_their_plain_values(kind, tmp_path):
    """The columns of the output's product are in another order than those of the file, and blocks cross heads."""
    path = delta_net_model(tmp_path / "m.gguf", kind, False)
    together = delta_net_model(tmp_path / "together.gguf", kind, True)
    twin = gguf_files.plain_twin(path, str(tmp_path / "plain.gguf"))
    for dtype in ("float32", "bfloat16"):
        expected = scores(twin, "--dtype", dtype)
        assert scores(path, "--dtype", dtype) == expected and scores(together, "--dtype", dtype) == expected, dtype


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="several ranks add in another order")
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "IQ3_XXS"])
def test_two_ranks_split_inside_blocks(kind, tmp_path):
    path = small_model(tmp_path / "m.gguf", [kind], experts=True)
    ranks = ("--tensor-parallel-size", "2", *golden.TWO_THREADS)
    assert scores(path, *ranks) == scores(path, *golden.TWO_THREADS)


# ---- splits ----

def split(path, folder, n):
    whole = gguf_files.read(path)
    names = []
    for i in range(n):
        w = gguf_files.Writer()
        w.keys = list(whole.keys) if i == 0 else []
        w.key("split.no", U16, i)
        w.key("split.count", U16, n)
        w.key("split.tensors.count", I32, len(whole.tensors))
        w.tensors = whole.tensors[i::n]
        names.append(w.write(str(folder / ("m-%05d-of-%05d.gguf" % (i + 1, n)))))
    return names


def test_split_files_are_one_model(tmp_path):
    path = small_model(tmp_path / "m.gguf", ["Q4_0"])
    files = split(path, tmp_path, 3)
    assert scores(files[0]) == scores(path)
    assert "is file 2 of 3: give the first one" in run(files[1]).stderr
    os.rename(files[2], str(tmp_path / "away"))
    assert "is missing; it is one of 3 files" in run(files[0]).stderr
    os.rename(files[1], files[2])
    os.rename(str(tmp_path / "away"), files[1])
    assert "its keys say that it is file 3 of 3, its name that it is 2 of 3" in run(files[0]).stderr


# ---- what is refused ----

def refused(path, *words):
    done = run(path)
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize("keys,words", [
    ([("general.architecture", STRING, "mamba")], ["'mamba' is not one of llama, qwen2"]),
    ([("tokenizer.ggml.model", STRING, "t5")], ["the tokenizer 't5' is not supported"]),
    ([("tokenizer.ggml.pre", STRING, "unheard-of")], ["unknown pre-tokenizer 'unheard-of'"]),
    ([("qwen3.rope.scaling.type", STRING, "spiral")], ["'spiral' is not supported"]),
    ([("qwen3.attention.clamp_kqv", F32, 8.0)], ["qwen3.attention.clamp_kqv is 8, which is not supported"]),
    ([("qwen3.attention.causal", BOOL, False)], ["attention to later tokens is not supported"]),
    ([("qwen3.block_count", STRING, "two")], ["qwen3.block_count is not a number"]),
    ([("qwen3.block_count", None, None)], ["the key qwen3.block_count is missing"]),
    ([("qwen3.block_count", F32, 1.5)], ["qwen3.block_count is 1.5, which is not a number of layers"]),
    ([("qwen3.nextn_predict_layers", I32, -1)], ["qwen3.nextn_predict_layers is -1, which is not a number of layers"]),
    ([("qwen3.nextn_predict_layers", U32, 2)], ["qwen3.block_count leaves no layers besides 2 that draft"]),
    ([("qwen3.attention.head_count", [U32], [4, 2])], ["differs from layer to layer"]),
    ([("qwen3.attention.head_count", U32, 0)], ["head_count is 0"]),
    ([("qwen3.embedding_length", None, None)], ["the key qwen3.embedding_length is missing"]),
    ([("general.architecture", None, None)], ["the key general.architecture is missing"]),
    ([("tokenizer.ggml.tokens", None, None)], ["the file has no vocabulary"]),
    ([("tokenizer.ggml.merges", None, None)], ["there is no list tokenizer.ggml.merges"]),
    ([("general.alignment", U32, 0)], ["general.alignment is invalid"]),
])
def test_keys_that_are_not_supported_are_named(keys, words, tmp_path):
    w = gguf_files.read(small_model(tmp_path / "m.gguf", ["BF16"]))
    for name, kind, v in keys:
        w.keys = [k for k in w.keys if k[0] != name]
        if kind is not None:
            w.key(name, kind, v)
    refused(w.write(str(tmp_path / "m.gguf")), "m.gguf", *words)


def change_tensor(w, name, row):
    w.tensors = [row if t[0] == name else t for t in w.tensors]


def test_tensors_that_are_not_supported_are_named(tmp_path):
    path = small_model(tmp_path / "m.gguf", ["BF16"])
    w, name = gguf_files.read(path), "blk.0.attn_q.weight"
    q8_1 = ("Q8_1", (256, 256), bytes(256 * 320))
    change_tensor(w, name, (name, *q8_1))
    refused(w.write(path), "q_proj.weight is Q8_1, which is not supported")
    change_tensor(w, name, ("blk.0.attn_gate.weight", *q8_1))
    refused(w.write(path), "tensor blk.0.attn_gate.weight does not belong to the architecture qwen3")
    change_tensor(w, "blk.0.attn_gate.weight", (name, "F32", (128, 256), bytes(128 * 1024)))
    refused(w.write(path), "has shape [128, 256], but config.json requires [256, 256]")
    w.tensors = [t for t in w.tensors if t[0] != name]
    refused(w.write(path), "there is no tensor model.layers.0.self_attn.q_proj.weight")


def test_nan_scales_are_refused(tmp_path):
    for kind, at in (("Q4_1", 2), ("Q6_K", 208), ("Q8_0", 0), ("IQ2_S", 0), ("TQ1_0", 52), ("IQ1_M", 54)):
        w = gguf_files.read(small_model(tmp_path / "m.gguf", [kind]))
        data = bytearray(dict((t[0], t[3]) for t in w.tensors)["blk.1.ffn_up.weight"])
        data[at:at + 2] = b"\x00\x7e"
        if kind == "IQ1_M":  # the high nibbles of these bytes are the middle of the scale
            data[51], data[53] = 0, 0xE0
        change_tensor(w, "blk.1.ffn_up.weight", ("blk.1.ffn_up.weight", kind, (256, 256), bytes(data)))
        refused(w.write(str(tmp_path / "m.gguf")), "up_proj.weight", "NaN or infinite")


def test_broken_files_are_refused(tmp_path):
    path = small_model(tmp_path / "m.gguf", ["Q4_0"])
    with open(path, "rb") as f:
        whole = f.read()
    for n in (5, 23, 200, 5000, len(whole) // 2, len(whole) - 64):
        with open(path, "wb") as f:
            f.write(whole[:n])
        refused(path, "cut short")
    w = gguf_files.read(small_model(tmp_path / "m.gguf", ["Q4_0"]))
    w.key("qwen3.block_count", U32, 2)
    refused(w.write(path), "the key qwen3.block_count occurs twice")
    for change, word in ((b"GGUF\x01\0\0\0", "version 1"), (b"GGUF\0\0\0\3", "big-endian")):
        with open(path, "wb") as f:
            f.write(change + whole[8:])
        refused(path, word)
    with open(path, "wb") as f:
        f.write(b"PK" + whole)
    refused(path, "is a file, but not a GGUF file")


def test_a_missing_path_suggests_the_nearest(tmp_path):
    small_model(tmp_path / "little.gguf", ["Q4_0"])
    refused(tmp_path / "littel.gguf", "there is no such file; did you mean", "little.gguf")
    refused(tmp_path / "zzz.gguf", "there is no such file")
    refused(tmp_path, "did you mean", "little.gguf")


def test_quantised_files_are_not_quantised_again(tmp_path):
    path = small_model(tmp_path / "m.gguf", ["Q4_0"])
    done = run(path, "--quantization", "fp8")
    assert done.returncode != 0 and "'fp8' is not the format of this checkpoint (gguf)" in done.stderr
    assert run(path, "--quantization", "gguf").returncode == 0
    assert run(small_model(tmp_path / "b.gguf", ["BF16"]), "--quantization", "fp8").returncode == 0


# ---- templates and sampling defaults ----

def test_other_keys(tmp_path):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    path = small_model(tmp_path / "m.gguf", ["Q4_0"], keys=[
        ("tokenizer.chat_template", STRING, template), ("general.sampling.temp", F32, 0.5)])
    line = json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n"
    done = subprocess.run([golden.SLUICE, "render", path], input=line, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["text"] == "[user]hi"
    assert run(path).returncode == 0
