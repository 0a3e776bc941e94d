# SPDX-License-Identifier: Apache-2.0
"""Random forms of each quantised format, for quant_variants.py. A row of FORMATS takes a model's matrices by module and
returns the tensors to store, the values they stand for, and the config; which modules stay unquantised, and how the
config lists them, is random as well."""

import fnmatch
import json
import re

import torch

import forms
import quant_codes as codes

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
KINDS = ("q_proj", "down_proj", "o_proj", "self_attn", "mlp", "up_proj")


def chance(rng, p):
    return rng.random() < p


def maybe(rng, config, **values):
    """Randomly some of these keys, or all of them as null."""
    for key, value in values.items():
        if chance(rng, 0.5):
            config[key] = value
    return config


def encode_all(modules, encode):
    made, values = {}, {}
    for module, w in modules.items():
        tensors, values[module] = encode(module, w)
        made.update({module + suffix: t for suffix, t in tensors.items()})
    return made, values


def inputs_of(made, values, rng, name):
    """A calibrated scale for each module's inputs."""
    for module in values:
        made[module + name] = torch.tensor(rng.uniform(0.01, 0.1)).reshape(rng.choice([[], [1]]))


# ---- which modules are left alone ----


def chosen(rng, modules, style, head=True):
    """The modules that stay unquantised, and the list that names them."""
    layers = sorted({m.group(0) for m in (re.search(r"layers\.\d+", n) for n in modules) if m})
    entries = ["lm_head"] if head else []
    if style == "name":
        entries += rng.sample(list(modules), rng.choice([0, 0, 1, 3]) if len(modules) > 3 else 0)
    for _ in range(rng.choice([0, 0, 1, 2])):
        kind, layer = rng.choice(KINDS), rng.choice(layers)
        entries.append(
            {
                "name": rng.choice(
                    [
                        f"re:.*{kind}.*",
                        f"re:.*{layer}[.].*{kind}",
                        f"re:model[.]{layer}[.].*{kind}.*",
                        "re:.*vision.*",
                        f"re:(?!.*{kind}).*lm_head$",
                    ]
                ),
                "part": rng.choice([kind, layer, f"model.{layer}", "visual", f"{layer}.self_attn", "mlp.gate."]),
                "glob": rng.choice(
                    [f"*{kind}*", f"model.{layer}.*", f"*.{kind}", f"model.{layer}.self_attn*", "*visual*"]
                ),
            }[style]
        )
    plain = {m for m in modules if any(names(e, m, style) for e in entries)}
    return plain, entries


def names(entry, module, style):
    if entry.startswith("re:"):
        return re.match(entry[3:], module) is not None
    if style == "part":
        return f".{entry.strip('.')}." in f".{module}."
    if style == "glob" and "*" in entry:
        parts = module.split(".")
        return any(fnmatch.fnmatch(".".join(parts[:i]), entry) for i in range(1, len(parts) + 1))
    return entry == module


def divided(rng, modules, style, fits, head=True):
    """The modules to quantise, and the list of the others."""
    plain, entries = chosen(rng, modules, style, head)
    misfits = [m for m, w in modules.items() if m not in plain and not fits(w)]
    rest = {m: w for m, w in modules.items() if m not in plain and m not in misfits}
    if not rest:  # nothing would be tested
        return {m: w for m, w in modules.items() if fits(w) and m != "lm_head"}, [
            "lm_head",
            *[m for m, w in modules.items() if not fits(w)],
        ]
    return rest, entries + misfits


# ---- the formats ----


def fp8(rng, modules, model):
    kind = rng.choice(["tensor", "channel", "block", "block"])
    static = kind != "block" and chance(rng, 0.5)
    dtype = rng.choice([torch.float32, torch.bfloat16])
    config = {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic"}
    maybe(rng, config, fmt="e4m3", kv_cache_scheme=None)
    chosen_modules, entries = divided(rng, modules, "part", lambda w: True)
    key = rng.choice(["ignored_layers", "modules_to_not_convert"])
    if entries == ["lm_head"] and chance(rng, 0.5):
        config[key] = None
    else:
        config[key] = entries
    if kind == "block":
        block = rng.choice([(128, 128), (128, 128), (64, 128), (128, 64), (32, 32)])
        config["weight_block_size"] = list(block)
        name = rng.choice([".weight_scale_inv", ".weight_scale"])
        one = lambda m, w: codes.fp8(w, block, dtype, name)
    elif kind == "tensor":
        shape = rng.choice([[], [1], [1, 1]])
        maybe(rng, config, weight_block_size=None)
        one = lambda m, w: codes.fp8(w, tuple(w.shape), dtype, ".weight_scale", shape)
    else:
        shape = rng.choice([[-1, 1], [-1]])
        one = lambda m, w: codes.fp8(w, (1, w.shape[1]), dtype, ".weight_scale", shape)
    made, values = encode_all(chosen_modules, one)
    if static:
        inputs_of(made, values, rng, rng.choice([".input_scale", ".activation_scale"]))
    return made, values, config


def ct_args(rng, **values):
    """Arguments of a quantisation: all keys, as the library dumps them, or only those that differ from its defaults."""
    usual = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": None,
        "num_bits": 8,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": "tensor",
        "symmetric": True,
        "type": "int",
    }
    return {**usual, **values} if chance(rng, 0.6) else values


def ct_scheme(rng, form):
    """(format, weights, input_activations, fits, encode, scale of inputs)."""
    dtype = rng.choice(DTYPES)
    asym = chance(rng, 0.4)
    if form == "pack-quantized":
        bits, group = rng.choice([4, 4, 8, 2]), rng.choice([16, 32, 64, 128, None])
        order = rng.choice([None, "weight", "static", "group"]) if group else None
        weights = dict(num_bits=bits, type="int", symmetric=not asym, strategy="group" if group else "channel")
        if group:
            weights["group_size"] = group
        elif chance(rng, 0.5):
            weights["group_size"] = -1
        if order:
            weights["actorder"] = order

        def encode(m, w):
            groups = None
            if order == "group":
                groups = torch.arange(w.shape[1]) // group
                groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(len(m)))]
            return codes.packed(w, bits, group or w.shape[1], dtype, asym, groups)

        return form, ct_args(rng, **weights), None, (lambda w: not group or w.shape[1] % group == 0), encode, None
    if form == "int-quantized":
        kind = rng.choice(["channel", "channel", "tensor", "group"])
        asym = asym and kind != "tensor"
        weights = dict(num_bits=8, type="int", symmetric=not asym, strategy=kind)
        group = 32 if kind == "group" else 0
        if group:
            weights["group_size"] = group
        inputs = rng.choice(
            [
                None,
                dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True),
                dict(num_bits=8, type="int", symmetric=False, strategy="token", dynamic=True),
                dict(num_bits=8, type="int", symmetric=True, strategy="tensor", dynamic=False),
            ]
        )
        scale = ".input_scale" if inputs and not inputs["dynamic"] else None
        encode = lambda m, w: codes.int8(w, group or w.shape[1], dtype, asym, kind == "tensor")
        return (
            rng.choice([form, "naive-quantized"]),
            ct_args(rng, **weights),
            inputs and ct_args(rng, **inputs),
            (lambda w: not group or w.shape[1] % group == 0),
            encode,
            scale,
        )
    if form == "float-quantized":
        kind = rng.choice(["channel", "tensor", "block", "group"])
        weights = dict(num_bits=8, type="float", symmetric=True, strategy=kind)
        if kind == "block":
            block = rng.choice([(128, 128), (64, 64)])
            weights["block_structure"] = rng.choice([list(block), "%dx%d" % block])
        if kind == "group":
            weights["group_size"] = 64
        inputs = rng.choice(
            [
                None,
                dict(num_bits=8, type="float", symmetric=True, strategy="token", dynamic=True),
                dict(num_bits=8, type="float", symmetric=True, strategy="tensor", dynamic=False),
            ]
        )
        if kind == "block":
            inputs = dict(num_bits=8, type="float", symmetric=True, strategy="group", group_size=128, dynamic=True)
        scale = ".input_scale" if inputs and not inputs["dynamic"] else None

        def encode(m, w):
            if kind == "tensor":
                return codes.fp8(w, tuple(w.shape), dtype, ".weight_scale", [1])
            size = {"channel": (1, w.shape[1]), "group": (1, 64)}.get(kind) or block
            return codes.fp8(w, size, dtype, ".weight_scale")

        return (
            rng.choice([form, "naive-quantized"]),
            ct_args(rng, **weights),
            inputs and ct_args(rng, **inputs),
            (lambda w: kind != "group" or w.shape[1] % 64 == 0),
            encode,
            scale,
        )
    if form == "nvfp4-pack-quantized":
        weights = dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
        inputs = rng.choice([None, dict(weights, dynamic="local")])
        scale = ".input_global_scale" if inputs else None
        return (
            form,
            ct_args(rng, **weights),
            inputs,
            (lambda w: w.shape[1] % 16 == 0),
            (lambda m, w: codes.nvfp4(w, False)),
            scale,
        )
    weights = dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32)
    inputs = rng.choice([None, dict(weights, dynamic=True)])
    return form, ct_args(rng, **weights), inputs, (lambda w: w.shape[1] % 32 == 0), (lambda m, w: codes.mxfp4(w)), None


CT_FORMS = ("pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")


def ct(rng, modules, model, form=None):
    """compressed-tensors, with one group of modules or several."""
    mixed = form is None
    config = {"quant_method": "compressed-tensors", "config_groups": {}}
    maybe(
        rng,
        config,
        quantization_status=rng.choice(["compressed", "frozen"]),
        global_compression_ratio=1.9,
        kv_cache_scheme=None,
        sparsity_config={},
        transform_config={},
        version="0.11.0",
    )
    kinds = rng.sample(CT_FORMS, rng.choice([2, 3])) if mixed else [form]
    schemes = [ct_scheme(rng, kind) for kind in kinds]
    targets = [["Linear"]]
    if mixed:
        targets = [
            [
                rng.choice([r"re:.*\.q_proj$", "re:.*mlp.*", r"re:.*down_proj", "re:.*layers[.]0[.].*"]),
                *rng.sample(list(modules), 2),
            ],
            [r"re:.*self_attn.*"],
            ["Linear"],
        ]
        targets = targets[-len(kinds) :]
        order = list(range(len(kinds)))
        if chance(rng, 0.5):
            order.reverse()  # the group for a class may come first
        schemes, targets = [schemes[i] for i in order], [targets[i] for i in order]
    plain, entries = chosen(rng, modules, "name", chance(rng, 0.8))
    made, values = {}, {}
    for module, w in modules.items():
        i = ct_target(module, targets)
        if module in plain or i is None:
            continue
        form_name, _, _, fits, encode, scale = schemes[i]
        if not fits(w):
            entries.append(module)
            continue
        tensors, values[module] = encode(module, w)
        if scale:
            tensors[scale] = torch.tensor([rng.uniform(0.01, 0.1) if scale == ".input_scale" else 100.0])
        made.update({module + suffix: t for suffix, t in tensors.items()})
    config["ignore"] = entries
    for i, (form_name, weights, inputs, *_) in enumerate(schemes):
        group = {"targets": targets[i], "weights": weights, "input_activations": inputs}
        maybe(rng, group, output_activations=None)
        if mixed or chance(rng, 0.3):
            group["format"] = form_name
        config["config_groups"]["group_%d" % i] = group
    config["format"] = "mixed-precision" if mixed else schemes[0][0]
    kv_scales(rng, made, modules, config)
    return made, values, config


def ct_target(module, targets):
    """Names first, then patterns, then classes."""
    for how in (
        lambda t: t == module,
        lambda t: t.startswith("re:") and re.match(t[3:], module),
        lambda t: t == "Linear",
    ):
        for i, group in enumerate(targets):
            if any(how(t) for t in group):
                return i
    return None


def kv_scales(rng, made, modules, config):
    if chance(rng, 0.3):
        config["kv_cache_scheme"] = {
            "num_bits": 8,
            "type": "float",
            "symmetric": True,
            "strategy": "tensor",
            "dynamic": False,
        }
        for module in modules:
            if module.endswith("self_attn.o_proj"):
                at = module[: -len("o_proj")]
                made[at + "k_scale"], made[at + "v_scale"] = torch.tensor([0.02]), torch.tensor([0.03])


def bitnet(rng, modules, model):
    auto, dtype = chance(rng, 0.5), rng.choice(DTYPES)
    config = {"quant_method": "bitnet"}
    if auto:
        config["linear_class"] = "autobitlinear"
        maybe(rng, config, quantization_mode="offline")
    else:
        maybe(rng, config, linear_class="bitlinear", use_rms_norm=False)
    rest, entries = divided(rng, modules, "part", lambda w: w.shape[0] % 4 == 0)
    config["modules_to_not_convert"] = entries
    made, values = encode_all(rest, lambda m, w: codes.ternary(w, dtype, not auto))
    return made, values, config


def awq(rng, modules, model):
    group, dtype, asym = rng.choice([16, 32, 64, 128, -1]), rng.choice(DTYPES[:2]), chance(rng, 0.7)
    older = chance(rng, 0.3)
    if older:
        config = {"zero_point": asym, "q_group_size": group, "w_bit": 4, "version": rng.choice(["GEMM", "gemm"])}
    else:
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": asym, "version": "gemm"}
        maybe(rng, config, format="gemm", checkpoint_format="gemm", do_fuse=False, backend="autoawq")
    fits = lambda w: w.shape[0] % 8 == 0 and (group < 0 or w.shape[1] % group == 0)
    rest, entries = divided(rng, modules, "part", fits)
    config["modules_to_not_convert"] = entries
    if entries == ["lm_head"]:
        config["modules_to_not_convert"] = None
    made, values = encode_all(rest, lambda m, w: codes.awq(w, group if group > 0 else w.shape[1], dtype, asym))
    return made, values, config


def gptq(rng, modules, model):
    bits, group, dtype = rng.choice([4, 4, 8, 2]), rng.choice([16, 32, 64, 128, -1]), rng.choice(DTYPES[:2])
    asym, v2, order = chance(rng, 0.5), chance(rng, 0.4), chance(rng, 0.4)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": not asym}
    if v2:
        config[rng.choice(["checkpoint_format", "checkpoint_format", "format"])] = "gptq_v2"
    else:
        maybe(rng, config, checkpoint_format="gptq")
    maybe(
        rng,
        config,
        damp_percent=0.01,
        true_sequential=True,
        static_groups=False,
        pack_dtype="int32",
        meta={"quantizer": ["x"]},
        model_seqlen=2048,
    )
    head = chance(rng, 0.3) and "lm_head" in modules
    config["lm_head"] = head
    dynamic = gptq_dynamic(rng) if chance(rng, 0.5) else {}
    if dynamic or chance(rng, 0.3):
        config["dynamic"] = dynamic
    made, values = {}, {}
    for module, w in modules.items():
        own = {"bits": bits, "group_size": group}
        for pattern, override in dynamic.items():
            if re.match(pattern[2:] if pattern[1] == ":" else pattern, module):
                own = None if pattern.startswith("-:") else {**own, **override}
                break
        if own is None or (module == "lm_head" and not head):
            continue
        size = own["group_size"] if own["group_size"] > 0 else w.shape[1]
        fields = 32 // own["bits"]
        if w.shape[0] % fields or w.shape[1] % fields or w.shape[1] % size:
            continue
        groups = None
        if order and own["group_size"] > 0:
            groups = (torch.arange(w.shape[1]) // size)[
                torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(len(module)))
            ]
        tensors, values[module] = codes.gptq(w, own["bits"], size, dtype, asym, 0 if v2 else 1, groups)
        made.update({module + suffix: t for suffix, t in tensors.items()})
    return made, values, config


def gptq_dynamic(rng):
    rows = [
        ("-:.*down_proj", {}),
        (r"-:model\.layers\.0\.", {}),
        ("+:.*self_attn.*", {"bits": 8, "group_size": 32}),
        (r".*\.up_proj", {"group_size": 16}),
        (r"+:.*(gate|up)_proj$", {"bits": 4, "group_size": -1}),
        ("-:lm_head", {}),
    ]
    return dict(rng.sample(rows, rng.choice([1, 2, 3])))


def modelopt(rng, modules, model):
    algo = rng.choice(["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"])
    config = {"quant_method": "modelopt", "quant_algo": algo}
    maybe(rng, config, kv_cache_quant_algo=rng.choice([None, "FP8"]), group_size=16, producer={"name": "modelopt"})
    fits = (lambda w: w.shape[1] % 16 == 0) if algo in ("NVFP4", "W4A16_NVFP4", "MIXED_PRECISION") else (lambda w: True)
    rest, entries = divided(rng, modules, "glob", fits)
    shape = rng.choice([[-1], [-1, 1]])
    four = chance(rng, 0.5)

    def one(kind, m, w):
        if kind == "FP8":
            made = codes.fp8(w, tuple(w.shape), torch.float32, ".weight_scale", [])
        elif kind == "FP8_PER_CHANNEL_PER_TOKEN":
            made = codes.fp8(w, (1, w.shape[1]), torch.float32, ".weight_scale", shape)
        elif kind == "FP8_PB_WO":
            n, k = codes.cut(w.shape[0], 128), codes.cut(w.shape[1], 128)
            made = codes.fp8(w, (128, 128), torch.float32, ".weight_scale", [n, 1, k, 1] if four else [n, k])
        else:
            made = codes.nvfp4(w, True)
        if kind in ("FP8", "NVFP4"):
            made[0][".input_scale"] = torch.tensor(0.02)
        return made

    if algo != "MIXED_PRECISION":
        made, values = encode_all(rest, lambda m, w: one(algo, m, w))
    else:
        kinds = {m: rng.choice(["FP8", "NVFP4", "FP8_PB_WO"]) for m in rest}
        config["quantized_layers"] = {
            m: {"quant_algo": k, **({"group_size": 16} if k == "NVFP4" else {})} for m, k in kinds.items()
        }
        made, values = encode_all(rest, lambda m, w: one(kinds[m], m, w))
    config[rng.choice(["ignore", "exclude_modules"])] = entries
    if config.get("kv_cache_quant_algo"):
        for module in modules:
            if module.endswith(("self_attn.k_proj", "self_attn.v_proj")):
                made[f"{module}.{module[-6]}_scale"] = torch.tensor(0.0128)
    return made, values, config


def bnb(rng, modules, model):
    four = chance(rng, 0.75)
    config = {"quant_method": "bitsandbytes", "load_in_4bit": four, "load_in_8bit": not four}
    maybe(rng, config, _load_in_4bit=four, _load_in_8bit=not four, bnb_4bit_quant_storage="uint8", llm_int8_threshold=6.0)
    block, nested, kind = rng.choice([32, 64, 64, 128]), rng.choice([0, 0, 16, 256]), rng.choice(["nf4", "nf4", "fp4"])
    rest, entries = divided(rng, modules, "part", lambda w: not four or w.shape[1] % block == 0)
    config["llm_int8_skip_modules"] = entries
    made, values = encode_all(rest, lambda m, w: codes.bnb4(w, kind, block, nested) if four else codes.bnb8(w))
    if not four and chance(rng, 0.5):
        made.update({f"{m}.weight_format": torch.zeros((), dtype=torch.uint8) for m in values})
    return made, values, config


FORMATS = {
    "fp8": fp8,
    **{f"ct-{form}": (lambda rng, modules, model, form=form: ct(rng, modules, model, form)) for form in CT_FORMS},
    "ct-mixed": ct,
    "awq": awq,
    "gptq": gptq,
    "modelopt": modelopt,
    "bitsandbytes": bnb,
    "bitnet": bitnet,
}


# ---- gpt-oss ----


def in_blocks(rng, draw):
    def drawn(inner):
        c = draw(inner)
        c["hidden_size"] = rng.choice([64, 96, 160, 288])
        c["intermediate_size"] = rng.choice([32, 64, 96, 160])
        return c

    return drawn


def gpt_oss(rng, tensors):
    """Only experts; files contain the transpose of transformers' tensors."""
    made, values = {}, {}
    for name, t in tensors.items():
        if re.search(r"experts\.(gate_up|down)_proj$", name):
            blocks, scales, w = codes.mxfp4_codes(t.float().transpose(1, 2).contiguous())
            made[name + "_blocks"], made[name + "_scales"] = codes.halves(blocks), scales
            values[name] = w.transpose(1, 2).contiguous()
    config = {"quant_method": "mxfp4"}
    config["modules_to_not_convert"] = rng.choice(
        [None, ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]]
    )
    return made, values, config


# ---- where the config is ----


def write(rng, folder, name, config):
    model = forms.read_config(folder)
    config, method = dict(config), config.get("quant_method")
    if name == "awq" and not method:
        (folder / "quant_config.json").write_text(json.dumps(config))
    elif name == "gptq" and chance(rng, 0.3):
        if chance(rng, 0.5):
            del config["quant_method"]
        (folder / "quantize_config.json").write_text(json.dumps(config))
    elif name == "modelopt" and chance(rng, 0.5):
        del config["quant_method"]
        (folder / "hf_quant_config.json").write_text(
            json.dumps({"producer": {"name": "modelopt"}, "quantization": config})
        )
    elif "text_config" in model and chance(rng, 0.5):
        model["text_config"]["quantization_config"] = config
    elif name.startswith("ct") and chance(rng, 0.15):
        del config["quant_method"]
        model["compression_config"] = config
    else:
        model["quantization_config"] = config
    forms.write_config(folder, model)
