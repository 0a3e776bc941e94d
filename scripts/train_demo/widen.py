#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Llama larger without changing what it computes, so that the demo pair can show the gain of
speculation at the cost of a model of real size.

    scripts/train_demo/widen.py models/demo /tmp/wide --shape 8b           16 GB, Llama-3.1-8B's shape
    scripts/train_demo/widen.py models/demo-draft /tmp/draft --shape draft --vocab 128256
    scripts/train_demo/widen.py models/demo /tmp/w --shape small --dtype float32 --check

How the function stays the same:
  width      weights are padded with zeros, or with noise where the other factor is zero. A mean of
             squares over more columns is smaller by w = hidden / wide: norm weights are multiplied by
             sqrt(w), epsilon by w.
  heads      new heads have an o_proj of zero. In a wider head, a rotated pair lies where the wide
             head has its frequency: pair i at pair i * wide / narrow. Queries are multiplied by
             sqrt(wide / narrow), because scores are divided by the root of the wide head size.
  layers     new layers have an o_proj and a down_proj of zero: they add nothing.
  vocabulary new ids must never be drawn. The first new column of the residual stream is a small
             constant for every token; the final norm passes it on and lm_head's new rows weigh it
             with a large negative number. The norms' epsilon makes up for the constant's square.

--noise X degrades the model first: every matrix of its layers gets noise of X times its own standard
deviation. A draft then predicts its target less well, so the gain is that of a more realistic pair.

--check runs both models in numpy on a prompt and compares all logits. Needs only numpy.
"""

import argparse
import json
import math
import os
import shutil
import struct
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

SHAPES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256},
    "small": {"hidden_size": 1024, "intermediate_size": 1536, "num_hidden_layers": 12,
              "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 4224},
    "draft": {"hidden_size": 256},
}
CONSTANT = 2.0**-5  # of the new column; its square must stay under hidden * epsilon
PASS_ON, REFUSE = 1024.0, -1024.0  # the final norm's and lm_head's weight of that column
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
NOISE = 1 << 20  # values of the noise, repeated


# ---- safetensors ----


def to_float(raw, dtype):
    if dtype == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view({"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32)


def to_bf16(x):
    """Rounded to nearest, ties to even."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def read_model(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = np.memmap(path, dtype=np.uint8, mode="r")
        (n,) = struct.unpack("<Q", data[:8].tobytes())
        for name, t in json.loads(data[8 : 8 + n].tobytes()).items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                raw = np.array(data[8 + n + begin : 8 + n + end])
                tensors[name] = to_float(raw, t["dtype"]).reshape(t["shape"])
    if not tensors:
        raise SystemExit(f"widen: no safetensors in {folder}")
    return json.loads((folder / "config.json").read_text()), tensors


def write_file(path, tensors, dtype):
    """Vectors stay float32: their factors are exact then. Returns (names, bytes)."""
    header, parts, at = {}, [], 0
    for name, x in tensors:
        kind = "F32" if x.ndim == 1 else dtype
        data = to_bf16(x) if kind == "BF16" else np.ascontiguousarray(x, dtype=np.float32)
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for data in parts:
            f.write(memoryview(data).cast("B"))
    return list(header), at


def spoil(tensors, noise):
    """Noise on every matrix of the layers, the same in every run."""
    rng = np.random.default_rng(3)
    for name in sorted(tensors):
        x = tensors[name]
        if noise and x.ndim == 2 and name.startswith("model.layers."):
            tensors[name] = x + rng.standard_normal(x.shape, dtype=np.float32) * (noise * x.std())


# ---- widening ----


def check_shape(old, new):
    """Checks that it is a model of the demo's kind, and that no dimension shrinks."""
    if old.get("model_type") != "llama" or old.get("rope_scaling") or old.get("attention_bias"):
        raise SystemExit("widen: only Llamas without rope scaling and biases")
    for key in SHAPES["8b"]:
        if new[key] < old[key]:
            raise SystemExit(f"widen: {key} {new[key]} is less than the model's {old[key]}")
    group = old["num_attention_heads"] // old["num_key_value_heads"]
    if new["num_attention_heads"] != group * new["num_key_value_heads"]:
        raise SystemExit(f"widen: there must be {group} query heads to a KV head, as before")
    if new["head_dim"] % old["head_dim"]:
        raise SystemExit("widen: the head size must be a multiple of the model's")
    if new["vocab_size"] > old["vocab_size"] and new["hidden_size"] == old["hidden_size"]:
        raise SystemExit("widen: a larger vocabulary needs a larger hidden size")


class Widener:
    def __init__(self, config, tensors, new):
        self.old, self.t, self.new = config, tensors, {**config, **new}
        check_shape(config, self.new)
        self.ratio = config["hidden_size"] / self.new["hidden_size"]
        wide = self.new["hidden_size"] > config["hidden_size"]
        self.constant = CONSTANT if wide else 0.0
        eps = config["rms_norm_eps"] - self.constant**2 / config["hidden_size"]
        if eps < 0:
            raise SystemExit("widen: the model's epsilon is too small for the constant column")
        self.new.update(rms_norm_eps=eps * self.ratio, tie_word_embeddings=False)
        self.noise = np.random.default_rng(1).standard_normal(NOISE, dtype=np.float32) * 0.02
        self.at = 0

    def random(self, rows, columns):
        """Noise, from a separate offset: written only where it is multiplied by zeros."""
        self.at = (self.at + 7919) % NOISE
        return np.resize(np.roll(self.noise, self.at), (rows, columns))

    def head_places(self):
        """Row of a wide head for each row of a narrow one: pairs (i, i + half) keep their frequency."""
        n, m = self.old["head_dim"], self.new["head_dim"]
        first = np.arange(n // 2) * (m // n)
        return np.concatenate([first, first + m // 2])

    def heads(self, x, places, scale=1.0):
        """[heads * narrow, hidden] -> [new heads * wide, new hidden]: new heads are noise, new rows of
        old heads zero, new columns noise (what they are multiplied with is zero)."""
        n, m = self.old["head_dim"], self.new["head_dim"]
        n_heads = len(x) // n
        total = n_heads * self.new["num_key_value_heads"] // self.old["num_key_value_heads"]
        out = self.random(total * m, self.new["hidden_size"])
        for h in range(n_heads):
            out[h * m : (h + 1) * m] = 0
            out[h * m + places, : x.shape[1]] = x[h * n : (h + 1) * n] * scale
        return out

    def o_proj(self, x):
        n, m = self.old["head_dim"], self.new["head_dim"]
        out = np.zeros((self.new["hidden_size"], self.new["num_attention_heads"] * m), np.float32)
        for h in range(x.shape[1] // n):
            out[: len(x), h * m : h * m + n] = x[:, h * n : (h + 1) * n]
        return out

    def gate(self, x):
        out = self.random(self.new["intermediate_size"], self.new["hidden_size"])
        out[: len(x), : x.shape[1]] = x
        return out

    def down(self, x):
        out = np.zeros((self.new["hidden_size"], self.new["intermediate_size"]), np.float32)
        out[: len(x), : x.shape[1]] = x
        return out

    def norm(self, x, last=0.0):
        """Only the final norm passes the constant column on."""
        out = np.zeros(self.new["hidden_size"], np.float32)
        out[: len(x)] = x * math.sqrt(self.ratio)
        if len(out) > len(x):
            out[len(x)] = last
        return out

    def embedding(self):
        x = self.t["model.embed_tokens.weight"]
        out = np.zeros((self.new["vocab_size"], self.new["hidden_size"]), np.float32)
        out[: len(x), : x.shape[1]] = x
        if out.shape[1] > x.shape[1]:
            out[:, x.shape[1]] = self.constant
        return out

    def head(self):
        x = self.t.get("lm_head.weight", self.t["model.embed_tokens.weight"])
        out = np.zeros((self.new["vocab_size"], self.new["hidden_size"]), np.float32)
        out[: len(x), : x.shape[1]] = x
        if len(out) > len(x):
            out[len(x) :, x.shape[1]] = REFUSE
        return out

    def layer(self, i):
        """Yields (name, tensor) of old layer i, or of one that adds nothing."""
        p = f"model.layers.{i}."
        is_old = i < self.old["num_hidden_layers"]
        t = (lambda name: self.t[p + name]) if is_old else self.nothing
        places = self.head_places()
        scale = math.sqrt(self.new["head_dim"] / self.old["head_dim"])
        yield p + "self_attn.q_proj.weight", self.heads(t("self_attn.q_proj.weight"), places, scale)
        yield p + "self_attn.k_proj.weight", self.heads(t("self_attn.k_proj.weight"), places)
        straight = np.arange(self.old["head_dim"])
        yield p + "self_attn.v_proj.weight", self.heads(t("self_attn.v_proj.weight"), straight)
        yield p + "self_attn.o_proj.weight", self.o_proj(t("self_attn.o_proj.weight"))
        yield p + "mlp.gate_proj.weight", self.gate(t("mlp.gate_proj.weight"))
        yield p + "mlp.up_proj.weight", self.gate(t("mlp.up_proj.weight"))
        yield p + "mlp.down_proj.weight", self.down(t("mlp.down_proj.weight"))
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            yield p + name, self.norm(t(name))

    def nothing(self, name):
        like = self.t["model.layers.0." + name]
        zero = name.startswith(("self_attn.o_proj", "mlp.down_proj"))
        return np.zeros_like(like) if zero else like

    def tensors(self, part):
        """Part 0 is the embedding, the last the head, those between are layers."""
        last = self.new["num_hidden_layers"] + 1
        if part == 0:
            yield "model.embed_tokens.weight", self.embedding()
        elif part < last:
            self.at = part * 104729 % NOISE
            yield from self.layer(part - 1)
        else:
            yield "model.norm.weight", self.norm(self.t["model.norm.weight"], PASS_ON)
            yield "lm_head.weight", self.head()

    def write_part(self, folder, part, dtype):
        name = f"model-{part:05d}.safetensors"
        names, n_bytes = write_file(folder / name, self.tensors(part), dtype)
        return name, names, n_bytes

    def write(self, folder, dtype, workers):
        parts = range(self.new["num_hidden_layers"] + 2)
        with ProcessPoolExecutor(workers) as pool:
            done = list(pool.map(self.write_part, [folder] * len(parts), parts, [dtype] * len(parts)))
        total = sum(n_bytes for _, _, n_bytes in done)
        index = {"metadata": {"total_size": total}, "weight_map": {n: f for f, names, _ in done for n in names}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
        return total


# ---- the proof ----


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rotate(x, theta):
    """x [tokens, heads, size]: pairs (i, i + size / 2)."""
    n, _, size = x.shape
    f = theta ** (-np.arange(0, size, 2) / size)
    a = np.arange(n)[:, None] * f
    cos, sin = np.cos(a)[:, None, :], np.sin(a)[:, None, :]
    u, v = x[..., : size // 2], x[..., size // 2 :]
    return np.concatenate([u * cos - v * sin, v * cos + u * sin], -1)


def attend(x, c, t, p):
    n, size = len(x), c["head_dim"]
    q, k, v = ((x @ t[f"{p}self_attn.{k}_proj.weight"].T).reshape(n, -1, size) for k in "qkv")
    q, k = rotate(q, c["rope_theta"]), rotate(k, c["rope_theta"])
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
    s = np.where(np.tril(np.ones((n, n), bool)), s, -np.inf)
    s = np.exp(s - s.max(-1, keepdims=True))
    out = np.einsum("hqk,khd->qhd", s / s.sum(-1, keepdims=True), v)
    return out.reshape(n, -1) @ t[p + "self_attn.o_proj.weight"].T


def logits_of(c, tensors, ids):
    """Llama's forward pass in double precision."""
    t = {k: v.astype(np.float64) for k, v in tensors.items()}
    x = t["model.embed_tokens.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        x = x + attend(rms(x, t[p + "input_layernorm.weight"], c["rms_norm_eps"]), c, t, p)
        y = rms(x, t[p + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        g = y @ t[p + "mlp.gate_proj.weight"].T
        y = g / (1 + np.exp(-g)) * (y @ t[p + "mlp.up_proj.weight"].T)
        x = x + y @ t[p + "mlp.down_proj.weight"].T
    x = rms(x, t["model.norm.weight"], c["rms_norm_eps"])
    return x @ t.get("lm_head.weight", t["model.embed_tokens.weight"]).T


def check(source, made, tolerance):
    """Raises an error unless the models in `made` and `source` compute the same."""
    (c, t), (wide_c, wide_t) = read_model(source), read_model(made)
    ids = np.random.default_rng(2).integers(0, c["vocab_size"], 48)
    want, have = logits_of(c, t, ids), logits_of(wide_c, wide_t, ids)
    n = c["vocab_size"]
    worst = np.abs(have[:, :n] - want).max()
    masked = have[:, n:].max() if have.shape[1] > n else -np.inf
    least = want.min()
    print(f"48 rows of {n} logits: the largest difference is {worst:.2e}; new ids at most {masked:.0f}, "
          f"old ones at least {least:.1f}")
    if not worst <= tolerance or not masked < least - 50:
        raise SystemExit("widen: the functions differ")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source", type=Path)
    p.add_argument("made", type=Path)
    p.add_argument("--shape", choices=SHAPES, default="8b")
    p.add_argument("--vocab", type=int, help="another vocabulary size, to match a target's")
    p.add_argument("--layers", type=int)
    p.add_argument("--noise", type=float, default=0.0, help="noise added to the weights first, in standard deviations")
    p.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16",
                   help="dtype of matrices; norms are always float32, so that their factors are exact")
    p.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="number of processes")
    p.add_argument("--check", action="store_true", help="compare the logits of both models (too slow for 16 GB)")
    p.add_argument("--tolerance", type=float, default=1e-4)
    args = p.parse_args()
    new = dict(SHAPES[args.shape])
    if args.vocab:
        new["vocab_size"] = args.vocab
    if args.layers:
        new["num_hidden_layers"] = args.layers
    config, tensors = read_model(args.source)
    spoil(tensors, args.noise)
    w = Widener(config, tensors, new)
    args.made.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (args.source / name).exists():
            shutil.copy(args.source / name, args.made / name)
    w.new["torch_dtype"] = args.dtype
    (args.made / "config.json").write_text(json.dumps(w.new, indent=2) + "\n")
    total = w.write(args.made, "BF16" if args.dtype == "bfloat16" else "F32", args.workers)
    print(f"{args.made}: {total / 1e9:.2f} GB")
    if args.check:
        check(args.source, args.made, args.tolerance)


if __name__ == "__main__":
    sys.exit(main())
