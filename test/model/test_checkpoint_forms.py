# SPDX-License-Identifier: Apache-2.0
"""One model saved in different forms: with a wrapper's names, beside tensors of other modalities and draft modules, and with
its experts in one tensor or in many. The answers are the same."""
import json
import os
import random
import re
import shutil
import struct

import pytest

import golden
import heads
from golden import FAMILIES
from test_checkpoint import HEAD, MOE, SOURCE, Checkpoint, dummy_scores, run, scores, tokens

TIED = os.path.join(golden.GOLDEN, "llama-tied")


def take(c, name):
    """Removes a tensor of 16-bit elements from the file and returns it as nested rows."""
    tensor = c.header.pop(name)
    begin, end = tensor["data_offsets"]
    words = struct.unpack(f"<{(end - begin) // 2}H", c.data[begin:end])
    rows, cols = tensor["shape"]
    return [list(words[r * cols:(r + 1) * cols]) for r in range(rows)]


def put(c, name, shape, words):
    data = struct.pack(f"<{len(words)}H", *words)
    c.header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(c.data), len(c.data) + len(data)]}
    c.data += data


def flat(rows):
    return [w for row in rows for w in row]


def turned(rows):
    return [list(column) for column in zip(*rows)]


def stack_experts(c):
    """All experts of a layer in two tensors, as transformers 5 has them."""
    n, hidden, width = (c.config[k] for k in ("num_local_experts", "hidden_size", "moe_intermediate_size"))
    for layer in range(c.config["num_hidden_layers"]):
        base = f"model.layers.{layer}.mlp.experts."
        gate_up, down = [], []
        for e in range(n):
            gate, up, last = (take(c, f"{base}{e}.{part}_proj.weight") for part in ("gate", "up", "down"))
            gate_up += flat(gate + up)
            down += flat(last)
        put(c, base + "gate_up_proj", [n, 2 * width, hidden], gate_up)
        put(c, base + "down_proj", [n, hidden, width], down)
    c.write()


def test_experts_in_one_tensor_equal_separate_ones(tmp_path):
    c = Checkpoint(tmp_path / "model", MOE)
    stack_experts(c)
    assert tokens(c.folder) == tokens(MOE)
    two = ["--tensor-parallel-size", "2", *golden.TWO_THREADS]
    assert not golden.EXACT_RANKS or tokens(c.folder, *two) == tokens(MOE)


def test_stacked_experts_of_another_shape_are_refused(tmp_path):
    c = Checkpoint(tmp_path / "model", MOE)
    stack_experts(c)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    n, rows, cols = c.header[name]["shape"]
    c.header[name]["shape"] = [n, cols, rows]
    c.write()
    done = run(c.folder)
    assert done.returncode == 1 and name in done.stderr and f"[{n}, {rows}, {cols}]" in done.stderr


def each_expert(name, stacked, by_columns):
    """Splits a tensor of all experts into matrices by name."""
    base, part = name.rsplit(".", 1)
    for e, matrix in enumerate(stacked.transpose(0, 2, 1) if by_columns else stacked):
        rows = {"down": matrix} if part == "down_proj" else dict(zip(("gate", "up"), heads.numpy.split(matrix, 2)))
        yield from ((f"{base}.{e}.{which}_proj.weight", r) for which, r in rows.items())


def fp8_experts(folder, block, values_stacked, scales_stacked, by_columns=False):
    """Random experts with scales of `block`, or one per expert and matrix, which then have scales of inputs, too. Gate and up
    of an expert have equal scales without a block, since their common tensor has only one. by_columns: the inputs come before
    the outputs, as in Qwen3-VL."""
    c, rng = Checkpoint(folder, MOE), random.Random(5)
    n, hidden, width = (c.config[k] for k in ("num_local_experts", "hidden_size", "moe_intermediate_size"))
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block}
    c.config["quantization_config"] = config if block else {**config, "activation_scheme": "static"}
    c.config["quantization_config"]["modules_to_not_convert"] = ["self_attn", "lm_head"]

    def add(name, dtype, shape, data):
        c.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(c.data), len(c.data) + len(data)]}
        c.data += data

    def put_stacked(name, dtype, shape, data, kind):
        a = heads.numpy.frombuffer(data, kind).reshape(shape)
        a = a.transpose(0, 2, 1) if by_columns else a
        add(name, dtype, list(a.shape), a.tobytes())

    def floats(count):
        return struct.pack(f"<{count}f", *(rng.uniform(0.001, 0.004) for _ in range(count)))

    for layer in range(c.config["num_hidden_layers"]):
        base = f"model.layers.{layer}.mlp.experts."
        for e in range(n):
            for part in ("gate", "up", "down"):
                del c.header[f"{base}{e}.{part}_proj.weight"]
        for stem, parts, rows, cols in (("gate_up", ("gate", "up"), width, hidden), ("down", ("down",), hidden, width)):
            grid = [-(-rows // block[0]), -(-cols // block[1])] if block else [1, 1]
            values = [[bytes(rng.choice((*range(0x7f), *range(0x80, 0xff))) for _ in range(rows * cols)) for _ in parts]
                      for _ in range(n)]
            scales = [[floats(grid[0] * grid[1]) for _ in (parts if block else parts[:1])] for _ in range(n)]
            inputs = [floats(1) for _ in range(n)]
            if values_stacked:
                put_stacked(f"{base}{stem}_proj", "F8_E4M3", [n, rows * len(parts), cols], b"".join(map(b"".join, values)), "u1")
            if scales_stacked:
                shape = [n, len(scales[0]) * grid[0], grid[1]]
                put_stacked(f"{base}{stem}_proj_scale_inv", "F32", shape, b"".join(map(b"".join, scales)), "<f4")
            if scales_stacked and not block:
                add(f"{base}{stem}_proj_activation_scale", "F32", [n], b"".join(inputs))
            for e in range(n):
                for i, part in enumerate(parts):
                    if not values_stacked:
                        add(f"{base}{e}.{part}_proj.weight", "F8_E4M3", [rows, cols], values[e][i])
                    if not scales_stacked:
                        add(f"{base}{e}.{part}_proj.weight_scale_inv", "F32", grid, scales[e][i if block else 0])
                    if not scales_stacked and not block:
                        add(f"{base}{e}.{part}_proj.activation_scale", "F32", [], inputs[e])
    c.write()
    c.write_config()
    return c


@pytest.mark.parametrize("block", [[16, 16], [128, 128], None])
def test_fp8_experts_with_scales_in_one_tensor_equal_separate_ones(block, tmp_path):
    """transformers 5 saves the values separately; Mistral Small 4 has them in one tensor, too."""
    separate = fp8_experts(tmp_path / "separate", block, False, False)
    expected = scores(separate.folder)
    for values_stacked in (False, True):
        c = fp8_experts(tmp_path / str(values_stacked), block, values_stacked, True)
        assert scores(c.folder) == expected
        assert not golden.EXACT_RANKS or scores(c.folder, "--tensor-parallel-size", "2", *golden.TWO_THREADS) == expected


@pytest.mark.parametrize("block", [[8, 8], None])
def test_fp8_experts_in_one_transposed_tensor_equal_separate_ones(block, tmp_path):
    expected = None
    for which, by_columns in (("separate", False), ("columns", True), ("rows", False)):
        c = fp8_experts(tmp_path / which, block, which != "separate", which != "separate", by_columns)
        c.config["model_type"] = "qwen3_vl_moe_text"
        c.write_config()
        expected = expected or scores(c.folder)
        assert scores(c.folder) == expected
        assert not golden.EXACT_RANKS or scores(c.folder, "--tensor-parallel-size", "2", *golden.TWO_THREADS) == expected


def test_blocks_that_may_be_of_gate_and_up_together_are_refused(tmp_path):
    """24 rows are one block of 32; twice that are two, whether or not the second one begins with the second half."""
    c = fp8_experts(tmp_path / "model", [32, 32], True, True)
    done = run(c.folder)
    assert done.returncode == 1 and "gate_up_proj_scale_inv" in done.stderr and "blocks of their own" in done.stderr


@pytest.mark.parametrize("suffix, shape", [("gate_up_proj_scale_inv", [2, 1]), ("gate_up_proj", None),
                                           ("down_proj_activation_scale", [2])])
def test_fp8_experts_in_one_tensor_of_another_shape_are_refused(suffix, shape, tmp_path):
    c = fp8_experts(tmp_path / "model", None, True, True)
    name = f"model.layers.1.mlp.experts.{suffix}"
    t = c.header[name]
    if shape:
        t["shape"] = shape
        t["data_offsets"][1] = t["data_offsets"][0] + 8
    else:
        t["shape"] = [t["shape"][0], t["shape"][2] * 2, t["shape"][1] // 2]
    c.write()
    done = run(c.folder)
    assert done.returncode == 1 and name in done.stderr, done.stderr


@pytest.mark.parametrize("stacked", [False, True])
def test_a_value_of_an_expert_that_is_not_a_number_is_named(stacked, tmp_path):
    c = fp8_experts(tmp_path / "model", [16, 16], stacked, True)
    name = "model.layers.1.mlp.experts." + ("down_proj" if stacked else "2.down_proj.weight")
    at = c.header[name]["data_offsets"][1] - 1
    c.data = c.data[:at] + b"\x7f" + c.data[at + 1:]
    c.write()
    done = run(c.folder)
    assert done.returncode == 1 and f"tensor {name}: " in done.stderr, done.stderr
    done = run(c.folder, "--check-weights", "off", "--dtype", "bfloat16")
    assert done.returncode == 1 and name in done.stderr, done.stderr


@pytest.mark.parametrize("family, by_columns", [("qwen3.5-moe", False), ("gemma-4-moe", False), ("mistral-small-4", False),
                                                ("llama-4", True)])
def test_separate_experts_equal_those_in_one_tensor(family, by_columns, tmp_path):
    source = os.path.join(FAMILIES, family)
    shutil.copytree(source, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors, split = heads.read(path), {}
    for name, a in tensors.items():
        stacked = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
        split.update(each_expert(name, a, by_columns) if stacked else {name: a})
    assert len(split) > len(tensors)
    heads.write(path, split)
    assert scores(tmp_path / "model") == scores(source)


OTHERS = ["vision_tower.blocks.0.weight", "model.visual.merger.weight", "model.audio_tower.layers.0.weight",
          "model.embed_audio.weight", "multi_modal_projector.linear_1.bias", "vision_model.model.layers.9.weight"]


@pytest.mark.parametrize("source, old, new", [
    (os.path.join(golden.GOLDEN, "mixtral"), (".w1.", ".w3.", ".w2."), (".gate_proj.", ".up_proj.", ".down_proj.")),
    (os.path.join(FAMILIES, "lfm2-moe"), (".w1.", ".w3.", ".w2."), (".gate_proj.", ".up_proj.", ".down_proj.")),
    (os.path.join(FAMILIES, "kimi-linear"), (".mlp.",), (".block_sparse_moe.",)),
], ids=["mixtral", "lfm2-moe", "kimi-linear"])
def test_names_that_other_programs_give_to_experts_and_dense_layers(source, old, new, tmp_path):
    """llm-compressor names the experts of all families alike; transformers 5 has dense layers within Kimi's mixture."""
    c = Checkpoint(tmp_path / "model", source)
    before = tokens(source)
    for name in list(c.header):
        for a, b in zip(old, new):
            if ".experts." in name or ".mlp." in name:
                c.header[name.replace(a, b)] = c.header.pop(name)
                name = name.replace(a, b)
    c.write()
    assert tokens(c.folder) == before


INNER = [(r"\.block_sparse_moe\.", ".mlp."), (r"(experts\.\d+)\.w1", r"\1.gate_proj"), (r"(experts\.\d+)\.w3", r"\1.up_proj"),
         (r"(experts\.\d+)\.w2", r"\1.down_proj"), (r"self_attn\.(f_|A_log|dt_bias)", r"self_attn.forget_gate.\1")]


@pytest.mark.parametrize("source", [os.path.join(golden.GOLDEN, "mixtral"), os.path.join(FAMILIES, "kimi-linear")],
                         ids=os.path.basename)
def test_inner_names_of_transformers(source, tmp_path):
    """modelopt keeps them in some formats, and with them Kimi-Linear's single convolution."""
    if not os.path.isdir(source):
        pytest.skip(f"no {source}")
    shutil.copytree(source, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors, inner = heads.read(path), {}
    for name, a in tensors.items():
        if ".q_conv1d." in name:
            a = heads.numpy.concatenate([tensors[name.replace(".q_", f".{which}_")] for which in "qkv"])
            name = name.replace(".q_", ".")
        for old, new in INNER:
            name = re.sub(old, new, name)
        if not re.search(r"\.[kv]_conv1d\.", name):
            inner[name] = a
    assert not inner.keys() & {name for name in tensors if ".block_sparse_moe." in name}
    heads.write(path, inner)
    assert scores(tmp_path / "model") == scores(source)


def test_a_missing_matrix_of_such_an_expert_is_named(tmp_path):
    """Granite 4's own files have all experts of a layer in one tensor."""
    source = os.path.join(FAMILIES, "granite-4")
    shutil.copytree(source, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = heads.read(path)
    name = "model.layers.0.block_sparse_moe.experts.0.%s_proj.weight"
    tensors[name % "up"] = next(iter(tensors.values()))
    heads.write(path, tensors)
    done = run(tmp_path / "model")
    assert done.returncode == 1 and name % "gate" in done.stderr, done.stderr


def told(folder):
    done = run(folder, "--log-level", "debug")
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "tensors" in line]


def test_tensors_of_images_and_sound_are_skipped_with_one_log_line(tmp_path):
    c = Checkpoint(tmp_path / "model")
    for name in OTHERS:
        put(c, name, [2], [0x3F80, 0x7F80])  # infinity: audio towers store it where a limit is off
    c.write()
    assert tokens(c.folder) == tokens(SOURCE)
    assert [f"{len(OTHERS)} tensors of images and sound" in line and " info " in line for line in told(c.folder)] == [True]


def test_phi_4_with_adapters_of_images_and_sound_beside_its_matrices(tmp_path):
    """As in Microsoft's files, under its own code's name of the family."""
    source = os.path.join(FAMILIES, "phi-4-multimodal")
    c = Checkpoint(tmp_path / "model", source)
    for name in list(c.header):
        match = re.fullmatch(r"(model\.layers\..*(qkv|o|gate_up|down)_proj)\.weight", name)
        if match:
            c.header[match[1] + ".base_layer.weight"] = c.header.pop(name)
            for part in ("lora_A.speech", "lora_B.vision"):
                put(c, f"{match[1]}.{part}.weight", [1, 2], [0, 0])
    c.write()
    c.config["model_type"] = "phi4mm"
    c.write_config()
    assert scores(c.folder) == scores(source)
    assert not any("do not belong" in line for line in told(c.folder))


def test_draft_layers_are_skipped_if_the_config_counts_them(tmp_path):
    c = Checkpoint(tmp_path / "model")
    names = ["mtp.fc.weight", "model.mtp_block.0.weight", f"model.layers.{c.config['num_hidden_layers']}.eh_proj.weight"]
    for name in names:
        put(c, name, [2], [0x3F80, 0x3F80])
    c.write()
    assert [" warn " in line for line in told(c.folder)] == [False, True]
    c.config["num_nextn_predict_layers"] = 1
    c.write_config()
    assert ["3 tensors of draft layers" in line and " info " in line for line in told(c.folder)] == [True]


def wrap(c, **top):
    """The config becomes a wrapper's text part."""
    c.config = {"model_type": "some_vlm", "text_config": c.config, "vision_config": {"hidden_size": 8}, **top}
    c.write_config()


OLD_ROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "rope_theta": 500000}
ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True, "rope_theta": 500000}}


@pytest.mark.parametrize("family, source, rope, prefix, nested", [
    ("qwen2_5_vl", "qwen2", OLD_ROPE, "model.", False), ("qwen2_vl", "qwen2", ROPE, "model.language_model.", True),
    ("qwen3_vl", "qwen3", ROPE, "model.language_model.", True), ("qwen3_vl_moe", "qwen3-moe", ROPE, "model.language_model.", True)])
def test_qwen_vl_has_the_language_part_of_the_text_model(family, source, rope, prefix, nested, tmp_path):
    plain, c = (Checkpoint(tmp_path / which, os.path.join(golden.GOLDEN, source)) for which in ("plain", "vl"))
    for each in (plain, c):
        each.config.pop("rope_scaling", None)
        each.config.pop("rope_parameters", None)
        each.config.update({"rope_theta": 500000, "norm_topk_prob": True})
    plain.write_config()
    expected = scores(plain.folder)
    del c.config["norm_topk_prob"], c.config["rope_theta"]
    c.config.update(rope, model_type=family + ("_text" if nested else ""))
    if nested:
        c.config = {"model_type": family, "text_config": c.config, "tie_word_embeddings": c.config["tie_word_embeddings"]}
    c.config.update(vision_config={"hidden_size": 8}, image_token_id=5)
    c.write_config()
    c.header = {name.replace("model.", prefix, 1) if name.startswith("model.") else name: t for name, t in c.header.items()}
    c.write()
    assert scores(c.folder) == expected
    if family == "qwen3_vl_moe":
        path = c.path("model.safetensors")
        tensors = heads.read(path)
        for by_columns in (True, False):
            heads.write(path, dict(stacked_experts(tensors, c.config["text_config"], prefix, by_columns)))
            assert scores(c.folder) == expected
        tensors = square_stacks(c, plain, tensors)
        expected = scores(plain.folder)
        for by_columns in (True, False):
            heads.write(path, dict(stacked_experts(tensors, c.config["text_config"], prefix, by_columns)))
            assert scores(c.folder) == expected


TOWERS = ["vision_model.layers.0.weight", "mlp1.0.weight", "model.connector.proj.weight", "talker.codec_head.weight",
          "projector.linear_1.weight", "encoder.layers.0.ff.weight", "model.visual_embeddings_table.weight"]


@pytest.mark.parametrize("source, around, prefix, top", [
    ("llama-3", lambda text: {"model_type": "internvl_chat", "llm_config": text, "hidden_size": 8}, "language_model.model.", "language_model."),
    ("llama-3", lambda text: {"model_type": "smolvlm", "text_config": without_type(text)}, "model.text_model.", ""),
    ("llama-3", lambda text: {"model_type": "llava", "text_config": without_type(text)}, "language_model.model.", "language_model."),
    ("qwen2", lambda text: {"model_type": "internvl", "text_config": without_type(text)}, "model.language_model.", ""),
    ("qwen2", lambda text: {"model_type": "qwen2_5_omni", "thinker_config": {
        "model_type": "qwen2_5_omni_thinker", "text_config": {**text, "model_type": "qwen2_5_omni_text"}}}, "thinker.model.", "thinker."),
    ("nemotron-nano-2", lambda text: {"model_type": "NemotronH_Nano_VL_V2", "llm_config": text}, "language_model.backbone.", "language_model."),
    ("qwen2", lambda text: {"model_type": "qwen2_5_omni_thinker", "text_config": without_type(text)}, "model.", "")])
def test_wrappers_have_the_language_part_in_several_places(source, around, prefix, top, tmp_path):
    """Tensors of the other parts are passed over in one line."""
    source = os.path.join(FAMILIES if source.startswith("nemotron") else golden.GOLDEN, source)
    c = Checkpoint(tmp_path / "model", source)
    c.config = around(c.config)
    del c.header["__metadata__"]
    c.header = {top + name if name.startswith("lm_head") else prefix + name.split(".", 1)[1]: t for name, t in c.header.items()}
    for name in TOWERS:
        put(c, name, [2], [0x3F80, 0x3F80])
    c.write()
    c.write_config()
    assert scores(c.folder) == scores(source)
    assert [" info " in line and f"{len(TOWERS)} tensors of images and sound" in line for line in told(c.folder)] == [True]


def without_type(text):
    return {k: v for k, v in text.items() if k != "model_type"}


def test_a_wrappers_text_part_may_leave_out_the_classs_sizes(tmp_path):
    text = {"num_hidden_layers": 1, "vocab_size": 384, "eos_token_id": 2}
    sizes = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
    expected = dummy_scores(tmp_path / "plain", {**text, **sizes})
    assert dummy_scores(tmp_path / "llava", {"model_type": "llava", "text_config": text}) == expected
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text(json.dumps({"model_type": "llama", **text}))
    done = run(tmp_path / "bare", "--load-format", "dummy")
    assert done.returncode == 1 and "hidden_size is missing" in done.stderr


def test_a_wrapper_whose_prompts_see_later_tokens_is_refused(tmp_path):
    c = Checkpoint(tmp_path / "model", os.path.join(golden.GOLDEN, "gemma"))
    wrap(c, model_type="paligemma")
    done = run(c.folder)
    assert done.returncode == 1 and "paligemma" in done.stderr and "later" in done.stderr


def square_stacks(c, plain, tensors):
    """Experts of half their inputs' width: gate and up together are square."""
    config, rng = c.config["text_config"], heads.numpy.random.default_rng(3)
    hidden = config["hidden_size"]
    for each in (config, plain.config):
        each["moe_intermediate_size"] = hidden // 2
    for name, a in tensors.items():
        if ".experts." in name:
            tensors[name] = heads.drawn(rng, *((hidden, hidden // 2) if "down" in name else (hidden // 2, hidden)))
    heads.write(plain.path("model.safetensors"), {n.replace(".language_model", ""): a for n, a in tensors.items()})
    c.write_config()
    plain.write_config()
    return tensors


def stacked_experts(tensors, config, prefix, by_columns):
    """Released files have the inputs of experts before their outputs."""
    yield from ((name, a) for name, a in tensors.items() if ".experts." not in name)
    for layer in range(config["num_hidden_layers"]):
        base = f"{prefix}layers.{layer}.mlp.experts."
        for stem, parts in (("gate_up", ("gate", "up")), ("down", ("down",))):
            all_of_them = heads.numpy.stack([
                heads.numpy.concatenate([tensors[f"{base}{e}.{part}_proj.weight"] for part in parts])
                for e in range(config["num_local_experts"])])
            yield f"{base}{stem}_proj", heads.numpy.ascontiguousarray(
                all_of_them.transpose(0, 2, 1) if by_columns else all_of_them)


@pytest.mark.parametrize("inside", [True, False, None])
def test_a_wrapper_says_whether_the_head_is_tied(inside, tmp_path):
    """The key of its text part has no effect, as in transformers."""
    tied, untied = Checkpoint(tmp_path / "tied", TIED), Checkpoint(tmp_path / "untied")
    del untied.header[HEAD]
    untied.write()
    for c, said in ((tied, True), (untied, False)):
        c.config["tie_word_embeddings"] = inside
        wrap(c, tie_word_embeddings=said)
    assert tokens(tied.folder) == tokens(TIED)
    tied.config["model_type"] = "llava_onevision"  # its class wrote the key only into the text part at first
    tied.config["tie_word_embeddings"] = False
    tied.config["text_config"]["tie_word_embeddings"] = True
    tied.write_config()
    assert tokens(tied.folder) == tokens(TIED)
    done = run(untied.folder)
    assert done.returncode == 1 and HEAD in done.stderr


def test_a_wrappers_type_may_imply_the_text_parts_family(tmp_path):
    c = Checkpoint(tmp_path / "model")
    family = c.config.pop("model_type")
    wrap(c, model_type=family)
    assert tokens(c.folder) == tokens(SOURCE)
    assert json.load(open(c.path("config.json")))["text_config"].get("model_type") is None
