# SPDX-License-Identifier: Apache-2.0
"""Quantised folders that are broken or of an unknown kind: one sentence that names the format and the tensor, exit status 1,
never a crash."""
import math
import os
import struct

import pytest

import golden
from test_checkpoint import Checkpoint, run, scores, tokens

QUANT = os.path.join(golden.ROOT, "test", "golden-quant")
FP8, PACKED = (os.path.join(QUANT, name) for name in ("fp8-block-odd-llama", "ct-w4a16-asym-qwen3"))
GPTQ = os.path.join(golden.SHARED, "golden-quant", "gptq-qwen2-actorder")  # skipped if it is missing
CHANNELS = os.path.join(golden.SHARED, "golden-quant", "ct-fp8-dynamic-qwen3")
MODULE = "model.layers.1.mlp.down_proj"
VALUE = "model.layers.1.self_attn.v_proj"  # stored in memory after q and k


class Quantised(Checkpoint):
    def __init__(self, folder, source):
        if not os.path.isdir(source):
            pytest.skip("%s does not exist" % source)
        super().__init__(folder, source)

    def offset(self, suffix, i=0):
        return self.header[MODULE + suffix]["data_offsets"][0] + i

    def put(self, suffix, i, raw):
        at = self.offset(suffix, i)
        self.data = self.data[:at] + raw + self.data[at + len(raw):]
        self.write()

    def drop(self, suffix):
        del self.header[MODULE + suffix]
        self.write()

    def reshape(self, suffix, shape):
        self.header[MODULE + suffix]["shape"] = shape
        self.write()

    def say(self, **values):
        self.config["quantization_config"].update(values)
        self.write_config()


    def order(self, kind):
        for group in self.config["quantization_config"]["config_groups"].values():
            group["weights"]["actorder"] = kind
        self.write_config()


def f32(x):
    return struct.pack("<f", x)


def break_value(c):
    at = c.header[VALUE + ".weight"]["data_offsets"][0]
    c.data = c.data[:at] + b"\x7f" + c.data[at + 1:]
    c.write()


def cases():
    bf16_nan, f16_nan, f16_inf = b"\xc0\x7f", b"\x00\x7e", b"\x00\x7c"
    yield "no scale", FP8, lambda c: c.drop(".weight_scale_inv"), f"{MODULE}.weight_scale", "fp8"
    yield "a scale of zero", FP8, lambda c: c.put(".weight_scale_inv", 8, f32(0)), f"{MODULE}.weight_scale_inv", "at 2"
    yield "a scale that is not a number", FP8, lambda c: c.put(".weight_scale_inv", 4, f32(float("nan"))), MODULE, "nan"
    yield "a grid of another size", FP8, lambda c: c.reshape(".weight_scale_inv", [9, 1]), MODULE, "[3, 3]"
    yield "another size of block", FP8, lambda c: c.say(weight_block_size=[64, 128]), "weight_scale_inv", "[4, 3]"
    yield "a block of nothing", FP8, lambda c: c.say(weight_block_size=[0, 128]), "weight_block_size", "fp8"
    yield "no block", FP8, lambda c: c.say(weight_block_size=None), "weight_scale_inv", "fp8"
    yield "another fp8", FP8, lambda c: c.say(fmt="e5m2"), "fmt", "e5m2"
    yield "weights that the list excludes", FP8, lambda c: c.say(ignored_layers=["lm_head", MODULE]), MODULE, "excludes its module"
    yield "weights of another shape", FP8, lambda c: c.reshape(".weight", [328, 288]), MODULE, "[288, 328]"
    yield "a weight that is not a number", FP8, lambda c: c.put(".weight", 100, b"\x7f"), "down_proj", "fp8"
    yield "a value among fused ones that is not a number", FP8, break_value, f"{VALUE}.weight", "fp8"
    yield "a method", FP8, lambda c: c.say(quant_method="quip"), "quip", "awq"
    yield "no method", FP8, lambda c: c.say(quant_method=None), "quant_method", "config.json"
    yield "a list that is not one", FP8, lambda c: c.say(ignored_layers="lm_head"), "ignored_layers", "list"
    yield "a list of numbers", FP8, lambda c: c.say(ignored_layers=[1]), "ignored_layers", "strings"
    yield "no zeros", PACKED, lambda c: c.drop(".weight_zero_point"), f"{MODULE}.weight_zero_point", "pack-quantized"
    yield "zeros of another shape", PACKED, lambda c: c.reshape(".weight_zero_point", [6, 32]), MODULE, "[32, 6]"
    yield "another shape stored", PACKED, lambda c: c.put(".weight_shape", 0, struct.pack("<q", 255)), MODULE, "shape"
    yield "no shape of two", PACKED, lambda c: c.reshape(".weight_packed", [128, 96]), MODULE, "[256, 48]"
    yield "a packed scale", PACKED, lambda c: c.put(".weight_scale", 2, bf16_nan), f"{MODULE}.weight_scale", "nan"
    yield "no order of inputs", PACKED, lambda c: c.order("group"), ".weight_g_idx", "pack-quantized"
    yield "no order of inputs in older files", PACKED, lambda c: c.order(True), ".weight_g_idx", "pack-quantized"
    yield "a transform", PACKED, lambda c: c.say(transform_config={"R1": {"type": "hadamard"}}), "transform_config", "not"
    yield "sparse weights", PACKED, lambda c: c.say(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config", "not"
    yield "a pattern", PACKED, lambda c: c.say(ignore=["re:(lm_head"]), "(lm_head", "compile"
    yield "no groups", PACKED, lambda c: c.say(config_groups=[]), "config_groups", "object"
    yield "an input of no group", GPTQ, lambda c: c.put(".g_idx", 40, struct.pack("<i", 3)), f"{MODULE}.g_idx", "input 10"
    yield "an input of a group below", GPTQ, lambda c: c.put(".g_idx", 40, struct.pack("<i", -2)), f"{MODULE}.g_idx", "-2"
    yield "a half that is not a number", GPTQ, lambda c: c.put(".scales", 6, f16_nan), f"{MODULE}.scales", "at 3"
    yield "an infinite half", GPTQ, lambda c: c.put(".scales", 6, f16_inf), f"{MODULE}.scales", "inf"
    yield "no zeros of gptq", GPTQ, lambda c: c.drop(".qzeros"), f"{MODULE}.qzeros", "gptq"
    yield "no order of inputs of gptq", GPTQ, lambda c: c.drop(".g_idx"), f"{MODULE}.g_idx", "gptq"
    yield "no weights", GPTQ, lambda c: c.drop(".qweight"), MODULE, "no tensor"
    yield "three bits", GPTQ, lambda c: c.say(bits=3), "bits", "3"
    yield "eight bits of four", GPTQ, lambda c: c.say(bits=8), "qweight", "[64, 256]"
    yield "a group of nothing", GPTQ, lambda c: c.say(group_size=-7), "group_size", "-1"
    yield "another packing", GPTQ, lambda c: c.say(checkpoint_format="marlin"), "marlin", "gptq_v2"
    yield "words of 16 bits", GPTQ, lambda c: c.say(pack_dtype="int16"), "pack_dtype", "int16"
    yield "patterns in a list", GPTQ, lambda c: c.say(dynamic=["-:lm_head"]), "dynamic", "object"


@pytest.mark.parametrize("source, breaks, named, also", [pytest.param(*case[1:], id=case[0]) for case in cases()])
def test_a_broken_quantised_folder_is_refused_in_one_sentence(source, breaks, named, also, tmp_path):
    c = Quantised(tmp_path / "model", source)
    breaks(c)
    done = run(c.folder, "--check-weights", "off")  # the check would report a scale first
    assert done.returncode == 1, (done.returncode, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert named in lines[0] and also in lines[0], done.stderr


def move_config(c, name, wrap=lambda q: q):
    """Moves the quantisation config to a separate file, as older tools write it."""
    with open(c.path(name), "w") as f:
        import json
        json.dump(wrap(c.config.pop("quantization_config")), f)
    c.write_config()


def test_a_separate_quantisation_config(tmp_path):
    c = Quantised(tmp_path / "model", GPTQ)
    before = tokens(c.folder, "--dtype", "float32")

    def as_written(q):
        del q["quant_method"]
        return q

    move_config(c, "quantize_config.json", as_written)
    assert tokens(c.folder, "--dtype", "float32") == before


def test_names_and_entries_that_match_nothing(tmp_path):
    """Lists of modules may use the model's own names, and have entries that match nothing."""
    c = Quantised(tmp_path / "model", FP8)
    before = tokens(c.folder, "--dtype", "float32")
    c.say(ignored_layers=["lm_head", "down", "layers.1.mlp.down", "vision_tower.*", "re:.*mlp$"])
    assert tokens(c.folder, "--dtype", "float32") == before


@pytest.mark.parametrize("kind", [None, False, "weight", "static"])
def test_an_order_that_changes_nothing_in_the_file(kind, tmp_path):
    c = Quantised(tmp_path / "model", PACKED)
    before = tokens(c.folder, "--dtype", "float32")
    c.order(kind)
    assert tokens(c.folder, "--dtype", "float32") == before


@pytest.mark.skipif(not os.path.isdir(CHANNELS), reason=f"no {CHANNELS}")
def test_the_method_of_metas_files(tmp_path):
    c = Quantised(tmp_path / "model", CHANNELS)
    before = tokens(c.folder)
    c.config["quantization_config"] = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                                       "modules_to_not_convert": ["lm_head"]}
    c.write_config()
    assert tokens(c.folder) == before
    exact = scores(c.folder, dtype=None)
    c.say(activation_scale_ub=0.5)
    assert scores(c.folder, dtype=None) != exact
    c.say(activation_scale_ub=0)
    done = run(c.folder)
    assert done.returncode == 1 and "activation_scale_ub must be a positive number" in done.stderr


def as_modelopt(c, **values):
    """Blocks as modelopt stores them: four dimensions, another name."""
    for name in [n for n in c.header if n.endswith(".weight_scale_inv")]:
        tensor = c.header.pop(name)
        rows, columns = tensor["shape"]
        c.header[name[:-4]] = {**tensor, "shape": [rows, 1, columns, 1]}
    c.config["quantization_config"] = {"quant_method": "modelopt", **values}
    c.write()
    c.write_config()


@pytest.mark.parametrize("values", [
    {"quant_algo": "fp8_pb_wo", "ignore": ["lm_head"]},  # as modelopt 0.47 writes it
    {"quant_algo": "FP8_BLOCK_SCALES", "quant_method": None},
    {"quantization": {"quant_algo": "FP8_PB_WO", "exclude_modules": ["lm_head"]}, "quant_method": None},
    {"quant_algo": "MIXED_PRECISION", "quantized_layers": {f"model.layers.{i}.{part}": {"quant_algo": "FP8_PB_WO"}
                                                           for i in (0, 1) for part in ("self_attn", "mlp")}},
])
def test_blocks_as_modelopt_stores_them(values, tmp_path):
    c = Quantised(tmp_path / "model", FP8)
    before = tokens(c.folder, "--dtype", "float32")
    as_modelopt(c, **values)
    assert tokens(c.folder, "--dtype", "float32") == before


def test_the_scale_of_a_single_block_may_have_no_dimensions(tmp_path):
    """modelopt drops those of size 1."""
    answers = []
    for shape in ([1, 1], []):
        c = Quantised(tmp_path / f"model-{len(shape)}", FP8)
        c.say(weight_block_size=[512, 512])
        old, c.data = c.data, b""
        for name, tensor in c.header.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                if name.endswith("_scale_inv"):
                    end = start + (end - start) // math.prod(tensor["shape"])
                    tensor["shape"] = shape
                tensor["data_offsets"] = [len(c.data), len(c.data) + end - start]
                c.data += old[start:end]
        c.write()
        answers.append(tokens(c.folder, "--dtype", "float32"))
    assert answers[0] == answers[1]


def test_a_modules_setting_overrides_that_of_its_parent(tmp_path):
    """A setting for a module overrides those for the modules that contain it, in whatever order they are listed."""
    c = Quantised(tmp_path / "model", FP8)
    before = tokens(c.folder, "--dtype", "float32")
    names = [n[:-len(".weight")] for n, t in c.header.items() if n != "__metadata__" and t["dtype"] == "F8_E4M3"]
    layers = {"model.layers": "NVFP4", **dict.fromkeys(names, "FP8_PB_WO")}
    as_modelopt(c, quant_algo="MIXED_PRECISION", quantized_layers={n: {"quant_algo": a} for n, a in layers.items()})
    assert tokens(c.folder, "--dtype", "float32") == before


def test_a_name_wins_over_a_pattern_and_that_over_a_class(tmp_path):
    c = Quantised(tmp_path / "model", PACKED)
    before = tokens(c.folder, "--dtype", "float32")
    (right,) = c.config["quantization_config"]["config_groups"].values()
    wrong = {**right, "weights": {**right["weights"], "num_bits": 8}}
    attention = [n[:-len("_packed") - len(".weight")] for n in c.header if "self_attn" in n and n.endswith("_packed")]
    c.say(config_groups={
        "class": {**wrong, "targets": ["Linear", "re:.*self_attn.*"]},
        "pattern": {**right, "targets": ["re:.*mlp.*", *attention]},
    })
    assert tokens(c.folder, "--dtype", "float32") == before


@pytest.mark.parametrize("source", [GPTQ, FP8])
def test_dummy_weights_need_only_the_config(source, tmp_path):
    c = Quantised(tmp_path / "model", source)
    os.remove(c.path("model.safetensors"))
    assert len(tokens(c.folder, "--load-format", "dummy")) > 0
    c.say(quant_method="no such method")
    done = run(c.folder, "--load-format", "dummy")
    assert done.returncode == 1 and "no such method" in done.stderr, done.stderr
