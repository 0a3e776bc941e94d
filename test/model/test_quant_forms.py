# SPDX-License-Identifier: Apache-2.0
"""Quantised weights packed here by the formats' definitions: the answers are those of a twin with the values that they stand
for. Formats of which the project has a folder written by the library are in test_golden_quant.py, too."""
import json
import os
import struct

import pytest

import golden
import heads
from heads import F32, numpy
from test_checkpoint import SOURCE, Checkpoint, run, scores, tokens

BNB = os.path.join(golden.ROOT, "test", "golden-quant", "lib-bitsandbytes-nf4-qwen2")
KINDS = {"uint8": "U8", "int8": "I8", "float32": "F32", "float16": "F16", "uint16": "BF16"}


class Forms(Checkpoint):
    """A checkpoint whose tensors can be replaced. A tensor is an array, or an array and the name of its type."""

    def values(self, name):
        t = self.header[name]
        return heads.from_bf16(numpy.frombuffer(self.data[slice(*t["data_offsets"])], numpy.uint16)).reshape(t["shape"])

    def put(self, name, a, kind=None):
        a = numpy.ascontiguousarray(a)
        self.header[name] = {"dtype": kind or KINDS[str(a.dtype)], "shape": list(a.shape),
                             "data_offsets": [len(self.data), len(self.data) + a.nbytes]}
        self.data += a.tobytes()

    def save(self, **quantization_config):
        self.write()
        if quantization_config:
            self.config["quantization_config"] = quantization_config
        self.write_config()
        return self.folder


def is_matrix(name, t):
    return "layers" in name and name.endswith("proj.weight") and len(t["shape"]) == 2


def pack_each(tmp_path, pack, source=SOURCE, **config):
    """A folder with each matrix packed, and its twin; pack(matrix) returns tensors by suffix, and the values. Both are the
    folders' paths."""
    c, twin = Forms(tmp_path / "packed", source), Forms(tmp_path / "twin", source)
    for name, t in list(c.header.items()):
        if is_matrix(name, t):
            tensors, values = pack(c.values(name))
            twin.put(name, values.astype(F32))
            del c.header[name]
            for suffix, a in tensors.items():
                c.put(name[:-len(".weight")] + suffix, *(a if isinstance(a, tuple) else (a,)))
    return c.save(**config), twin.save()


def check_same(folder, twin):
    expected = scores(twin)
    assert scores(folder) == expected
    two = ["--tensor-parallel-size", "2", *golden.TWO_THREADS]
    assert not golden.EXACT_RANKS or scores(folder, *two) == expected
    rounded = ["--activation-quantization", "none"]
    errors = [abs(a - b) for a, b in zip(expected[1:], scores(folder, *rounded, dtype=None)[1:])]
    assert 0 < sum(errors) / len(errors) < 0.1


# ---- small numbers

E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)


def e4m3_values():
    codes = numpy.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    size = numpy.where(exponent, (8 + fraction) * 2.0 ** (exponent - 10.0), fraction * 2.0 ** -9)
    values = numpy.where(codes & 0x80, -size, size).astype(F32)
    values[[0x7F, 0xFF]] = numpy.nan
    return values


E4M3 = e4m3_values()
POSITIVE = E4M3[:0x7F]


def to_e4m3(a):
    """The nearest codes."""
    up = numpy.searchsorted(POSITIVE, numpy.minimum(numpy.abs(a), 448)).clip(1, 0x7E)
    down = up - 1
    nearer = numpy.where(numpy.abs(POSITIVE[up] - numpy.abs(a)) < numpy.abs(numpy.abs(a) - POSITIVE[down]), up, down)
    return (nearer | numpy.where(a < 0, 0x80, 0)).astype(numpy.uint8)


# ---- mxfp8

CT_MXFP8 = {"num_bits": 8, "type": "float", "strategy": "group", "symmetric": True, "group_size": 32, "scale_dtype": "torch.uint8"}


def mxfp8_of(name, kind="U8"):
    def pack(w):
        blocks = w.reshape(len(w), -1, 32)
        exponents = numpy.ceil(numpy.log2(numpy.abs(blocks).max(-1) / 448))
        scales = numpy.exp2(exponents).astype(F32)[..., None]
        codes = to_e4m3(blocks / scales)
        return {".weight": (codes.reshape(w.shape), "F8_E4M3"), name: ((exponents + 127).astype(numpy.uint8), kind)}, \
            (E4M3[codes] * scales).reshape(w.shape)
    return pack


@pytest.mark.parametrize("name, kind, config", [
    (".weight_scale", "U8", {"quant_method": "compressed-tensors", "format": "mxfp8-quantized", "ignore": ["lm_head"],
                             "config_groups": {"group_0": {"targets": ["Linear"], "weights": CT_MXFP8,
                                                           "input_activations": {**CT_MXFP8, "dynamic": True}}}}),
    (".weight_scale", "U8", {"quant_method": "modelopt", "quant_algo": "MXFP8", "exclude_modules": ["lm_head"]}),
    (".weight_scale_inv", "F8_E8M0", {"quant_method": "mxfp8", "modules_to_not_convert": ["lm_head"]}),
], ids=["compressed-tensors", "modelopt", "mxfp8"])
def test_mxfp8(name, kind, config, tmp_path):
    check_same(*pack_each(tmp_path, mxfp8_of(name, kind), **config))


def test_blocks_of_fp8_with_powers_of_two(tmp_path):
    """transformers 5 stores them as such if the config says ue8m0."""
    check_same(*pack_each(tmp_path, mxfp8_of(".weight_scale_inv", "F8_E8M0"), quant_method="fp8", weight_block_size=[1, 32],
                          scale_fmt="ue8m0", activation_scheme="dynamic"))


# ---- bitsandbytes

FP4 = numpy.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], F32) / F32(12)


def fp4_of(w, block=32):
    """Without quantised scales."""
    flat = w.reshape(-1, block)
    scales = numpy.abs(flat).max(1)
    codes = numpy.abs(flat[:, :, None] / scales[:, None, None] - FP4).argmin(2)
    state = json.dumps({"quant_type": "fp4", "blocksize": block, "dtype": "bfloat16", "shape": list(w.shape)}).encode()
    halves = codes.reshape(-1, 2).astype(numpy.uint8)
    return {".weight": (halves[:, :1] << 4) | halves[:, 1:], ".weight.absmax": scales, ".weight.quant_map": FP4,
            ".weight.quant_state.bitsandbytes__fp4": numpy.frombuffer(state, numpy.uint8)}, \
        (FP4[codes] * scales[:, None]).reshape(w.shape)


def int8_of(w):
    largest = numpy.abs(w).max(1)
    codes = numpy.round(w / largest[:, None] * 127).astype(numpy.int8)
    return {".weight": codes, ".SCB": largest, ".weight_format": numpy.zeros((), numpy.uint8)}, \
        codes * (largest / F32(127))[:, None]


@pytest.mark.parametrize("pack, config", [(fp4_of, {"load_in_4bit": True}), (int8_of, {"load_in_8bit": True})],
                         ids=["fp4", "int8"])
def test_bitsandbytes(pack, config, tmp_path):
    check_same(*pack_each(tmp_path, pack, quant_method="bitsandbytes", llm_int8_skip_modules=["lm_head"], **config))


def ternary_of(inverse):
    """BitNet's -1, 0 and 1: four rows, each a quarter of all rows after the one before, in the bits of one."""
    def pack(w):
        scale = F32(1) / numpy.abs(w).mean() if inverse else numpy.abs(w).mean()
        signs = numpy.round(w * scale if inverse else w / scale).clip(-1, 1).astype(F32)
        a, b, c, d = (signs + 1).astype(numpy.uint8).reshape(4, -1, w.shape[1])
        values = signs * (F32(1) / scale) if inverse else signs * scale
        return {".weight": a | b << 2 | c << 4 | d << 6, ".weight_scale": scale.astype(F32).reshape(1)}, values
    return pack


BITNET = os.path.join(golden.FAMILIES, "bitnet")


@pytest.mark.parametrize("source", [SOURCE, BITNET], ids=["llama", "bitnet"])
@pytest.mark.parametrize("inverse, config", [(True, {}), (True, {"linear_class": "bitlinear", "use_rms_norm": False}),
                                             (False, {"linear_class": "autobitlinear", "quantization_mode": "offline"})])
def test_bitnet(source, inverse, config, tmp_path):
    folder, twin = pack_each(tmp_path, ternary_of(inverse), source, quant_method="bitnet", **config)
    if source == SOURCE:
        check_same(folder, twin)
    assert scores(folder) == scores(twin)
    assert scores(folder, dtype=None) != scores(folder, "--activation-quantization", "none", dtype=None)


@pytest.mark.parametrize("values, named", [({"quantization_mode": "online"}, "quantization_mode"), ({"use_rms_norm": True}, "use_rms_norm"),
                                           ({"linear_class": "other"}, "linear_class")])
def test_what_bitnet_has_besides_is_refused(values, named, tmp_path):
    folder, _ = pack_each(tmp_path, ternary_of(True), quant_method="bitnet", **values)
    done = run(folder)
    assert done.returncode == 1 and named in done.stderr and done.stderr.count("\n") == 1, done.stderr


def change(c, suffix, i, raw):
    at = c.header["model.layers.0.mlp.down_proj.weight" + suffix]["data_offsets"][0] + i
    c.data = c.data[:at] + raw + c.data[at + len(raw):]
    c.write()


def change_state(c, old, new):
    suffix = ".quant_state.bitsandbytes__nf4"
    begin, end = c.header["model.layers.0.mlp.down_proj.weight" + suffix]["data_offsets"]
    text = c.data[begin:end]
    assert old in text and len(old) == len(new)
    change(c, suffix, text.index(old), new)


def drop(c, suffix):
    del c.header["model.layers.0.mlp.down_proj.weight" + suffix]
    c.write()


NAN = struct.pack("<f", float("nan"))


@pytest.mark.parametrize("breaks, named, also", [
    (lambda c: drop(c, ".quant_state.bitsandbytes__nf4"), "down_proj.weight.quant_state.bitsandbytes__nf4", "no tensor"),
    (lambda c: change(c, ".quant_state.bitsandbytes__nf4", 0, b"["), "down_proj.weight.quant_state", "not the text"),
    (lambda c: change_state(c, b"[64, 128]", b"[128, 64]"), "down_proj.weight.quant_state", "[64, 128]"),
    (lambda c: change_state(c, b'"blocksize": 64', b'"blocksize": 96'), "down_proj", "96 numbers that run over"),
    (lambda c: change_state(c, b'"blocksize": 64', b'"blocksize": -4'), "down_proj", "blocksize"),
    (lambda c: change_state(c, b'"nested_blocksize": 256', b'"nested_blocksize": "56'), "down_proj", "not the text"),
    (lambda c: change_state(c, b'"nested_offset"', b'"nested_offsee"'), "down_proj", "nested_offset"),
    (lambda c: change(c, ".quant_map", 4, struct.pack("<f", 0.5)), "down_proj.weight.quant_map", "0.5 at 1"),
    (lambda c: change(c, ".nested_absmax", 0, NAN), "down_proj.weight.nested_absmax", "NaN"),
    (lambda c: drop(c, ".absmax"), "down_proj.weight.absmax", "bitsandbytes-4bit"),
    (lambda c: drop(c, ".nested_absmax"), "down_proj.weight.absmax", "U8"),
    (lambda c: c.save(**{**c.config["quantization_config"], "bnb_4bit_quant_storage": "bfloat16"}), "bnb_4bit_quant_storage",
     "bfloat16"),
    (lambda c: c.save(**{**c.config["quantization_config"], "llm_int8_skip_modules": ["mlp"]}), "mlp", "excludes"),
    (lambda c: c.save(quant_method="bitsandbytes"), "load_in_4bit", "config.json"),
])
def test_broken_bitsandbytes_modules_are_refused(breaks, named, also, tmp_path):
    c = Forms(tmp_path / "model", BNB)
    breaks(c)
    done = run(c.folder)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert named in done.stderr and also in done.stderr, done.stderr


# ---- auto-round

AUTO_ROUND = os.path.join(golden.ROOT, "test", "golden-quant", "lib-autoround-gptq-qwen2")
DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize("key", [DOWN, r".*mlp\.down_proj.*"], ids=["name", "pattern"])
def test_auto_round_gives_modules_other_parameters(key, tmp_path):
    c = Forms(tmp_path / "model", AUTO_ROUND)
    before, config = tokens(c.folder), c.config["quantization_config"]
    c.save(**{**config, "group_size": 64, "extra_config": {key: {"group_size": 32}, "model.layers.0.mlp.down": {"bits": 8}}})
    done = run(c.folder)
    assert done.returncode == 1 and "scales" in done.stderr and "down_proj" not in done.stderr, done.stderr
    c.save(**{**config, "extra_config": {key: {"bits": 4, "data_type": "int"}, "lm_head": {"bits": 16}}})
    assert tokens(c.folder) == before
    c.save(**{**config, "extra_config": {key: {"bits": 16}}})
    done = run(c.folder)
    assert done.returncode == 1 and DOWN in done.stderr and "excludes" in done.stderr


@pytest.mark.parametrize("values, named", [
    ({"packing_format": "auto_round:llm_compressor"}, "auto_round:llm_compressor"), ({"data_type": "mx_fp"}, "mx_fp"),
    ({"act_bits": 8}, "act_bits: 8"), ({"bits": 3}, "bits: 3"), ({"packing_format": "auto_round:auto_awq", "bits": 8}, "awq"),
    ({"packing_format": None, "backend": "auto_round:exllamav2"}, "auto_round:exllamav2"),
    ({"rotation_config": {"block_size": 32}}, "rotation_config"), ({"extra_config": []}, "extra_config must be an object"),
    ({"extra_config": {DOWN: {"bits": 5}}}, f"extra_config.{DOWN}: bits"),
    ({"extra_config": {"(": {"bits": 8}}}, "compile")])
def test_what_auto_round_has_besides_is_refused(values, named, tmp_path):
    c = Forms(tmp_path / "model", AUTO_ROUND)
    c.save(**{**c.config["quantization_config"], **values})
    done = run(c.folder)
    assert done.returncode == 1 and named in done.stderr and done.stderr.count("\n") == 1, done.stderr


# ---- experts of all in one tensor

def fp8_stack(w, by_columns, kind):
    """w: [experts][outputs][inputs]."""
    axes = {"outputs": (2,), "expert": (1, 2)}[kind]
    scales = (numpy.abs(w).max(axes, keepdims=True) / 448).astype(F32)
    codes = to_e4m3(w / scales)
    return codes.swapaxes(1, 2) if by_columns else codes, scales, E4M3[codes] * scales


def nvfp4_stack(w):
    """modelopt packs along the inputs, and then transposes codes and scales."""
    blocks = w.reshape(*w.shape[:2], -1, 16)
    whole = F32(numpy.abs(w).max() / (6 * 448))
    scales = to_e4m3(numpy.maximum(numpy.abs(blocks).max(-1) / 6 / whole, 0.002))
    each = (E4M3[scales] * whole)[..., None]
    codes = numpy.abs((blocks / each)[..., None] - E2M1).argmin(-1)
    values = (E2M1[codes] * each).reshape(w.shape)
    codes = codes.reshape(w.shape).astype(numpy.uint8)
    return {"": (codes[..., ::2] | codes[..., 1::2] << 4).swapaxes(1, 2), "_weight_scale": (scales.swapaxes(1, 2), "F8_E4M3"),
            "_weight_scale_2": numpy.array(whole), "_input_scale": numpy.array(F32(0.01))}, values


def stack_each(tmp_path, family, pack, source=None, **config):
    """Like pack_each, for tensors of all experts, which have the inputs before the outputs."""
    source = source or os.path.join(golden.FAMILIES if family == "llama-4" else golden.GOLDEN, family)
    c, twin = Forms(tmp_path / "packed", source), Forms(tmp_path / "twin", source)
    found = [name for name in c.header if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert found
    for name in found:
        tensors, values = pack(name, c.values(name).swapaxes(1, 2))
        twin.put(name, values.swapaxes(1, 2).astype(F32))
        del c.header[name]
        for suffix, a in tensors.items():
            c.put(name + suffix, *(a if isinstance(a, tuple) else (a,)))
    return c.save(**config), twin.save()


@pytest.mark.parametrize("family", ["llama-4", "gpt-oss"])
def test_nvfp4_experts_in_one_tensor(family, tmp_path):
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*self_attn*", "lm_head", "*router*"]}
    check_same(*stack_each(tmp_path, family, lambda name, w: nvfp4_stack(w), **config))


def test_nvfp4_experts_whose_packed_tensor_is_square(tmp_path):
    """Two inputs in a byte: [experts, hidden / 2, 2 * ffn] does not tell what it has first if the hidden size is 4 * ffn."""
    c = Forms(tmp_path / "narrow", os.path.join(golden.FAMILIES, "llama-4"))
    ffn = c.config["text_config"]["hidden_size"] // 4
    for name in [n for n in c.header if "feed_forward.experts" in n or "shared_expert" in n]:
        w = c.values(name)
        axis = w.ndim - 1 if ("down" in name) == (w.ndim == 2) else w.ndim - 2
        c.put(name, heads.as_bf16(w.take(range(ffn * (2 if "gate_up" in name else 1)), axis)), "BF16")
    c.config["text_config"]["intermediate_size"] = ffn
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*self_attn*", "lm_head", "*router*"]}
    check_same(*stack_each(tmp_path, "llama-4", lambda name, w: nvfp4_stack(w), c.save(), **config))


@pytest.mark.parametrize("family", ["llama-4", "gpt-oss"])
@pytest.mark.parametrize("kind, suffix, shape", [("outputs", "_weight_scale", (0, 1)), ("outputs", "_scale", (0, 2, 1)),
                                                 ("expert", "_weight_scale", (0,))], ids=["2-D", "3-D", "expert"])
def test_fp8_experts_in_one_transposed_tensor(family, kind, suffix, shape, tmp_path):
    """Each output has a scale, whichever dimension it is (modelopt, Meta's Llama 4), or each expert."""
    def pack(name, w):
        codes, scales, values = fp8_stack(w, True, kind)
        if len(shape) == 3 and "down" in name:
            return {"": (codes, "F8_E4M3"), suffix: scales}, values  # Meta's down projections
        stored = scales.transpose(0, 2, 1) if len(shape) == 3 else scales.reshape([scales.shape[i] for i in shape])
        return {"": (codes, "F8_E4M3"), suffix: stored}, values

    config = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn", "lm_head", "router"]}
    check_same(*stack_each(tmp_path, family, pack, **config))


@pytest.mark.parametrize("suffix, shape, also", [("_weight_scale", lambda s: [s[0], s[2], s[1]], "requires"),
                                                 ("", lambda s: [s[0], s[2], s[1]], "requires"),
                                                 ("_weight_scale_2", None, "no tensor")])
def test_broken_nvfp4_experts_are_refused(suffix, shape, also, tmp_path):
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*self_attn*"]}
    stack_each(tmp_path, "llama-4", lambda name, w: nvfp4_stack(w), **config)
    c = Forms(tmp_path / "broken", tmp_path / "packed")
    name = next(n for n in c.header if n.endswith("experts.gate_up_proj")) + suffix
    if shape:
        c.header[name]["shape"] = shape(c.header[name]["shape"])
    else:
        del c.header[name]
    c.write()
    done = run(c.folder)
    assert done.returncode == 1 and also in done.stderr and suffix in done.stderr, done.stderr
