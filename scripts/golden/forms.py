# SPDX-License-Identifier: Apache-2.0
"""Rewrites saved models of variants.py in other forms: released checkpoints, and conversions by others, often differ from what
transformers saves."""

import json
import re

import torch
from safetensors import safe_open
from safetensors.torch import save_file

# From the model type of the text part to those of wrappers.
WRAPPERS = {
    "aria_text": ["aria"],
    "cohere2": ["aya_vision", "cohere2_vision"],
    "exaone4": ["exaone4_5"],
    "gemma3_text": ["gemma3"],
    "gemma3n_text": ["gemma3n"],
    "gemma4_text": ["gemma4"],
    "gemma4_unified_text": ["gemma4_unified"],
    "granite": ["granite_speech"],
    "kimi_k2": ["kimi_k25"],
    "lfm2": ["lfm2_vl"],
    "llama": ["llava", "llava_next", "idefics3", "smolvlm", "voxtral"],
    "llama4_text": ["llama4"],
    "ministral3": ["mistral3"],
    "mistral": ["mistral3", "idefics2", "llava"],
    "mistral4": ["mistral3"],
    "qwen2": ["internvl", "internvl_chat", "llava_onevision", "qwen2_audio"],
    "qwen3": ["internvl", "internvl_chat", "lighton_ocr"],
    "qwen3_5_text": ["qwen3_5"],
    "qwen3_5_moe_text": ["qwen3_5_moe"],
}
# Text parts of these wrappers belong to this family if their config does not say otherwise.
IMPLIED = {
    "aria": "aria_text",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "exaone4_5": "exaone4",
    "granite_speech": "granite",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "lfm2_vl": "lfm2",
    "lighton_ocr": "qwen3",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "qwen2_audio": "qwen2",
    "smolvlm": "llama",
    "voxtral": "llama",
}
TIED = ("gemma", "cohere2", "lfm2")  # by default
# Families whose fused experts have the gates in columns instead of rows.
BY_COLUMNS = ("llama4_text",)
# Families that we read only in the form of their released files.
ONE_FORM = ("minimax_m3_vl_text", "ernie4_5_vl_moe_text", "gpt_oss", "granitemoe", "granitemoehybrid", "granitemoeshared", "nemotron_h")


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))


def change_tensors(folder, change):
    """Rewrites all tensors into one file; `change` maps the dictionary of tensors to the new one."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    made = {name: tensor.contiguous().clone() for name, tensor in change(tensors).items()}
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})


# ---- forms that transformers can read ----


def full_attention_interval(rng, folder, values):
    """Replaces the list of layer types, which Qwen's class saves, by the key in the released files that it is derived from."""
    config = read_config(folder)
    if "full_attention_interval" in values:
        del config["layer_types"]
        config["full_attention_interval"] = values["full_attention_interval"]
    write_config(folder, config)


def kimi_linear(rng, folder, values):
    """The released files have additional keys, and other names for layers without experts."""
    config = read_config(folder)
    if rng.random() < 0.6:
        kinds = config.pop("layer_types")
        config["linear_attn_config"] = {
            "full_attn_layers": [i + 1 for i, k in enumerate(kinds) if k == "full_attention"],
            "kda_layers": [i + 1 for i, k in enumerate(kinds) if k != "full_attention"],
            "head_dim": config.pop("linear_head_dim"),
            "num_heads": config.pop("linear_num_heads"),
            "short_conv_kernel_size": config.pop("linear_conv_kernel_dim"),
        }
    write_config(folder, config)
    dense = re.compile(r"block_sparse_moe\.(gate|up|down)_proj")
    change_tensors(folder, lambda t: {dense.sub(r"mlp.\1_proj", k): v for k, v in t.items()})


def bailing_hybrid(rng, folder, values):
    """The class does not save the width of its heads."""
    write_config(folder, {**read_config(folder), "head_dim": values.get("head_dim", 128)})


def nemotron_h(rng, folder, values):
    """The released files have letters where the class saves words."""
    config = read_config(folder)
    if rng.random() < 0.6:
        letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
        kinds = config.pop("layers_block_type")
        config["hybrid_override_pattern"] = "".join(letters[k] for k in kinds)
        config["num_hidden_layers"] = len(kinds)
    write_config(folder, config)


def deepseek_v32(rng, folder, values):
    """The released files count the dense layers, have the rate at which layers have experts, and a module that drafts."""
    config = read_config(folder)
    config.pop("layer_types", None)
    n_layers, kinds = config["num_hidden_layers"], config.get("mlp_layer_types", [])
    dense = kinds.count("dense")
    if kinds and kinds == ["dense"] * dense + ["sparse"] * (n_layers - dense):
        del config["mlp_layer_types"]
        config.update(first_k_dense_replace=dense, moe_layer_freq=1)
    write_config(folder, {**config, "num_nextn_predict_layers": 1})
    module = f"model.layers.{n_layers}.self_attn.indexer.k_norm.weight"
    change_tensors(folder, lambda tensors: {**tensors, module: torch.ones(4)})


def mistral_large4_text(rng, folder, values):
    """The released files have a module that drafts."""
    change_tensors(folder, lambda tensors: {**tensors, "mtp_dspark.norm.weight": torch.ones(4)})


def glm_moe_dsa(rng, folder, values):
    """Which layers have an indexer is also written as letters; some files have the tensors of one for all layers."""
    deepseek_v32(rng, folder, values)
    config = read_config(folder)
    config["indexer_rope_interleave"] = True
    kinds = config["indexer_types"]
    if rng.random() < 0.5:
        del config["indexer_types"]
        config["index_topk_pattern"] = "".join(kind[0].upper() for kind in kinds)
    write_config(folder, config)
    unused = [f"model.layers.{i}.self_attn.indexer" for i, kind in enumerate(kinds) if kind == "shared"]
    change_tensors(folder, lambda tensors: {**tensors, **{f"{at}.k_norm.weight": torch.ones(4) for at in unused}})


def axk1(rng, folder, values):
    """The released files have older keys, no correction, and a norm in layers without experts that nothing reads."""
    config = read_config(folder)
    if "mlp_layer_types" not in values:
        del config["mlp_layer_types"]
        for key in ("first_k_dense_replace", "moe_layer_freq"):
            if key in values:
                config[key] = values[key]
        write_config(folder, config)
    if rng.random() < 0.5:
        return

    def change(tensors):
        made = {k: v for k, v in tensors.items() if not k.endswith("e_score_correction_bias")}
        for i in range(config["num_hidden_layers"]):
            norm = f"model.layers.{i}.post_mlp_layernorm.weight"
            made.setdefault(norm, torch.full((config["hidden_size"],), 9.0))
        return made

    change_tensors(folder, change)


def step3p5(rng, folder, values):
    """The released files have other keys, many with a value for each layer and for the layer that drafts."""
    if rng.random() < 0.4:
        return
    config = read_config(folder)
    text = config["text_config"]
    kinds, ropes = text["layer_types"] + ["full_attention"], text.pop("rope_parameters")
    of_kinds = [ropes.get(kind, {"rope_theta": 1e4}) for kind in kinds]
    scaling = {k: v for k, v in ropes.get("full_attention", {}).items() if not k.endswith(("theta", "rotary_factor"))}
    experts = [i for i, kind in enumerate(text.pop("mlp_layer_types")) if kind == "sparse"]
    text.update(
        attention_other_setting={
            "attention_type": "sliding_attention",
            "num_attention_heads": text.pop("num_sliding_attention_heads"),
            "num_attention_groups": text["num_key_value_heads"],
            "head_dim": text["head_dim"],
        },
        layer_types=kinds,
        moe_layers_enum=rng.choice([",".join(map(str, experts)), experts]),
        norm_expert_weight=True,
        num_nextn_predict_layers=1,
        partial_rotary_factors=[one.get("partial_rotary_factor", 1.0) for one in of_kinds],
        rope_theta=[one["rope_theta"] for one in of_kinds],
        use_head_wise_attn_gate=True,
        zero_centered=True,
    )
    if scaling.get("rope_type", "default") != "default":
        text["rope_scaling"] = scaling
    for key in ("swiglu_limits", "swiglu_limits_shared"):
        if text.get(key):
            text[key] = text[key] + [0.0]
    for key, other in (
        ("num_key_value_heads", "num_attention_groups"),
        ("n_routed_experts", "moe_num_experts"),
        ("num_experts_per_tok", "moe_top_k"),
        ("share_expert_dim", "share_expert_dims"),
    ):
        text[other] = text.pop(key)
    for key in ("per_layer_config", "model_type", "mtp_layer_types", "mtp_mlp_layer_types"):
        text.pop(key, None)
    if "query_pre_attn_scalar" not in values:
        del text["query_pre_attn_scalar"]
    write_config(folder, config)


def olmo_hybrid(rng, folder, values):
    """The convolutions of queries, keys and values have the sizes of their heads, while the class saves equal parts; and norms
    of attention layers have other names."""
    config = read_config(folder)
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    sizes = [keys, keys, config["linear_num_value_heads"] * config["linear_value_head_dim"]]
    full = [i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]

    def change(tensors):
        made = dict(tensors)
        for i in range(config["num_hidden_layers"]):
            names = [f"model.layers.{i}.linear_attn.{which}_conv1d.weight" for which in "qkv"]
            if names[0] in made:
                made.update(zip(names, torch.cat([made[n] for n in names]).split(sizes)))
            norm = f"model.layers.{i}.feedforward_layer_norm.weight"
            if i in full and renamed:
                made[norm.replace("feedforward_layer_norm", "post_attention_layernorm")] = made.pop(norm)
        return made

    renamed = rng.random() < 0.5
    change_tensors(folder, change)


def gpt_neox(rng, folder, values):
    """The released files have other names of the rope's base and share, and masks, which are not weights."""
    config = read_config(folder)
    if rng.random() < 0.6:
        for key, name in (("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")):
            if key in config:
                config[name] = config.pop(key)
        write_config(folder, config)
    if rng.random() < 0.5:
        with_masks(folder, config["num_hidden_layers"], "gpt_neox.layers.{}.attention.")


def gpt2(rng, folder, values):
    """The released files have masks, which are not weights, and GPT-2's have no prefix."""
    config = read_config(folder)
    if rng.random() < 0.5:
        with_masks(folder, config["n_layer"], "transformer.h.{}.attn.")
    if rng.random() < 0.5 and config.get("tie_word_embeddings", True):
        change_tensors(folder, lambda tensors: {k.removeprefix("transformer."): v for k, v in tensors.items()})


def with_masks(folder, n_layers, prefix):
    def change(tensors):
        made = dict(tensors)
        for i in range(n_layers):
            made[prefix.format(i) + "bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
            made[prefix.format(i) + "masked_bias"] = torch.tensor(-1e9).half()
        return made

    change_tensors(folder, change)


def hy_v4(rng, folder, values):
    """The modules of hyper-connections, gates and sinks have several names; a module drafts."""
    def saved(name):
        made = name.replace(".hc_pre.", ".")
        for ours, theirs in (("attn", "attn"), ("ffn", "mlp")) if inner else ():
            made = made.replace(f"hc_{theirs}_layer.hc_", f"{ours}_hc.")
        if inner:
            made = made.replace("hc_head.hc_head_", "hc_head.hc_").replace("learnable_sink_param", "sinks")
            return made.replace("linear_gate", "gate_proj")
        made = re.sub(r"(mlp|shared_experts)[.]linear_gate", r"\1.gate_proj", made) if own_gates else made
        return re.sub(r"(_layer|hc_head)\.hc_", r"\1.hc_pre.hc_", made) if before else made

    inner, before, own_gates = rng.random() < 0.3, rng.random() < 0.5, rng.random() < 0.5
    if rng.random() < 0.7:
        change_tensors(folder, lambda tensors: {saved(name): t for name, t in tensors.items()})
    module = {"model.mtp_layers.0.enorm.weight": torch.ones(4)}
    change_tensors(folder, lambda tensors: {**tensors, **module})


def minimax_m3(rng, folder, values):
    """The released files have an object with the indexer's sizes, lists of numbers for the kinds of layers, and a module that
    drafts."""
    if rng.random() < 0.4:
        return
    config = read_config(folder)
    text = config["text_config"]
    kinds, experts = text.pop("layer_types"), text.pop("mlp_layer_types")
    text["moe_layer_freq"] = [int(kind == "sparse") for kind in experts]
    text["sparse_attention_config"] = {
        "use_sparse_attention": True,
        "sparse_attention_freq": [int(kind == "minimax_m3_sparse") for kind in kinds],
        "sparse_num_index_heads": text.pop("index_n_heads"),
        "sparse_index_dim": text.pop("index_head_dim"),
        "sparse_block_size": text.pop("index_block_size"),
        "sparse_topk_blocks": text.pop("index_topk_blocks"),
        "sparse_local_block": text.pop("index_local_blocks"),
        "sparse_score_type": "max",
        "sparse_init_block": 0,
    }
    ropes = text["rope_parameters"]
    text.update(hidden_act="swigluoai", rotary_dim=int(text["head_dim"] * ropes["partial_rotary_factor"]))
    text.update(use_gemma_norm=True, use_qk_norm=True, qk_norm_type="per_head", scoring_func="sigmoid")
    write_config(folder, config)
    module = {"mtp.layers.0.norm.weight": torch.ones(4)}
    change_tensors(folder, lambda tensors: {**tensors, **module})


def minimax(rng, folder, values):
    """Without the decays, which the class also computes; it saves them rounded to the model's dtype."""
    derived = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if not k.endswith(derived)})


RELEASED = {
    "minimax": minimax,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "minimax_m3_vl_text": minimax_m3,
    "step3p5": step3p5,
    "axk1": axk1,
    "olmo_hybrid": olmo_hybrid,
    "bailing_hybrid": bailing_hybrid,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": glm_moe_dsa,
    "hy_v4": hy_v4,
    "axk2": deepseek_v32,
    "mistral_large4_text": mistral_large4_text,
    "kimi_linear": kimi_linear,
    "nemotron_h": nemotron_h,
    "qwen3_next": full_attention_interval,
    "qwen3_5_text": full_attention_interval,
    "qwen3_5_moe_text": full_attention_interval,
}


def release(rng, folder, values, family):
    if family in RELEASED:
        RELEASED[family](rng, folder, values)


# ---- forms that transformers cannot read: applied after transformers has computed ----


def wrapped_names(rng, tensors, wrapper):
    """The model as a wrapper's text part, under one of the names in use, beside parts of other modalities."""
    if wrapper in ("idefics2", "idefics3", "smolvlm"):
        made = {re.sub("^model[.]", "model.text_model.", n): t for n, t in tensors.items()}
        made["model.connector.modality_projection.proj.weight"] = torch.ones(4, 4)
    elif rng.random() < 0.5:
        made = {f"language_model.{name}": t for name, t in tensors.items()}
    else:
        made = {re.sub("^model[.]", "model.language_model.", n): t for n, t in tensors.items()}
    for name in ("vision_tower.blocks.0.weight", "multi_modal_projector.linear_1.weight"):
        made[name] = torch.ones(4, 4)
    return made


def wrap(rng, folder, family):
    text = read_config(folder)
    tied = text.pop("tie_word_embeddings", family.startswith(TIED))
    wrapper = rng.choice(WRAPPERS[family])
    part = "llm_config" if wrapper == "internvl_chat" else "text_config"
    named = IMPLIED.get(wrapper) != family or rng.random() < 0.5
    if rng.random() < 0.5:
        text["tie_word_embeddings"] = not tied  # has no effect in the text part
    config = {
        "model_type": wrapper,
        part: {**text, "model_type": family},
        "vision_config": {"model_type": "none", "hidden_size": 4},
        "tie_word_embeddings": tied,
    }
    if not named:
        del config[part]["model_type"]
    write_config(folder, config)
    change_tensors(folder, lambda tensors: wrapped_names(rng, tensors, wrapper))
    return wrapper


def split(tensors, by_columns):
    """One tensor per matrix of each expert."""
    made = {}
    for name, t in tensors.items():
        place = re.fullmatch(r"(.*experts)\.(gate_up|down)_proj", name)
        if not place:
            made[name] = t
            continue
        for i, one in enumerate(t.transpose(1, 2) if by_columns else t):
            at = f"{place[1]}.{i}"
            if place[2] == "down":
                made[f"{at}.down_proj.weight"] = one
            else:
                made[f"{at}.gate_proj.weight"], made[f"{at}.up_proj.weight"] = one.chunk(2)
    return made


def fuse(tensors):
    """All experts' gate and up matrices in one tensor, all down matrices in another."""
    made, parts = {}, {}
    for name, t in tensors.items():
        place = re.fullmatch(r"(.*experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if place:
            parts.setdefault(place[1], {})[int(place[2]), place[3]] = t
        else:
            made[name] = t
    for at, of in parts.items():
        n = 1 + max(i for i, _ in of)
        made[f"{at}.gate_up_proj"] = torch.stack(
            [torch.cat([of[i, "gate"], of[i, "up"]]) for i in range(n)]
        )
        made[f"{at}.down_proj"] = torch.stack([of[i, "down"] for i in range(n)])
    return made


def other_experts(folder, family):
    def change(tensors):
        if any(name.endswith("experts.gate_up_proj") for name in tensors):
            return split(tensors, family in BY_COLUMNS)
        return tensors if family in BY_COLUMNS else fuse(tensors)

    change_tensors(folder, change)


def omni(folder):
    """The released files have the thinker beside the parts that speak."""
    thinker = read_config(folder)
    config = {
        "model_type": "qwen3_omni_moe",
        "thinker_config": thinker,
        "talker_config": {"text_config": {"hidden_size": 4}},
    }
    write_config(folder, config)
    parts = {f"{name}.weight": torch.ones(4, 4) for name in ("talker.proj", "code2wav.proj")}
    change_tensors(folder, lambda t: {**{f"thinker.{k}": v for k, v in t.items()}, **parts})


def step_alone(folder):
    """Step 3.5, which has no other parts."""
    config = read_config(folder)
    text = {**config["text_config"], "model_type": "step3p5", "tie_word_embeddings": config["tie_word_embeddings"]}
    write_config(folder, text)

    def change(tensors):
        return {k: v for k, v in tensors.items() if not k.startswith(("vision_model", "vit_large"))}

    change_tensors(folder, change)


def minimax_m3_alone(folder):
    """The text part as transformers' text class saves it, with the names of its modules."""
    config = read_config(folder)
    text = {**config["text_config"], "model_type": "minimax_m3_vl_text", "tie_word_embeddings": config["tie_word_embeddings"]}
    write_config(folder, text)

    def change(tensors):
        own = {k.removeprefix("language_model."): v for k, v in tensors.items() if k.startswith("language_model.")}
        made = {}
        for name, t in fuse({re.sub(r"block_sparse_moe\.(experts\.\d+)\.w(\d)", expert_name, k): v for k, v in own.items()}).items():
            name = name.replace("block_sparse_moe.e_score", "mlp.gate.e_score").replace("block_sparse_moe.", "mlp.")
            name = name.replace("self_attn.index_", "self_attn.indexer.")
            if name.endswith(".gate_proj.weight"):
                up = own[next(k for k in own if k.replace("block_sparse_moe.", "mlp.") == name.replace("gate_proj", "up_proj"))]
                made[name.replace("gate_proj", "gate_up_proj")] = torch.cat([t, up])
            elif not name.endswith(".up_proj.weight"):
                made[name] = t
        return made

    change_tensors(folder, change)


def expert_name(place):
    matrix = {"1": "gate", "2": "down", "3": "up"}[place[2]]
    return f"block_sparse_moe.{place[1]}.{matrix}_proj"


def mimo(folder):
    """The released files have other keys, most of which the class ignores. False: a key for them is left out."""
    config = read_config(folder)
    needed = "layer_types mlp_layer_types rms_norm_eps sliding_window num_key_value_heads head_dim".split()
    if any(key not in config for key in needed):
        return False
    n_heads, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    kinds, experts = config.pop("layer_types"), config.pop("mlp_layer_types")
    config.update(
        add_full_attention_sink_bias=False,
        add_swa_attention_sink_bias=True,
        hybrid_layer_pattern=[int(kind == "sliding_attention") for kind in kinds],
        layernorm_epsilon=config.pop("rms_norm_eps"),
        moe_layer_freq=[int(kind == "sparse") for kind in experts],
        sliding_window_size=config.pop("sliding_window") - 1,
        swa_head_dim=config["head_dim"],
        swa_num_attention_heads=n_heads,
        swa_num_key_value_heads=2 * n_kv,
        swa_v_head_dim=config["v_head_dim"],
    )
    config["sliding_window"] = config["sliding_window_size"]
    write_config(folder, config)
    return True


def longcat_flash(folder):
    """The released files have no matrices of experts that return their input, which the class saves a part of."""
    n = read_config(folder)["n_routed_experts"]

    def is_whole(name):
        place = re.search(r"experts\.(\d+)\.", name)
        return not place or int(place[1]) < n

    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if is_whole(k)})


def disguise(rng, folder, family):
    """A short description of the form."""
    told = []
    if family == "longcat_flash":
        longcat_flash(folder)
    if family == "step3p5" and rng.random() < 0.4:
        step_alone(folder)
        told.append("alone")
    if family == "minimax_m3_vl_text" and rng.random() < 0.4:
        minimax_m3_alone(folder)
        told.append("alone")
    if family == "mimo_v2_flash" and rng.random() < 0.4 and mimo(folder):
        told.append("as released")
    if family == "qwen3_omni_moe_text" and rng.random() < 0.7:
        omni(folder)
        told.append("whole")
    if "expert" in (folder / "config.json").read_text() and family not in ONE_FORM:
        if rng.random() < 0.3:
            other_experts(folder, family)
            told.append("experts in the other form")
    if family in WRAPPERS and rng.random() < 0.4:
        told.append("wrapped as " + wrap(rng, folder, family))
    return ", ".join(told)
