# SPDX-License-Identifier: Apache-2.0
"""The families before Llama: limits of learned positions, forms of their files, and which values are refused by name."""
import json
import os
import shutil
import struct
import subprocess

import pytest

import gguf_archs
import gguf_files
import golden
from golden import GOLDEN
from test_checkpoint import Checkpoint, off, run, scores
from test_gguf_archs import write_safetensors

CLASSIC = ("gpt2", "opt", "gpt-neox", "falcon")


def source(name):
    return os.path.join(GOLDEN, name)


def changed(folder, name, values):
    c = Checkpoint(folder, source(name))
    c.config.update(values)
    c.write_config()
    return c


def told(done):
    assert done.returncode == 1, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize("name, values, named", [
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx true"]),
    ("gpt2", {"add_cross_attention": True}, ["add_cross_attention true"]),
    ("gpt2", {"n_head": 5, "num_key_value_heads": 5}, ["heads", "hidden size"]),
    ("gpt2", {"head_dim": 8}, ["head_dim", "hidden size"]),
    ("gpt2", {"n_positions": 199}, ["transformer.wpe.weight", "[200, 64]", "[199, 64]"]),
    ("gpt2", {"activation_function": "quick_gelu"}, ["quick_gelu"]),
    ("opt", {"do_layer_norm_before": False}, ["do_layer_norm_before false"]),
    ("opt", {"word_embed_proj_dim": 32}, ["word_embed_proj_dim"]),
    ("opt", {"_remove_final_layer_norm": True}, ["_remove_final_layer_norm true"]),
    ("gpt-neox", {"rotary_pct": 2.0}, ["rotary_pct", "from"]),
    ("falcon", {"alibi": True}, ["alibi true"]),
    ("falcon", {"parallel_attn": False}, ["parallel_attn false"]),
    ("falcon", {"num_kv_heads": 3}, ["8 heads", "3 key/value heads"]),
    ("falcon", {"num_kv_heads": 16}, ["num_kv_heads", "from 1 to 8"]),
    ("falcon", {"num_ln_in_parallel_attn": 3}, ["num_ln_in_parallel_attn"]),
    ("falcon", {"new_decoder_architecture": False, "num_ln_in_parallel_attn": 2}, ["num_ln_in_parallel_attn"]),
    ("gpt2", {"model_type": "gptj", "rotary_dim": 32}, ["tie_word_embeddings true"]),
    ("gpt2", {"model_type": "gptj", "tie_word_embeddings": False, "rotary_dim": 32}, ["rotary_dim", "from 1 to 16"]),
    ("gpt2", {"model_type": "gptj", "tie_word_embeddings": False, "rotary_dim": 8, "rope_scaling": {"type": "yarn", "factor": 2.0}},
     ["RoPE", "yarn"]),
    ("gpt2", {"model_type": "codegen", "tie_word_embeddings": False, "rotary_dim": 8, "n_head": 2, "num_key_value_heads": 2}, ["2 heads", "multiple of 4"]),
])
def test_what_is_not_supported_is_refused_by_name(name, values, named, tmp_path):
    line = told(run(changed(tmp_path / "model", name, values).folder))
    assert all(word in line for word in named), line


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_no_text_is_longer_than_the_learned_positions(name):
    assert "201 is more than the 200 positions" in told(run(source(name), "--max-model-len", "201"))
    prompt = [7 + i % 300 for i in range(196)]
    asked = [{"prompt_token_ids": prompt, "max_tokens": 50, "temperature": 0, "ignore_eos": True}]
    whole, short = (golden.generate(source(name), asked, *flags)[0] for flags in ([], ["--max-model-len", "199"]))
    assert [len(a["outputs"][0]["token_ids"]) for a in (whole, short)] == [4, 3]
    assert whole["outputs"][0]["token_ids"][:3] == short["outputs"][0]["token_ids"]


def test_a_scaling_of_ropes_adds_no_positions():
    """A key that has a meaning only in other families."""
    longer = json.dumps({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200}})
    assert "200 positions" in told(run(source("gpt2"), "--hf-overrides", longer, "--max-model-len", "300"))


def renamed(c, change):
    c.header = {change(name): entry for name, entry in c.header.items() if name != "__metadata__"}
    c.write()
    return c.folder


@pytest.mark.parametrize("name, old, new", [("gpt2", "transformer.", ""), ("opt", "model.decoder.", "decoder.")])
def test_names_without_their_prefix(name, old, new, tmp_path):
    c = changed(tmp_path / "model", name, {})
    assert scores(renamed(c, lambda n: n.replace(old, new, 1))) == scores(source(name))


@pytest.mark.parametrize("name, embed", [("gpt2", "transformer.wte"), ("opt", "model.decoder.embed_tokens"),
                                         ("falcon", "transformer.word_embeddings"), ("llama-tied", "model.embed_tokens")])
def test_a_tied_matrix_may_be_stored_as_the_head_only(name, embed, tmp_path):
    """As converters store it that keep one of two equal tensors."""
    c = Checkpoint(tmp_path / "model", source(name))
    folder = renamed(c, lambda n: "lm_head.weight" if n == embed + ".weight" else n)
    for flags in ([], ["--tensor-parallel-size", "2", *golden.TWO_THREADS]):
        assert off(scores(folder, *flags), scores(source(name), *flags)) == 0
    c.config["tie_word_embeddings"] = False
    c.write_config()
    assert embed in told(run(c.folder))


@pytest.mark.parametrize("name, module", [("gpt2", "transformer.h.{}.attn."), ("gpt-neox", "gpt_neox.layers.{}.attention.")])
def test_stored_masks_are_no_weights(name, module, tmp_path):
    """Old files have them; the value for what is masked is infinite in half precision."""
    c = changed(tmp_path / "model", name, {})
    for i in range(4):
        for key, dtype, shape, data in (("bias", "BOOL", [1, 1, 8, 8], b"\1" * 64), ("masked_bias", "F16", [], struct.pack("<H", 0xfc00))):
            c.header[module.format(i) + key] = {"dtype": dtype, "shape": shape,
                                                "data_offsets": [len(c.data), len(c.data) + len(data)]}
            c.data += data
    c.write()
    done = run(c.folder, "--log-level", "warn")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert scores(c.folder) == scores(source(name))


def test_a_gguf_file_of_falcon_with_one_norm(tmp_path):
    """As of Falcon 7B, in a file with all matrices in half precision."""
    c = changed(tmp_path / "model", "falcon", {"num_ln_in_parallel_attn": 1})
    c.header = {name.replace("ln_attn", "input_layernorm"): entry for name, entry in c.header.items()
                if name != "__metadata__" and "ln_mlp" not in name}
    c.write()
    want = scores(c.folder)
    assert want != scores(source("falcon"))
    path = gguf_archs.convert(c.folder, str(tmp_path / "m.gguf"), lambda name, x: "F16")
    assert off(want, scores(path)) < 0.05


def starcoder(path):
    """GPT-2's model as one of StarCoder's, in which all heads share the keys of the first one."""
    config = gguf_archs.read_config(source("gpt2"))
    size = config["n_embd"] // config["n_head"]
    shared = [*range(config["n_embd"]), *range(config["n_embd"], config["n_embd"] + size),
              *range(2 * config["n_embd"], 2 * config["n_embd"] + size)]
    tensors = {}
    for name, x in gguf_files.safetensors(source("gpt2")).items():
        x = x.T if ".c_" in name and x.ndim == 2 else x
        tensors[name] = x[shared] if ".c_attn." in name else x
    shutil.copytree(source("gpt2"), path)
    (path / "model.safetensors").unlink()
    write_safetensors(path / "model.safetensors", tensors)
    config.update(model_type="gpt_bigcode", multi_query=True, num_kv_heads=1, activation_function="gelu_pytorch_tanh")
    (path / "config.json").unlink()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_a_gguf_file_of_starcoder(tmp_path):
    folder = starcoder(tmp_path / "model")
    path = gguf_archs.convert(folder, str(tmp_path / "m.gguf"))
    assert off(scores(folder), scores(path)) < 1e-4
    assert off(scores(folder), scores(source("gpt2"))) > 1e-2
    assert off(scores(folder), scores(folder, "--tensor-parallel-size", "2", *golden.TWO_THREADS)) < 1e-4
    several = gguf_archs.convert(folder, str(tmp_path / "several.gguf"), more={"attention.head_count_kv": (gguf_files.U32, 4)})
    assert "starcoder.attention.head_count_kv is 4" in told(run(several))


def test_transposed_matrices_are_not_quantised_into_a_folder(tmp_path):
    """Rows of their tensors are inputs, so scales of rows would be those of inputs."""
    done = subprocess.run([golden.SLUICE, "quantize", source("gpt2"), str(tmp_path / "out"), "--format", "fp8"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "no projection" in done.stderr, done.stderr


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_quantised_while_loading(name, kind):
    """Transposed matrices and fused ones with heads in groups are quantised like others, and ranks have equal parts."""
    base, alone, shared = (scores(source(name), *flags) for flags in (
        [], ["--quantization", kind], ["--quantization", kind, "--tensor-parallel-size", "2", *golden.TWO_THREADS]))
    assert 1e-3 < off(base, alone) < {"fp8": 0.6, "int4": 3.0}[kind]
    assert off(alone, shared) <= 1e-3
