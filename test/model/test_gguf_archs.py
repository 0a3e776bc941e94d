# SPDX-License-Identifier: Apache-2.0
"""Architectures of GGUF files whose families have folders in test/golden-families: stored answers, from files as llama.cpp's
converter would write them, and what such a file cannot say."""
import json
import os
import shutil

import numpy
import pytest

import gguf_archs
import gguf_files
import golden
from gguf_files import BOOL, F32, I32, STRING, U32
from test_gguf import refused, scores

# The converter's constants replace the sizes of chunks and steps, and the factor of logits, of these folders.
FIXED = ("llama-4", "minicpm-3")


def families():
    rows = []
    for folder in (golden.GOLDEN, golden.FAMILIES):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if os.path.exists(os.path.join(path, "config.json")) and name not in FIXED:
                kind = gguf_archs.read_config(path)["model_type"]
                if kind in gguf_archs.FAMILIES and (kind != "mistral" or name == "mistral-3"):
                    rows.append(path)
    return rows


@pytest.fixture
def stored(monkeypatch):
    """Makes golden's functions use the answers of a folder for a file."""
    def use(folder):
        answers = golden.expected(folder)
        monkeypatch.setattr(golden, "expected", lambda _: answers)
    return use


@pytest.mark.parametrize("folder", families(), ids=os.path.basename)
def test_stored_answers(folder, tmp_path, stored):
    path = gguf_archs.convert(folder, str(tmp_path / "m.gguf"))
    stored(folder)
    golden.check_exact(path)


@pytest.mark.parametrize("name", ["glm-4.7-flash", "kimi-linear", "ling-3", "exaone-moe", "step-3.7", "mimo-v2-flash", "glm-5", "gemma-3n"])
def test_ranks(name, tmp_path, stored):
    """Parts of MLA's products, which such files store by head, and states are shared among ranks."""
    folder = os.path.join(golden.FAMILIES, name)
    path = gguf_archs.convert(folder, str(tmp_path / "m.gguf"))
    stored(folder)
    golden.check_exact(path, 1e-3, "--tensor-parallel-size", "2", *golden.TWO_THREADS)


@pytest.mark.parametrize("name", ["glm-4.5", "kimi-k2", "ministral-3", "gemma-3n"])
def test_f16(name, tmp_path, stored):
    folder = os.path.join(golden.FAMILIES, name)
    path = gguf_archs.convert(folder, str(tmp_path / "m.gguf"), lambda name, x: "F16")
    stored(folder)
    golden.check_exact(path, 1e-3)


def changed_folder(folder, path, **keys):
    """A folder with other values in its text config."""
    shutil.copytree(folder, path)
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    config.get("text_config", config).update(keys)
    (path / "config.json").write_text(json.dumps(config))
    return path


def check_close(path, folder):
    """The numbers of a file's keys are rounded."""
    for have, want in zip(scores(path, "--dtype", "float32"), scores(folder, "--dtype", "float32")):
        assert have["outputs"][0]["token_ids"] == want["outputs"][0]["token_ids"]
        assert have["prompt_logprobs"][1:] == pytest.approx(want["prompt_logprobs"][1:], abs=1e-4)


def test_llama4(tmp_path):
    """Such a file says neither how long chunks are nor how queries grow: all have the released models' values."""
    folder = changed_folder(os.path.join(golden.FAMILIES, "llama-4"), tmp_path / "folder", attention_chunk_size=8192,
                            floor_scale=8192, attn_scale=0.1)
    path = gguf_archs.convert(str(folder), str(tmp_path / "m.gguf"))
    assert scores(path, "--dtype", "float32") == scores(folder, "--dtype", "float32")
    w = gguf_files.read(path)
    w.key("llama4.attention.sliding_window_pattern", [BOOL], [True, True, True, False] * 2)
    assert scores(w.write(path), "--dtype", "float32") == scores(folder, "--dtype", "float32")
    w.key("llama4.attention.sliding_window", U32, 0)
    refused(w.write(path), "llama4.attention.sliding_window of 0")


def test_minicpm3(tmp_path):
    """Such a file does not say by what logits are divided."""
    folder = changed_folder(os.path.join(golden.FAMILIES, "minicpm-3"), tmp_path / "folder", dim_model_base=256)
    path = gguf_archs.convert(str(folder), str(tmp_path / "m.gguf"))
    assert scores(path, "--dtype", "float32") == scores(folder, "--dtype", "float32")


def test_apertus_without_a_parameter_or_with_another_epsilon(tmp_path):
    w = gguf_files.read(gguf_archs.convert(os.path.join(golden.FAMILIES, "apertus"), str(tmp_path / "m.gguf")))
    keys = list(w.keys)
    w.keys = [k for k in keys if k[0] != "xielu.beta"]
    refused(w.write(str(tmp_path / "m.gguf")), "xielu.beta has no number for layer 0")
    w.keys = [(k, kind, [-0.1] * 4) if k == "xielu.eps" else (k, kind, v) for k, kind, v in keys]
    refused(w.write(str(tmp_path / "m.gguf")), "xielu.eps is -0.1, which is not supported")


def test_exaone_without_a_window(tmp_path):
    """A file without a window has full attention with positions in all layers, unless it has 64 of them."""
    keys = {"sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 8}
    folder = changed_folder(os.path.join(golden.FAMILIES, "exaone-4"), tmp_path / "folder", **keys)
    path = gguf_archs.convert(str(folder), str(tmp_path / "m.gguf"),
                              more={"attention.sliding_window": (U32, None), "attention.sliding_window_pattern": ([BOOL], None)})
    check_close(path, folder)


def test_solar_open(tmp_path):
    """Written as GLM, without norms of q and k and with whole heads rotated."""
    source = os.path.join(golden.FAMILIES, "glm-4.5")
    config = gguf_archs.read_config(source)
    drop = ("use_qk_norm", "partial_rotary_factor", "num_nextn_predict_layers", "first_k_dense_replace")
    tensors = {n: x for n, x in gguf_files.safetensors(source).items() if "_norm" not in n or "layernorm" in n}
    for layer in (0, 1):  # dense, which Solar Open has none of
        for name in [n for n in tensors if n.startswith("model.layers.%d." % layer)]:
            tensors.pop(name)
    tensors = {n.replace("layers.2.", "layers.0.").replace("layers.3.", "layers.1."): x for n, x in tensors.items() if "layers.4." not in n}
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        **{k: v for k, v in config.items() if k not in drop}, "model_type": "solar_open", "architectures": ["SolarOpenForCausalLM"],
        "num_hidden_layers": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, name), folder)
    write_safetensors(folder / "model.safetensors", tensors)
    (tmp_path / "glm").mkdir()
    (tmp_path / "glm" / "config.json").write_text(json.dumps({
        **config, "num_hidden_layers": 2, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0, "partial_rotary_factor": 1.0}))
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path / "glm")
    path = gguf_archs.convert(str(tmp_path / "glm"), str(tmp_path / "m.gguf"))
    assert scores(path, "--dtype", "float32") == scores(folder, "--dtype", "float32")


def write_safetensors(path, tensors):
    head, data, at = {}, [], 0
    for name, x in tensors.items():
        raw = numpy.ascontiguousarray(x, "<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


@pytest.mark.parametrize("name", ["glm-4.5", "ministral-3", "stablelm-2"])
def test_q_k_and_v_in_one_tensor(name, tmp_path):
    convert, folder = gguf_archs.convert, os.path.join(golden.FAMILIES, name)
    if name == "stablelm-2":
        convert, folder = gguf_files.convert, os.path.join(golden.GOLDEN, name)
    path = convert(folder, str(tmp_path / "m.gguf"))
    expected, w = scores(path, "--dtype", "float32"), gguf_files.read(path)
    stored = {t[0]: t for t in w.tensors}
    for t in list(w.tensors):
        if ".attn_q." in t[0]:
            parts = [stored.pop(t[0].replace("_q.", "_%s." % part)) for part in "qkv"]
            shape = (sum(p[2][0] for p in parts), *t[2][1:])
            stored[t[0]] = (t[0].replace("_q.", "_qkv."), "F32", shape, b"".join(p[3] for p in parts))
    w.tensors = list(stored.values())
    assert any("attn_qkv" in t[0] for t in w.tensors)
    assert scores(w.write(path), "--dtype", "float32") == expected
    w.tensors = [(t[0], "F32", (t[2][0] - 1, *t[2][1:]), t[3][:-4 * numpy.prod(t[2][1:], dtype=int)]) if "attn_qkv.w" in t[0] else t
                 for t in w.tensors]
    refused(w.write(path), "attn_qkv", "does not belong to the architecture")


# Sizes that blocks of 256 divide; MLA's keys have 192 elements without positions, as in GLM-4.7-Flash.
LARGE = {"model_type": "deepseek_v3", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256,
         "vocab_size": 384, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "rope_theta": 10000.0, "kv_lora_rank": 256,
         "q_lora_rank": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 8,
         "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "routed_scaling_factor": 1.8,
         "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}


def large_model(path, kind, other="Q8_0"):
    """Matrices in blocks; `other` is the type of MLA's keys, whose rows blocks of 256 do not divide."""
    c, w, rng = LARGE, gguf_files.Writer(), numpy.random.default_rng(11)
    w.key("general.architecture", STRING, "deepseek2")
    for name, (key_kind, v) in {**gguf_archs.common_keys(c), **gguf_archs.keys_deepseek(c)}.items():
        if v is not None:
            w.key("deepseek2." + name, key_kind, v)
    gguf_files.tokenizer_keys(w, os.path.join(golden.GOLDEN, "qwen3"), "qwen2")
    rows = {"token_embd.weight": (384, 256), "output.weight": (384, 256), "output_norm.weight": (256,)}
    for i in range(2):
        layer = {"attn_norm.weight": (256,), "ffn_norm.weight": (256,), "attn_q_a.weight": (256, 256), "attn_q_a_norm.weight": (256,),
                 "attn_q_b.weight": (1024, 256), "attn_kv_a_mqa.weight": (320, 256), "attn_kv_a_norm.weight": (256,),
                 "attn_k_b.weight": (4, 256, 192), "attn_v_b.weight": (4, 256, 256), "attn_output.weight": (256, 1024)}
        if i == 0:
            layer.update({"ffn_%s.weight" % half: (256, 256) for half in ("gate", "up", "down")})
        else:
            layer.update({"ffn_%s_%s.weight" % (half, of): shape for half in ("gate", "up", "down")
                          for of, shape in (("exps", (8, 256, 256)), ("shexp", (256, 256)))})
            layer.update({"ffn_gate_inp.weight": (8, 256), "exp_probs_b.bias": (8,)})
        rows.update({"blk.%d.%s" % (i, name): shape for name, shape in layer.items()})
    for i, (name, shape) in enumerate(rows.items()):
        plain = len(shape) == 1 or "gate_inp" in name
        x = (1 if "norm" in name else 0) + 0.05 * rng.standard_normal(shape)
        stored = "F32" if plain else other if "k_b" in name else kind
        w.tensor(name, stored, shape, gguf_files.encode(x, stored, i))
    return w.write(str(path))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K", "IQ3_S", "BF16"])
def test_blocks_equal_their_plain_values(kind, tmp_path):
    path = large_model(tmp_path / "m.gguf", kind, "BF16" if kind == "BF16" else "Q8_0")
    twin = gguf_files.plain_twin(path, str(tmp_path / "plain.gguf"))
    for dtype in ("float32", "bfloat16"):
        assert scores(path, "--dtype", dtype) == scores(twin, "--dtype", dtype), dtype
    ranks = ("--tensor-parallel-size", "2", *golden.TWO_THREADS)
    if golden.EXACT_RANKS:
        assert scores(path, *ranks) == scores(path, *golden.TWO_THREADS)


@pytest.mark.parametrize("name, keys, words", [
    ("gemma-3n", {"attention.shared_kv_layers": (U32, None)}, ["the key gemma3n.attention.shared_kv_layers is missing"]),
    ("gemma-3n", {"attention.shared_kv_layers": (U32, 9)}, ["num_kv_shared_layers"]),
    ("gemma-3n", {"activation_sparsity_scale": ([F32], [1.6])}, ["gemma3n.activation_sparsity_scale has no number for layer 1"]),
    ("gemma-3n", {"activation_sparsity_scale": ([F32], [numpy.inf] * 7)}, ["gemma3n.activation_sparsity_scale is inf"]),
    ("gemma-3n", {"attention.key_length_swa": (U32, 8)}, ["gemma3n.attention.key_length_swa is 8, with keys of 16"]),
    ("gemma-3n", {"altup.num_inputs": (U32, 9)}, ["altup_num_inputs must be from 2 to 8"]),
    ("gemma-3n", {"feed_forward_length": ([I32], [96] * 3)}, ["gemma3n.feed_forward_length has no number for layer 3"]),
    ("glm-4.5", {"expert_gating_func": (U32, 1)}, ["glm4moe.expert_gating_func is 1, which is not supported"]),
    ("glm-4.5", {"attention.temperature_scale": (F32, 0.1)}, ["glm4moe.attention.temperature_scale is 0.1"]),
    ("minimax-m2", {"expert_weights_scale": (F32, 2.5)}, ["minimax-m2.expert_weights_scale is 2.5"]),
    ("llama-4", {"attention.sliding_window_pattern": (U32, 6)}, ["sliding_window_pattern other than 4"]),
    ("llama-4", {"attention.sliding_window_pattern": ([BOOL], [True] * 8)}, ["sliding_window_pattern other than 4"]),
    ("exaone-moe", {"attention.sliding_window_pattern": ([BOOL], [True])}, ["sliding_window_pattern has no number for layer 1"]),
    ("exaone-moe", {"attention.sliding_window_pattern": (F32, 1.5)}, ["sliding_window_pattern is not a number of layers"]),
    ("cohere-2", {"attention.sliding_window": (U32, None)}, ["the key cohere2.attention.sliding_window is missing"]),
    ("hy-3", {"expert_weights_norm": (BOOL, False)}, ["hy_v3.expert_weights_norm is false"]),
    ("hy-3", {"expert_shared_feed_forward_length": (U32, 25)}, ["expert_shared_feed_forward_length is 25, with experts of 24"]),
    ("kimi-k2", {"expert_gating_func": (U32, 1), "attention.temperature_scale": (F32, 0.1), "attention.temperature_length": (U32, 7)},
     ["temperature_length is 7, but the original context 32"]),
    ("afmoe", {"expert_weights_norm": (BOOL, False)}, ["afmoe.expert_weights_norm is false"]),
    ("afmoe", {"attention.sliding_window_pattern": (U32, 2)}, ["full attention in other layers than every 4 is not supported"]),
    ("afmoe", {"attention.sliding_window": (U32, None)}, ["afmoe.attention.sliding_window is missing or 0"]),
    ("mimo-v2-flash", {"rope.scaling.type": (STRING, "yarn"), "rope.scaling.factor": (F32, 4.0)},
     ["mimo2.rope.scaling.type: 'yarn', with a factor of 4"]),
    ("mimo-v2-flash", {"attention.sliding_window_pattern": ([I32], None)}, ["mimo2.attention.sliding_window_pattern is missing"]),
    ("mimo-v2-flash", {"attention.head_count_kv": ([I32], [1, 2, 1, 2, 2, 1, 2])}, ["head_count_kv differs among layers with a window"]),
    ("mimo-v2-flash", {"rope.dimension_count_swa": (U32, 72)}, ["mimo2.rope.dimension_count_swa"]),
    ("mimo-v2-flash", {"expert_weights_scale": (F32, 2.0)}, ["mimo2.expert_weights_scale is 2"]),
    ("step-3.7", {"rope.dimension_count": (U32, 1 << 31)}, ["step35: 1.07374e+09 of 16 dimensions of a head cannot be rotated"]),
    ("step-3.7", {"expert_weights_norm": (BOOL, False)}, ["step35.expert_weights_norm is false"]),
    ("step-3.7", {"attention.value_length": (U32, 8)}, ["values of 8 dimensions with keys of 16"]),
    ("step-3.7", {"attention.head_count_kv": ([I32], [2, 1, 1, 2, 1, 2])}, ["step35.attention.head_count_kv differs from layer to layer"]),
    ("step-3.7", {"swiglu_clamp_exp": ([F32], [0.0])}, ["step35.swiglu_clamp_exp has no number for layer 1"]),
    ("command-a-plus", {"attention.sliding_window": (U32, None)}, ["the key cohere2moe.attention.sliding_window is missing"]),
    ("command-a-plus", {"expert_gating_func": (U32, 1)}, ["cohere2moe.expert_gating_func is 1"]),
    ("command-a-plus", {"rope.freq_base_swa": (F32, 5.0)}, ["cohere2moe.rope.freq_base_swa is 5, unlike that of other layers"]),
    ("granite-swa", {"attention.sliding_window_pattern": ([BOOL], None)}, ["granite_swa.attention.sliding_window_pattern is missing"]),
    ("granite-swa", {"attention.rope_pattern": ([BOOL], [True])}, ["granite_swa.attention.rope_pattern has no number for layer 1"]),
    ("muse-glimmer", {"logit_scale": (F32, None)}, ["the key muse-glimmer.logit_scale is missing"]),
    ("muse-glimmer", {"rope.freq_base_swa": (F32, 5.0)}, ["muse-glimmer.rope.freq_base_swa is 5, unlike that of other layers"]),
    ("deepseek-v3.2", {"attention.indexer.top_k": (U32, None)}, ["the key deepseek32.attention.indexer.top_k is missing"]),
    ("glm-5", {"attention.indexer.types": ([BOOL], [True])}, ["glm-dsa.attention.indexer.types has no number for layer 1"]),
    ("glm-5", {"attention.indexer.types": ([BOOL], None), "context_length": (U32, 1 << 20)},
     ["the key glm-dsa.attention.indexer.types is missing"]),
    ("laguna", {"expert_weights_norm": (BOOL, False)}, ["laguna.expert_weights_norm is false"]),
    ("laguna", {"expert_gating_func": (U32, 1)}, ["laguna.expert_gating_func is 1"]),
    ("laguna", {"attention.key_length_swa": (U32, 8)}, ["laguna.attention.key_length_swa or value_length_swa unlike"]),
    ("kimi-k2", {"rope.scaling.attn_factor": (F32, 2.0)}, ["rope.scaling.attn_factor is 2, which is only supported with"]),
    ("cohere-2", {"rope.freq_base_swa": (F32, 5.0)}, ["cohere2.rope.freq_base_swa is 5, unlike that of other layers"]),
    ("exaone-4", {"attention.key_length_swa": (U32, 16)}, ["exaone4.attention.key_length_swa is 16, unlike that of other layers"]),
    ("minimax-m2", {"expert_group_count": (U32, 2)}, ["minimax-m2.expert_group_count is 2"]),
    ("ling-3", {"rope.dimension_sections": ([U32], [2, 1, 1, 0])}, ["rope.dimension_sections"]),
    ("ling-3", {"swiglu_clamp_exp": ([F32], [0.0] * 4 + [7.0] * 4)}, ["swiglu_clamp_exp is 7, which is not supported"]),
])
def test_keys_that_are_not_supported_are_named(name, keys, words, tmp_path):
    path = gguf_archs.convert(os.path.join(golden.FAMILIES, name), str(tmp_path / "m.gguf"), more=keys)
    refused(path, *words)


def test_decays_with_the_wrong_sign_are_refused(tmp_path):
    for name in ("kimi-linear", "ling-3"):
        w = gguf_files.read(gguf_archs.convert(os.path.join(golden.FAMILIES, name), str(tmp_path / "m.gguf")))
        w.tensors = [(*t[:3], (-numpy.frombuffer(t[3], "<f4", 4)).tobytes()) if t[0].endswith("ssm_a") else t for t in w.tensors]
        refused(w.write(str(tmp_path / "m.gguf")), "has a decay with the wrong sign")


def test_glm_4v(tmp_path, stored):
    """The rows of its q and k are in another order, which only the key of its positions' sections tells."""
    folder = os.path.join(golden.GOLDEN, "glm4")
    w, config = gguf_files.read(gguf_files.convert(folder, str(tmp_path / "m.gguf"))), gguf_archs.read_config(folder)
    size, rotated = config["head_dim"], config["head_dim"] // 2

    def halves(x):
        heads = x.reshape(-1, size, *x.shape[1:])
        parts = [heads[:, :rotated:2], heads[:, 1:rotated:2], heads[:, rotated:]]
        return numpy.concatenate(parts, axis=1).reshape(x.shape)

    w.tensors = [(name, kind, shape, halves(numpy.frombuffer(data, "<f4", numpy.prod(shape)).reshape(shape)).tobytes())
                 if ".attn_q." in name or ".attn_k." in name else (name, kind, shape, data) for name, kind, shape, data in w.tensors]
    w.key("glm4.rope.dimension_sections", [I32], [rotated // 2 - 1, 1, 0, 0])
    w.write(str(tmp_path / "m.gguf"))
    stored(folder)
    golden.check_exact(str(tmp_path / "m.gguf"))


def test_granite_without_its_keys(tmp_path):
    """A file without a scale of scores has the usual one, unlike a folder; and positions, unless a key switches them off."""
    source = os.path.join(golden.GOLDEN, "granite")
    size = gguf_archs.read_config(source)
    size = size.get("head_dim") or size["hidden_size"] // size["num_attention_heads"]
    folder = changed_folder(source, tmp_path / "folder", attention_multiplier=size ** -0.5)
    w = gguf_files.read(gguf_files.convert(source, str(tmp_path / "m.gguf")))
    w.keys = [k for k in w.keys if k[0] != "granite.attention.scale"]
    check_close(w.write(str(tmp_path / "m.gguf")), folder)
    w.key("granite.rope.scaling.finetuned", BOOL, False)
    refused(w.write(str(tmp_path / "m.gguf")), "attention without positions is not supported")


def test_mistral_under_deepseeks_name(tmp_path, stored, monkeypatch):
    """Mistral Large 3's router normalises softmax scores, which DeepSeek V2's does not."""
    folder = os.path.join(golden.FAMILIES, "mistral-small-4")
    monkeypatch.setitem(gguf_archs.FAMILIES, "mistral4", ("deepseek2", *gguf_archs.FAMILIES["mistral4"][1:]))
    path = gguf_archs.convert(folder, str(tmp_path / "m.gguf"))
    stored(folder)
    golden.check_exact(path)
