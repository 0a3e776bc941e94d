# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF files for tests: given keys and tensors, or a Hugging Face folder as llama.cpp's converter would write it, for the
families that sluice reads from such files."""
import json
import math
import os
import struct

import numpy

import gguf_grids

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", I64: "<q",
        F64: "<d"}
# Tensor types: (number in the file, elements of a block, bytes of a block).
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
         "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110),
         "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18),
         "IQ4_XS": (23, 256, 136), "MXFP4": (39, 32, 17), "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74),
         "IQ3_XXS": (18, 256, 98), "IQ1_S": (19, 256, 50), "IQ3_S": (21, 256, 110), "IQ2_S": (22, 256, 82),
         "IQ1_M": (29, 256, 56), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "Q8_1": (9, 32, 40)}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def string(s):
    data = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, v):
    return string(v) if kind == STRING else struct.pack(PACK[kind], v)


class Writer:
    """keys: (name, type, value), where a list of type T is ([T], values)."""

    def __init__(self, alignment=32):
        self.keys, self.tensors, self.alignment = [], [], alignment

    def key(self, name, kind, v):
        self.keys.append((name, kind, v))

    def tensor(self, name, type_name, shape, data):
        """shape: as in numpy; data: the bytes of the blocks."""
        self.tensors.append((name, type_name, shape, data))

    def padded(self, n):
        return -n % self.alignment

    def bytes(self):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        for name, kind, v in self.keys:
            head += string(name)
            if isinstance(kind, list):
                head += struct.pack("<IIQ", ARRAY, kind[0], len(v)) + b"".join(value(kind[0], x) for x in v)
            else:
                head += struct.pack("<I", kind) + value(kind, v)
        at, data = 0, []
        for name, type_name, shape, blocks in self.tensors:
            head += string(name) + struct.pack("<I", len(shape))
            head += b"".join(struct.pack("<Q", n) for n in reversed(shape))
            head += struct.pack("<IQ", TYPES[type_name][0], at)
            data.append(blocks + bytes(self.padded(len(blocks))))
            at += len(data[-1])
        return head + bytes(self.padded(len(head))) + b"".join(data)

    def write(self, path):
        with open(path, "wb") as f:
            f.write(self.bytes())
        return path


# ---- numbers ----

def to_bf16(x):
    bits = numpy.ascontiguousarray(x, "<f4").view("<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def encode(x, type_name, seed):
    """The array's bytes in a plain type, or random blocks of a quantised type with values of the size of weights."""
    if type_name == "F32":
        return numpy.ascontiguousarray(x, "<f4").tobytes()
    if type_name == "F16":
        return numpy.ascontiguousarray(x, "<f2").tobytes()
    if type_name == "BF16":
        return to_bf16(x).tobytes()
    return random_blocks(type_name, x.size, seed)


# Where blocks have their scales, and the size of scales that gives values of the size of weights.
SCALES = {"Q4_0": ((0, 0.008),), "Q4_1": ((0, 0.008), (2, -0.06)), "Q5_0": ((0, 0.004),), "Q5_1": ((0, 0.004), (2, -0.06)),
          "Q8_0": ((0, 0.0006),), "Q4_K": ((0, 0.00025), (2, 0.002)), "Q5_K": ((0, 0.00012), (2, 0.002)),
          "Q6_K": ((208, 0.00003),), "IQ4_NL": ((0, 0.0006),), "MXFP4": (),
          "Q2_K": ((80, 0.004), (82, 0.006)), "Q3_K": ((108, 0.001),), "IQ4_XS": ((0, 0.00003),),
          "IQ1_S": ((0, 0.008),), "IQ1_M": (), "IQ2_XXS": ((0, 0.001),), "IQ2_XS": ((0, 0.001),), "IQ2_S": ((0, 0.001),),
          "IQ3_XXS": ((0, 0.0004),), "IQ3_S": ((0, 0.0004),), "TQ1_0": ((52, 0.05),), "TQ2_0": ((64, 0.05),)}


def random_blocks(type_name, n, seed):
    _, numbers, n_bytes = TYPES[type_name]
    rng = numpy.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n // numbers, n_bytes), numpy.uint8)
    for at, size in SCALES[type_name]:
        scales = (size * rng.uniform(0.5, 1.5, len(blocks))).astype("<f2")
        blocks[:, at:at + 2] = scales.view(numpy.uint8).reshape(-1, 2)
    if type_name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 122, len(blocks))
    if type_name == "IQ1_M":  # the nibbles of the scale are the high ones of four bytes
        blocks[:, 55] = blocks[:, 55] & 15 | 0x10
    return blocks.tobytes()


def safetensors(folder):
    """The file's tensors by name, as float32."""
    found = {}
    for file in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        with open(os.path.join(folder, file), "rb") as f:
            data = f.read()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            raw = data[8 + n + begin:8 + n + end]
            if t["dtype"] == "BF16":
                x = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
            else:
                x = numpy.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype("<f4")
            found[name] = x.reshape(t["shape"])
    return found


# ---- vocabularies ----

def tokenizer_keys(w, folder, pre="gpt-2", kinds=None):
    """tokenizer.json of a byte-level BPE, or of SentencePiece's BPE, as keys."""
    with open(os.path.join(folder, "tokenizer.json")) as f:
        tok = json.load(f)
    config = {}
    if os.path.exists(os.path.join(folder, "tokenizer_config.json")):
        with open(os.path.join(folder, "tokenizer_config.json")) as f:
            config = json.load(f)
    vocab_keys(w, tok, config, pre)


def vocab_keys(w, tok, config, pre):
    vocab, added = dict(tok["model"]["vocab"]), tok.get("added_tokens", [])
    spm = bool(tok["model"].get("byte_fallback"))
    for a in added:
        vocab[a["content"]] = a["id"]
    n = max(vocab.values()) + 1
    texts = ["[PAD%d]" % i for i in range(n)]
    types = [UNUSED] * n
    for text, i in vocab.items():
        texts[i], types[i] = text, NORMAL
        if spm and len(text) == 6 and text.startswith("<0x"):
            types[i] = BYTE
    for a in added:
        types[a["id"]] = CONTROL if a["special"] else USER_DEFINED
        if a["content"] == tok["model"].get("unk_token"):
            types[a["id"]] = UNKNOWN
    w.key("tokenizer.ggml.model", STRING, "llama" if spm else "gpt2")
    w.key("tokenizer.ggml.pre", STRING, "default" if spm else pre)
    w.key("tokenizer.ggml.tokens", [STRING], texts)
    w.key("tokenizer.ggml.token_type", [I32], types)
    merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
    if spm:
        w.key("tokenizer.ggml.scores", [F32], spm_scores(texts, types, merges))
        prepends = "Prepend" in json.dumps(tok["normalizer"]) or "Metaspace" in json.dumps(tok["pre_tokenizer"])
        w.key("tokenizer.ggml.add_space_prefix", BOOL, prepends)
    else:
        w.key("tokenizer.ggml.merges", [STRING], merges)
    for name in ("bos", "eos", "unk", "pad"):
        text = config.get(name + "_token") or (tok["model"].get("unk_token") if name == "unk" else None)
        text = text["content"] if isinstance(text, dict) else text
        if text in vocab:
            key = {"unk": "unknown", "pad": "padding"}.get(name, name)
            w.key("tokenizer.ggml.%s_token_id" % key, U32, vocab[text])
    if "add_bos_token" in config:
        w.key("tokenizer.ggml.add_bos_token", BOOL, config["add_bos_token"])
    if "chat_template" in config:
        w.key("tokenizer.chat_template", STRING, config["chat_template"])


def spm_scores(texts, types, merges):
    """Scores: lower for pieces that are merged later; lowest for single characters, which no merge produces."""
    rank = {}
    for i, merge in enumerate(merges):
        rank.setdefault(merge.replace(" ", ""), i)
    return [-float(rank.get(t, len(merges) + 1)) if k == NORMAL else 0.0 for t, k in zip(texts, types)]


# ---- models ----

ARCHS = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen2_moe": "qwen2moe",
         "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3",
         "phi3": "phi3", "olmo2": "olmo2", "granite": "granite", "smollm3": "smollm3", "starcoder2": "starcoder2",
         "stablelm": "stablelm", "glm4": "glm4", "gpt_oss": "gpt-oss", "deepseek_v2": "deepseek2",
         "deepseek_v3": "deepseek2", "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
         "gemma4_text": "gemma4", "lfm2": "lfm2", "lfm2_moe": "lfm2moe", "granitemoehybrid": "granitehybrid",
         "falcon_h1": "falcon-h1", "nemotron_h": "nemotron_h_moe"}
PERMUTED = ("llama", "mistral", "mixtral", "granite", "smollm3", "granitemoehybrid")

PARTS = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}
PARTS.update({
    "layer_scalar": "layer_output_scale", "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2"})
PARTS.update({
    "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.dt_bias": "ssm_dt", "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out", "mamba.A_log": "ssm_a", "mamba.D": "ssm_d",
    "block_sparse_moe.router.layer": "ffn_gate_inp", "shared_mlp.output_linear": "ffn_down_shexp",
    "shared_mlp.gate": "ffn_gate_shexp", "shared_mlp.up": "ffn_up_shexp",
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
    "operator_norm": "attn_norm", "embedding_norm": "token_embd_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm", "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.expert_bias": "exp_probs_b", "final_layernorm": "output_norm", "pre_ff_layernorm": "ffn_norm",
    "ffn_norm": "ffn_norm"})
for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down"), ("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down")):
    PARTS["feed_forward." + theirs] = "ffn_" + ours
for part in ("in_proj", "conv1d", "dt_bias", "norm", "out_proj", "A_log", "D"):
    PARTS["mixer." + part] = PARTS["mamba." + part]
PARTS.update({
    "embeddings": "token_embd", "norm_f": "output_norm", "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp", "mixer.gate.e_score_correction_bias": "exp_probs_b",
    "mixer.shared_experts.up_proj": "ffn_up_shexp", "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up"})
HYBRIDS = ("lfm2", "lfm2_moe", "granitemoehybrid", "falcon_h1", "nemotron_h")
TOWERS = ("mtp.", "model.visual.", "model.vision", "model.audio", "model.embed_vision", "model.embed_audio")
GEMMA4_SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
                 "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight"}
DELTA_NETS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
for shared in ("shared_expert", "shared_experts"):
    for half in ("gate", "up", "down"):
        PARTS["mlp.%s.%s_proj" % (shared, half)] = "ffn_%s_shexp" % half
EXPERT = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
SANDWICH = ("gemma2", "gemma3_text", "gemma4_text", "olmo2", "gpt_oss", *DELTA_NETS)  # families whose norm of that name follows attention


def permute(x, heads):
    """Interleaves the rows of each head's two halves."""
    rows = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:])
    return rows.swapaxes(1, 2).reshape(x.shape)


def renamed(name, family):
    """model.layers.N.self_attn.q_proj.weight -> blk.N.attn_q.weight."""
    if family == "nemotron_h" and name.endswith(".norm.weight") and "mixer" not in name:
        return "blk.%s.attn_norm.weight" % name.split(".")[2]
    base = name[len("model."):] if name.startswith("model.") else name
    layer = ""
    if base.startswith("layers."):
        _, number, base = base.split(".", 2)
        layer = "blk.%s." % number
    stem, dot, suffix = base.rpartition(".")
    if suffix not in ("weight", "bias"):
        stem, suffix = base, "bias" if base.endswith("correction_bias") else "weight"
    part = PARTS[stem]
    if stem == "post_attention_layernorm" and family in SANDWICH:
        part = "post_attention_norm"
    return layer + part + "." + suffix


def split_gate_up(tensors, family):
    """Splits GPT-OSS's interleaved gate and up of experts into two tensors."""
    for name in [n for n in tensors if "experts.gate_up_proj" in n]:
        x = tensors.pop(name)
        bias = name.endswith("_bias")
        for i, half in enumerate(("gate", "up")):
            part = x[..., i::2] if bias else x[..., i::2].swapaxes(1, 2)
            tensors[name.split("mlp.")[0] + "ffn_%s_exps.%s" % (half, "bias" if bias else "weight")] = part
    for name in [n for n in tensors if "experts.down_proj" in n]:
        x = tensors.pop(name)
        bias = name.endswith("_bias")
        tensors[name.split("mlp.")[0] + "ffn_down_exps." + ("bias" if bias else "weight")] = x if bias else x.swapaxes(1, 2)


def split_gate_up_rows(tensors):
    """The same for rows of gate, then of up."""
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        x, layer = tensors.pop(name), name.split("mlp.")[0]
        if "down" in name:
            tensors[layer + "ffn_down_exps.weight"] = x
        else:
            tensors[layer + "ffn_gate_exps.weight"], tensors[layer + "ffn_up_exps.weight"] = numpy.split(x, 2, axis=1)


def stack_experts(tensors):
    stacks = {}
    for name in [n for n in tensors if ".experts." in n]:
        before, after = name.split(".experts.")
        number, part = after.split(".", 1)
        layer = before.rsplit(".", 1)[0]
        key = "%s.ffn_%s_exps.weight" % (layer, EXPERT[part.rsplit(".", 1)[0]])
        stacks.setdefault(key, {})[int(number)] = tensors.pop(name)
    for name, experts in stacks.items():
        tensors[name] = numpy.stack([experts[i] for i in range(len(experts))])


def stack_norms(tensors):
    """The norms of all heads' q or k as one tensor."""
    stacks = {}
    for name in [n for n in tensors if "_layernorm.norms." in n]:
        base, number, suffix = name.rsplit(".", 2)
        stacks.setdefault("%s.%s" % (base.removesuffix(".norms"), suffix), {})[int(number)] = tensors.pop(name)
    for name, norms in stacks.items():
        tensors[name] = numpy.stack([norms[i] for i in range(len(norms))])


def split_by_key_head(x, config):
    """Qwen3-Next's rows are by key head; the file has all queries, keys, values, and gates."""
    groups, r = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    parts = numpy.split(x.reshape(groups, -1, x.shape[-1]), numpy.cumsum([dk, dk, r * dv]), axis=1)
    q, k, v, z = (part.reshape(-1, x.shape[-1]) for part in parts)
    return numpy.concatenate([q, k, v]), z


def tiled(x, config, size, axis=0):
    """Value heads by their place among those of a key head first."""
    groups, r = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    x = numpy.moveaxis(x, axis, 0)
    heads = x.reshape(groups, r, size, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return numpy.moveaxis(heads, 0, axis)


def delta_net(name, x, config):
    """(name, array) of a tensor of a delta net."""
    layer, part = name.split("linear_attn.")
    values, keys = config["linear_value_head_dim"], 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if part == "in_proj_qkvz.weight":
        qkv, z = split_by_key_head(x, config)
        yield layer + "linear_attn.in_proj_qkv.weight", qkv
        yield layer + "linear_attn.in_proj_z.weight", z
        return
    if part == "conv1d.weight":
        x = x.reshape(x.shape[0], x.shape[2])
    if config["model_type"] != "qwen3_next":
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            x = numpy.concatenate([x[:keys], tiled(x[keys:], config, values)])
        elif part == "out_proj.weight":
            x = tiled(x, config, values, 1)
        elif part != "norm.weight":
            x = tiled(x, config, values if part == "in_proj_z.weight" else 1)
    yield name, -numpy.exp(x) if part == "A_log" else x


def factor(name, config):
    """The factor of Falcon-H1's weights."""
    inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    parts = numpy.repeat(config["ssm_multipliers"], [inner, inner, state, state, config["mamba_n_heads"]])
    attention = config["attention_in_multiplier"]
    return {"feed_forward.down_proj": config["mlp_multipliers"][1], "feed_forward.gate_proj": config["mlp_multipliers"][0],
            "self_attn.k_proj": config["key_multiplier"] * attention, "self_attn.q_proj": attention,
            "self_attn.v_proj": attention, "self_attn.o_proj": config["attention_out_multiplier"],
            "mamba.out_proj": config["ssm_out_multiplier"],
            "mamba.in_proj": (config["ssm_in_multiplier"] * parts)[:, None],
            "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
            }.get(name.removesuffix(".weight").split(".", 3)[-1].removeprefix("model."), 1.0)


def hybrid(name, x, config):
    """(name, array) of a tensor of a model with short convolutions or Mamba-2."""
    if config["model_type"] == "falcon_h1":
        x = x * factor(name, config)
    if "conv.conv" in name or name.endswith("conv1d.weight"):
        x = x.reshape(x.shape[0], x.shape[2])
    elif name.endswith((".A_log", ".D")):
        x = (-numpy.exp(x) if name.endswith("A_log") else x)[:, None]
    elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        x = x.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
    elif name.endswith("input_linear.weight") or "block_sparse_moe.output_linear" in name:
        stem = name.rsplit(".", 2)[0]
        if "output" in name:
            yield stem.removesuffix("block_sparse_moe") + "ffn_down_exps.weight", x
            return
        for half, part in zip(("gate", "up"), numpy.split(x, 2, axis=-2)):
            yield (stem + "." + half + ".weight" if "shared" in name
                   else stem.removesuffix("block_sparse_moe") + "ffn_%s_exps.weight" % half), part
        return
    yield name, x


def model_tensors(folder, config):
    """(name, array) in GGUF's names and conventions."""
    family, tensors = config["model_type"], safetensors(folder)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    if family == "gpt_oss":
        split_gate_up(tensors, family)
    tensors = {n.replace("language_model.", ""): x for n, x in tensors.items() if not n.startswith(TOWERS)}
    tensors = {n.replace("backbone.", "model."): x for n, x in tensors.items()}
    if family in DELTA_NETS:
        split_gate_up_rows(tensors)
        tensors = {n: y for name, x in tensors.items()
                   for n, y in (delta_net(name, x, config) if "linear_attn." in name else [(name, x)])}
    if family in HYBRIDS:
        tensors = {n: y for name, x in tensors.items() for n, y in hybrid(name, x, config)}
    if family == "gemma4_text":
        for name in [n for n in tensors if n.split(".", 3)[-1] in GEMMA4_SCALES]:
            yield "blk.%s.%s" % (name.split(".")[2], GEMMA4_SCALES[name.split(".", 3)[-1]]), tensors.pop(name)
    stack_experts(tensors)
    if family == "stablelm":
        stack_norms(tensors)
    for name, x in tensors.items():
        if "_exps." in name:
            yield name.replace("model.layers.", "blk."), x
            continue
        if family in PERMUTED and ("q_proj" in name or "k_proj" in name):
            x = permute(x, heads if "q_proj" in name else kv_heads)
        plus_one = (family.startswith("gemma") and family != "gemma4_text") or (family in DELTA_NETS and "linear_attn" not in name)
        if plus_one and name.endswith("norm.weight"):
            x = x + 1.0
        states = tuple(at + part for at in ("mamba.", "mixer.") for part in ("A_log", "D", "dt_bias"))
        if name.endswith((*states, "expert_bias")) or (
                family == "falcon_h1" and "pre_ff_layernorm" in name):
            bias = ".bias" if name.endswith("bias") else ""
            yield "blk.%s.%s%s" % (name.split(".")[2], PARTS[name.removesuffix(".weight").split(".", 3)[-1]], bias), x
            continue
        if name.endswith(("linear_attn.A_log", "linear_attn.dt_bias")):
            layer = name.split(".")[2]
            yield ("blk.%s.ssm_a" if name.endswith("A_log") else "blk.%s.ssm_dt.bias") % layer, x
            continue
        if "shared_expert_gate" in name:
            x = x.reshape(-1)
        yield renamed(name, family), x


def llama3_divisors(rope, dim, theta):
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (i / dim)
        low, high = (rope["original_max_position_embeddings"] / rope[k] for k in ("low_freq_factor", "high_freq_factor"))
        if wavelength < high:
            divisors.append(1.0)
        elif wavelength > low:
            divisors.append(rope["factor"])
        else:
            smooth = (low / wavelength * rope["low_freq_factor"] - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return divisors


def rope_keys(w, arch, config, head_dim):
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    both = rope.get("full_attention", rope)
    kind = both.get("rope_type") or both.get("type") or "default"
    theta = both.get("rope_theta", config.get("rope_theta", 10000.0))
    partial = both.get("partial_rotary_factor", config.get("partial_rotary_factor", FRACTION.get(config["model_type"], 1.0)))
    dim = int(head_dim * partial)
    if config["model_type"].startswith("deepseek"):
        dim = config["qk_rope_head_dim"]
    w.key(arch + ".rope.freq_base", F32, theta)
    w.key(arch + ".rope.dimension_count", U32, dim)
    original = both.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    if kind in ("linear", "yarn"):
        w.key(arch + ".rope.scaling.type", STRING, kind)
        w.key(arch + ".rope.scaling.factor", F32, both["factor"])
    if kind == "yarn":
        w.key(arch + ".rope.scaling.original_context_length", U32, original)
        if both.get("mscale_all_dim"):
            w.key(arch + ".rope.scaling.yarn_log_multiplier", F32, 0.1 * both["mscale_all_dim"])
    if kind == "llama3":
        w.tensor("rope_freqs.weight", "F32", (dim // 2,),
                 numpy.array(llama3_divisors(both, dim, theta), "<f4").tobytes())
    if kind == "longrope":
        w.key(arch + ".rope.scaling.original_context_length", U32, original)
        grown = both.get("factor") or config["max_position_embeddings"] / original
        attention = both.get("attention_factor") or math.sqrt(1 + math.log(grown) / math.log(original))
        w.key(arch + ".rope.scaling.attn_factor", F32, attention)
        for half in ("long", "short"):
            w.tensor("rope_factors_%s.weight" % half, "F32", (dim // 2,),
                     numpy.array(both[half + "_factor"], "<f4").tobytes())


FRACTION = {"glm4": 0.5, "stablelm": 0.25, "qwen3_next": 0.25}
HEAD_DIM = {"gemma": 256, "gemma2": 256, "gemma3_text": 256, "glm4": 128, "qwen3": 128}


def model_keys(w, config):
    family = config["model_type"]
    arch = ARCHS[family]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or HEAD_DIM.get(family) or config["hidden_size"] // heads
    w.key("general.architecture", STRING, arch)
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts")
    mla = family.startswith("deepseek")
    rows = [
        ("context_length", U32, config.get("max_position_embeddings", 2048)),
        ("embedding_length", U32, config["hidden_size"]), ("block_count", U32, config["num_hidden_layers"]),
        ("feed_forward_length", U32, config.get("intermediate_size")), ("attention.head_count", U32, heads),
        ("attention.head_count_kv", U32, config.get("num_key_value_heads") or heads),
        ("attention.key_length", U32, config["qk_nope_head_dim"] + config["qk_rope_head_dim"] if mla else head_dim),
        ("attention.value_length", U32, config["v_head_dim"] if mla else head_dim),
        ("vocab_size", U32, config["vocab_size"]),
        ("expert_count", U32, experts), ("expert_used_count", U32, config.get("num_experts_per_tok") if experts else None),
        ("expert_feed_forward_length", U32, config.get("moe_intermediate_size") or (config["intermediate_size"] if family == "gpt_oss" else None)),
        ("expert_shared_feed_forward_length", U32, config.get("shared_expert_intermediate_size")),
        ("attn_logit_softcapping", F32, config.get("attn_logit_softcapping")),
        ("final_logit_softcapping", F32, config.get("final_logit_softcapping")),
        ("embedding_scale", F32, config.get("embedding_multiplier")),
        ("residual_scale", F32, config.get("residual_multiplier")), ("logit_scale", F32, config.get("logits_scaling")),
        ("attention.scale", F32, config.get("attention_multiplier")),
        ("attention.q_lora_rank", U32, config.get("q_lora_rank")),
        ("attention.kv_lora_rank", U32, config.get("kv_lora_rank")),
        ("expert_shared_count", U32, config.get("n_shared_experts")),
        ("leading_dense_block_count", U32, config.get("first_k_dense_replace")),
        ("expert_weights_scale", F32, config.get("routed_scaling_factor")),
        ("expert_gating_func", U32, {"deepseek_v2": 1, "deepseek_v3": 2}.get(family)),
        ("expert_weights_norm", BOOL, config.get("norm_topk_prob") if family == "deepseek_v3" else None),
        ("expert_group_count", U32, config.get("n_group")), ("expert_group_used_count", U32, config.get("topk_group")),
        ("use_parallel_residual", BOOL, config.get("use_parallel_residual") if family == "stablelm" else None),
    ]
    if family in DELTA_NETS:
        heads = config["linear_num_value_heads"]
        rows += [("ssm.conv_kernel", U32, config["linear_conv_kernel_dim"]), ("ssm.state_size", U32, config["linear_key_head_dim"]),
                 ("ssm.group_count", U32, config["linear_num_key_heads"]), ("ssm.time_step_rank", U32, heads),
                 ("ssm.inner_size", U32, config["linear_value_head_dim"] * heads),
                 ("full_attention_interval", U32, config.get("full_attention_interval", 4))]
    if family in ("gemma2", "gemma3_text", "gpt_oss", "phi3"):
        rows.append(("attention.sliding_window", U32, config.get("sliding_window")))
    layer_norm = config.get("layer_norm_eps") or config.get("norm_epsilon")
    if family in ("starcoder2", "stablelm"):
        rows.append(("attention.layer_norm_epsilon", F32, layer_norm or 1e-5))
    else:
        rows.append(("attention.layer_norm_rms_epsilon", F32, config.get("rms_norm_eps", 1e-6)))
    for name, kind, v in rows:
        if v is not None:
            w.key(arch + "." + name, kind, v)
    rope_keys(w, arch, config, head_dim)


def nemotron_keys(w, config):
    arch, pattern, heads = "nemotron_h_moe", config["hybrid_override_pattern"], config["mamba_num_heads"]
    kv, ffn = config["num_key_value_heads"], config["moe_intermediate_size"]
    rows = {"attention.head_count_kv": ([U32], [kv if kind == "*" else 0 for kind in pattern]),
            "feed_forward_length": ([U32], [ffn if kind == "E" else 0 for kind in pattern]),
            "attention.layer_norm_epsilon": (F32, config["layer_norm_epsilon"]),
            "ssm.conv_kernel": (U32, config["conv_kernel"]), "ssm.state_size": (U32, config["ssm_state_size"]),
            "ssm.group_count": (U32, config["n_groups"]), "ssm.time_step_rank": (U32, heads),
            "ssm.inner_size": (U32, heads * config["mamba_head_dim"]), "rope.scaling.finetuned": (BOOL, False),
            "expert_shared_feed_forward_length": (U32, config["moe_shared_expert_intermediate_size"]),
            "expert_weights_norm": (BOOL, config["norm_topk_prob"])}
    if config.get("moe_latent_size"):
        rows["moe_latent_size"] = (U32, config["moe_latent_size"])
    w.keys = [k for k in w.keys if k[0][len(arch) + 1:] not in (*rows, "attention.layer_norm_rms_epsilon")]
    for name, (kind, v) in rows.items():
        w.key(arch + "." + name, kind, v)


def hybrid_keys(w, config):
    """Replaces the keys of models with layers without attention, and adds those of their states."""
    family, arch = config["model_type"], ARCHS[config["model_type"]]
    layers, kv = config["num_hidden_layers"], config["num_key_value_heads"]
    if family == "nemotron_h":
        nemotron_keys(w, config)
        return
    kinds = config.get("layer_types") or ["attention" if i in config.get("full_attn_idxs", range(layers)) else "conv"
                                          for i in range(layers)]
    rows = {"attention.head_count_kv": ([U32], [kv if "attention" in kind else 0 for kind in kinds]),
            "attention.layer_norm_rms_epsilon": (F32, config.get("norm_eps") or config["rms_norm_eps"])}
    if family == "falcon_h1":
        rows["attention.head_count_kv"] = (U32, kv)
    if family.startswith("lfm2"):
        unit, ffn = config.get("block_multiple_of", 1), config.get("block_ff_dim")
        ffn = config["intermediate_size"] if ffn is None else -(-int(2 * ffn / 3) // unit) * unit
        rows.update({"shortconv.l_cache": (U32, config["conv_L_cache"]), "feed_forward_length": (U32, ffn)})
        if family == "lfm2_moe":
            rows["leading_dense_block_count"] = (U32, config["num_dense_layers"])
    else:
        inner = config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"]
        rows.update({"ssm.conv_kernel": (U32, config["mamba_d_conv"]), "ssm.state_size": (U32, config["mamba_d_state"]),
                     "ssm.group_count": (U32, config["mamba_n_groups"]), "ssm.time_step_rank": (U32, config["mamba_n_heads"]),
                     "ssm.inner_size": (U32, int(inner))})
    if family == "granitemoehybrid":
        rows.update({"expert_shared_feed_forward_length": (U32, config["shared_intermediate_size"]),
                     "rope.scaling.finetuned": (BOOL, config.get("position_embedding_type") == "rope")})
    w.keys = [k for k in w.keys if k[0][len(arch) + 1:] not in rows]
    for name, (kind, v) in rows.items():
        w.key(arch + "." + name, kind, v)


def gemma4_keys(w, config):
    """Replaces the keys in which layers differ."""
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    full = [kind == "full_attention" for kind in config["layer_types"]]
    ffn = [config["intermediate_size"] * (1 + (i >= layers - shared)) for i in range(layers)]
    kv = [config["num_global_key_value_heads"] if is_full else config["num_key_value_heads"] for is_full in full]
    ropes = config["rope_parameters"]
    rows = {"feed_forward_length": ([U32], ffn) if config["use_double_wide_mlp"] else (U32, ffn[0]),
            "attention.head_count_kv": ([U32], kv) if config["num_global_key_value_heads"] else (U32, config["num_key_value_heads"]),
            "attention.key_length": (U32, config["global_head_dim"]), "attention.value_length": (U32, config["global_head_dim"]),
            "attention.key_length_swa": (U32, config["head_dim"]), "attention.value_length_swa": (U32, config["head_dim"]),
            "attention.sliding_window": (U32, config["sliding_window"]),
            "attention.sliding_window_pattern": ([BOOL], [not is_full for is_full in full]),
            "attention.shared_kv_layers": (U32, shared), "expert_used_count": (U32, config.get("top_k_experts")),
            "embedding_length_per_layer_input": (U32, config.get("hidden_size_per_layer_input", 0)),
            "rope.freq_base": (F32, ropes["full_attention"]["rope_theta"]),
            "rope.freq_base_swa": (F32, ropes["sliding_attention"]["rope_theta"]),
            "rope.dimension_count": (U32, config["global_head_dim"]), "rope.dimension_count_swa": (U32, config["head_dim"])}
    w.keys = [k for k in w.keys if k[0][len("gemma4."):] not in rows]
    for name, (kind, v) in rows.items():
        if v is not None:
            w.key("gemma4." + name, kind, v)
    pairs = config["global_head_dim"] // 2
    rotated = int(pairs * ropes["full_attention"]["partial_rotary_factor"])
    divisors = numpy.array([1.0] * rotated + [1e30] * (pairs - rotated), "<f4")
    w.tensor("rope_freqs.weight", "F32", (pairs,), divisors.tobytes())


def convert(folder, path, type_of=lambda name, x: "F32", pre="gpt-2", more=()):
    """type_of: the type in which a matrix is stored; vectors are F32."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    config = {**config, **config.get("text_config", {})}
    config["model_type"] = config["model_type"].replace("gemma4_unified_text", "gemma4_text")
    w = Writer()
    model_keys(w, config)
    if config["model_type"] == "gemma4_text":
        gemma4_keys(w, config)
    if config["model_type"] in HYBRIDS:
        hybrid_keys(w, config)
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        tokenizer_keys(w, folder, pre)
    for row in more:
        w.key(*row)
    for i, (name, x) in enumerate(model_tensors(folder, config)):
        kind = type_of(name, x) if x.ndim > 1 and "ffn_gate_inp" not in name and not name.endswith("bias") else "F32"
        w.tensor(name, kind, x.shape, encode(x, kind, i))
    return w.write(path)


# ---- values of blocks, for tests that compare with the same values stored plainly ----

NL4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
SHIFTS = numpy.array([0, 2, 4, 6], numpy.uint8)
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def halves(blocks, at):
    return numpy.ascontiguousarray(blocks[:, at:at + 2]).view("<f2").astype("<f4")


def nibbles(b):
    """Along the last axis: the low nibbles of all bytes, then the high ones."""
    return numpy.concatenate([b & 15, b >> 4], axis=-1).astype("<f4")


def bits(b):
    return numpy.unpackbits(numpy.ascontiguousarray(b), axis=-1, bitorder="little").astype("<f4")


def six_bit_pairs(b):
    """[blocks, 8] scales and minima of Q4_K and Q5_K."""
    low, high, rest = b[:, 0:4], b[:, 4:8], b[:, 8:12]
    scale = numpy.concatenate([low & 63, (rest & 15) | (low >> 6 << 4)], axis=1)
    least = numpy.concatenate([high & 63, (rest >> 4) | (high >> 6 << 4)], axis=1)
    return scale.astype("<f4"), least.astype("<f4")


def decode(type_name, data):
    """The blocks' values as float32, row by row."""
    b = numpy.frombuffer(data, numpy.uint8).reshape(-1, TYPES[type_name][2])
    if type_name in gguf_grids.FORMATS:
        return gguf_grids.FORMATS[type_name](type_name, b).ravel()
    if type_name in ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL"):
        d = halves(b, 0)
        if type_name == "Q4_0":
            return ((nibbles(b[:, 2:]) - 8) * d).ravel()
        if type_name == "Q5_0":
            return ((nibbles(b[:, 6:]) + 16 * bits(b[:, 2:6]) - 16) * d).ravel()
        if type_name == "Q8_0":
            return (b[:, 2:].view(numpy.int8).astype("<f4") * d).ravel()
        return (numpy.array(NL4, "<f4")[nibbles(b[:, 2:]).astype(int)] * d).ravel()
    if type_name == "MXFP4":
        power = numpy.exp2(b[:, :1].astype("<f4") - 127)
        return (numpy.array(E2M1, "<f4")[nibbles(b[:, 1:]).astype(int)] * power).ravel()
    if type_name in ("Q4_1", "Q5_1"):
        q = nibbles(b[:, 4:]) if type_name == "Q4_1" else nibbles(b[:, 8:]) + 16 * bits(b[:, 4:8])
        return (q * halves(b, 0) + halves(b, 2)).ravel()
    if type_name == "Q6_K":
        q = nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
        high = b[:, 128:192].reshape(-1, 2, 1, 32) >> numpy.array([0, 2, 4, 6], numpy.uint8).reshape(4, 1) & 3
        scale = halves(b, 208) * b[:, 192:208].view(numpy.int8).astype("<f4")
        return ((q + 16 * high.reshape(-1, 256) - 32).reshape(-1, 16, 16) * scale[:, :, None]).ravel()
    if type_name in ("Q2_K", "Q3_K"):
        at = 16 if type_name == "Q2_K" else 32
        q = (b[:, at:at + 64].reshape(-1, 2, 1, 32) >> SHIFTS.reshape(4, 1) & 3).reshape(-1, 16, 16).astype("<f4")
        if type_name == "Q2_K":
            steps, least = (b[:, :16] & 15).astype("<f4"), (b[:, :16] >> 4).astype("<f4")
            return (q * (halves(b, 80) * steps)[:, :, None] - (halves(b, 82) * least)[:, :, None]).ravel()
        high = b[:, :32].reshape(-1, 1, 32) >> numpy.arange(8, dtype=numpy.uint8).reshape(8, 1) & 1
        low = numpy.concatenate([b[:, 96:104] & 15, b[:, 96:104] >> 4], axis=1)
        top = (b[:, 104:108].reshape(-1, 1, 4) >> SHIFTS.reshape(4, 1) & 3).reshape(-1, 16)
        scale = halves(b, 108) * ((low | top << 4).astype("<f4") - 32)
        return ((q + 4 * high.reshape(-1, 16, 16) - 4) * scale[:, :, None]).ravel()
    if type_name == "IQ4_XS":
        low = numpy.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8)
        top = numpy.concatenate([b[:, 2:3] >> SHIFTS & 3, b[:, 3:4] >> SHIFTS & 3], axis=1)
        scale = halves(b, 0) * ((low | top << 4).astype("<f4") - 32)
        codes = nibbles(b[:, 8:].reshape(-1, 8, 16)).astype(int)
        return (numpy.array(NL4, "<f4")[codes] * scale[:, :, None]).ravel()
    scale, least = six_bit_pairs(b[:, 4:16])
    q = nibbles(b[:, 16:].reshape(-1, 4, 32) if type_name == "Q4_K" else b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    if type_name == "Q5_K":
        high = b[:, 16:48].reshape(-1, 1, 32) >> numpy.arange(8, dtype=numpy.uint8).reshape(8, 1) & 1
        q = q + 16 * high
    return (q * (halves(b, 0) * scale)[:, :, None] - (halves(b, 2) * least)[:, :, None]).ravel()


def plain_twin(path, out):
    """The same file with all quantised matrices as F32."""
    w = read(path)
    w.tensors = [(name, kind, shape, data) if kind in ("F32", "F16", "BF16")
                 else (name, "F32", shape, decode(kind, data).astype("<f4").tobytes())
                 for name, kind, shape, data in w.tensors]
    return w.write(out)


def read(path):
    """Reads a file that a Writer wrote."""
    with open(path, "rb") as f:
        data = f.read()
    at = 24
    n_tensors, n_keys = struct.unpack("<QQ", data[8:24])

    def take(fmt):
        nonlocal at
        at += struct.calcsize(fmt)
        return struct.unpack(fmt, data[at - struct.calcsize(fmt):at])[0]

    def text():
        nonlocal at
        n = take("<Q")
        at += n
        return data[at - n:at]

    def one(kind):
        return text() if kind == STRING else take(PACK[kind])

    w, infos = Writer(), []
    for _ in range(n_keys):
        name, kind = text().decode(), take("<I")
        if kind == ARRAY:
            kind, n = [take("<I")], take("<Q")
            w.key(name, kind, [one(kind[0]) for _ in range(n)])
        else:
            w.key(name, kind, one(kind))
    names = {number: kind for kind, (number, _, _) in TYPES.items()}
    for _ in range(n_tensors):
        name, n = text().decode(), take("<I")
        shape = tuple(reversed([take("<Q") for _ in range(n)]))
        infos.append((name, names[take("<I")], shape, take("<Q")))
    at += w.padded(at)
    for name, kind, shape, offset in infos:
        n = math.prod(shape) // TYPES[kind][1] * TYPES[kind][2]
        w.tensor(name, kind, shape, data[at + offset:at + offset + n])
    return w
