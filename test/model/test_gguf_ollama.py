# SPDX-License-Identifier: Apache-2.0
"""Files as Ollama writes or wrote them, where they differ from llama.cpp's: stored answers of the golden folders."""
import os

import numpy
import pytest

import gguf_archs
import gguf_files
import golden
from gguf_files import BOOL, F32, I32, STRING, U32


def file_of(name, path):
    """(folder, file as llama.cpp has it)"""
    for folder in (golden.FAMILIES, golden.GOLDEN):
        source = os.path.join(folder, name)
        if os.path.exists(source):
            known = gguf_archs.read_config(source)["model_type"] in gguf_archs.FAMILIES
            return source, gguf_files.read((gguf_archs if known else gguf_files).convert(source, path))
    raise FileNotFoundError(name)


def change(w, arch=None, keys=(), tensors=(), more=()):
    """arch: a new name of the architecture. keys: new keys without it, None for those that are left out. tensors: parts of
    names. more: (name, type, value) of further keys."""
    old = next(v for name, _, v in w.keys if name == "general.architecture")
    old = old if isinstance(old, str) else old.decode()
    rows = []
    for name, kind, v in w.keys:
        short = name.removeprefix(old + ".")
        if name == "general.architecture":
            rows.append((name, kind, arch or old))
        elif short in dict(keys):
            if dict(keys)[short]:
                rows.append(("%s.%s" % (arch or old, dict(keys)[short]), kind, v))
        elif short != name:
            rows.append(("%s.%s" % (arch or old, short), kind, v))
        else:
            rows.append((name, kind, v))
    names = {k[0] for k in more}
    w.keys = [k for k in rows if k[0] not in names] + list(more)
    for before, after in tensors:
        w.tensors = [(t[0].replace(before, after), *t[1:]) for t in w.tensors]


def add_media(w):
    for name in ("v.patch_embd.weight", "v.blk.0.attn_q.weight", "mm.input_projection.weight", "a.conv1d.weight", "mtp.fc.weight"):
        w.tensor(name, "F32", (4, 4), bytes(64))


GPTOSS = {"arch": "gptoss", "keys": {"expert_feed_forward_length": None, "feed_forward_length": None, "rope.scaling.type": None},
          "tensors": [("attn_output", "attn_out"), ("attn_sinks.weight", "attn_sinks"), ("post_attention_norm", "ffn_norm")],
          "more": [("tokenizer.ggml.pre", STRING, "default")]}
GLM = {"arch": "glm4moelite", "keys": {"attention.key_length_mla": "attention.key_length", "attention.value_length_mla": "attention.value_length",
                                       "attention.key_length": "attention.key_length_mla", "attention.value_length": "attention.value_length_mla",
                                       "expert_group_count": None, "expert_group_used_count": None},
       "more": [("glm4moelite.attention.head_count_kv", U32, 4), ("tokenizer.ggml.pre", STRING, "default")]}
MINISTRAL = {"keys": {"rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast", "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
                      "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim",
                      "attention.temperature_scale": "rope.scaling_beta"}}
MISTRAL = {"more": [("mistral3.rope.scaling.type", STRING, "default"), ("mistral3.rope.scaling.factor", F32, 0.0)]}
LLAMA4 = {"more": [("llama4.attention.chunk_size", U32, 32), ("llama4.use_qk_norm", BOOL, True)]}
GEMMA = {"keys": {"rope.freq_base": "rope.global.freq_base", "attention.layer_norm_rms_epsilon": None}}

GEMMA3N = {"keys": {"attention.key_length": "head_dim", "attention.value_length": None, "final_logit_softcapping": None},
           "more": [("gemma3n.rope.freq_base_local", F32, 10000.0), ("gemma3n.altup.correct_scale", BOOL, True),
                    ("gemma3n.feed_forward_length", U32, 96), ("gemma3n.laurel_rank", U32, 8)]}


@pytest.mark.parametrize("name, changes", [
    ("gpt-oss-20b", GPTOSS), ("glm-4.7-flash", GLM), ("ministral-3", MINISTRAL), ("mistral-3", MISTRAL), ("gemma-3", GEMMA),
    ("gemma-3n", GEMMA3N),
    ("olmo-3", {"arch": "olmo3"}), ("qwen2", {"arch": "qwen25vl"}),
    ("nemotron-3-super", {"tensors": [("latent_down", "latent_in"), ("latent_up", "latent_out")]}),
], ids=lambda v: v if isinstance(v, str) else "")
def test_stored_answers(name, changes, tmp_path, monkeypatch):
    folder, w = file_of(name, str(tmp_path / "m.gguf"))
    change(w, **changes)
    add_media(w)
    w.write(str(tmp_path / "m.gguf"))
    stored = golden.expected(folder)
    monkeypatch.setattr(golden, "expected", lambda _: stored)
    golden.check_exact(str(tmp_path / "m.gguf"))


def test_heads_of_layers_with_states(tmp_path, monkeypatch):
    """Layers without attention have no key/value heads in the list."""
    folder, w = file_of("qwen3.5", str(tmp_path / "m.gguf"))
    layers, every, kv = (next(v for name, _, v in w.keys if name == "qwen35." + key)
                         for key in ("block_count", "full_attention_interval", "attention.head_count_kv"))
    change(w, more=[("qwen35.attention.head_count_kv", [I32], [0 if (i + 1) % every else kv for i in range(layers)])],
           tensors=[("ssm_dt.bias", "ssm_dt")])
    w.write(str(tmp_path / "m.gguf"))
    stored = golden.expected(folder)
    monkeypatch.setattr(golden, "expected", lambda _: stored)
    golden.check_exact(str(tmp_path / "m.gguf"))


def test_chunks_of_llama4(tmp_path):
    """Prompts of more than a chunk; how queries grow is not in the file, so positions of less than a step are compared."""
    folder, w = file_of("llama-4", str(tmp_path / "m.gguf"))
    cases = [c for c in golden.expected(folder)["cases"] if len(c["prompt"]) > 32]
    change(w, **LLAMA4)
    w.write(str(tmp_path / "m.gguf"))
    answers = golden.generate(str(tmp_path / "m.gguf"), [{"prompt_token_ids": c["prompt"], "max_tokens": 1, "temperature": 0,
                                                          "prompt_logprobs": True} for c in cases], "--dtype", "float32")
    steps = gguf_archs.read_config(folder)["floor_scale"]
    for case, answer in zip(cases, answers):
        assert answer["prompt_logprobs"][1:steps] == pytest.approx(case["prompt_logprobs"][1:steps], abs=1e-3)
    change(w, more=[("llama4.attention.chunk_size", U32, 8)])
    w.write(str(tmp_path / "m.gguf"))
    other = golden.generate(str(tmp_path / "m.gguf"), [{"prompt_token_ids": cases[0]["prompt"], "max_tokens": 1, "prompt_logprobs": True}])
    assert not numpy.allclose(other[0]["prompt_logprobs"][9:], answers[0]["prompt_logprobs"][9:], atol=1e-2)


def test_a_list_of_end_ids(tmp_path):
    folder, w = file_of("qwen3", str(tmp_path / "m.gguf"))
    cases = [(c, [g["id"] for g in c["greedy"]]) for c in golden.expected(folder)["cases"]]
    case, ids, last = next((c, ids, i) for c, ids in cases for i in range(1, len(ids)) if ids[i] not in ids[:i])
    asked = [{"prompt_token_ids": case["prompt"], "max_tokens": last + 3, "temperature": 0}]
    change(w, more=[("tokenizer.ggml.eos_token_ids", [I32], [-1, 1 << 20, ids[last]])])
    w.write(str(tmp_path / "m.gguf"))
    answer = golden.generate(str(tmp_path / "m.gguf"), asked, "--dtype", "float32")[0]["outputs"][0]
    assert answer["finish_reason"] == "stop" and len(answer["token_ids"]) == last + 1


@pytest.mark.parametrize("context, factor", [(131072, 8.0), (131071, 1.0)])
def test_long_contexts_of_gemma(context, factor, tmp_path):
    """Files without a scaling have the released models', which depends on the length."""
    _, w = file_of("gemma-3", str(tmp_path / "m.gguf"))
    change(w, more=[("gemma3.context_length", U32, context)])
    w.write(str(tmp_path / "m.gguf"))
    change(w, more=[("gemma3.rope.scaling.type", STRING, "linear"), ("gemma3.rope.scaling.factor", F32, factor)])
    w.write(str(tmp_path / "said.gguf"))
    asked = [{"prompt_token_ids": list(range(5, 60)), "max_tokens": 4, "temperature": 0, "prompt_logprobs": True}]
    said, silent = (golden.generate(str(tmp_path / name), asked, "--max-model-len", "256") for name in ("said.gguf", "m.gguf"))
    assert said == silent
