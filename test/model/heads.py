# SPDX-License-Identifier: Apache-2.0
"""Makes checkpoints with random draft heads for tests, and computes their drafts in numpy: a plain Llama, a multi-token
prediction module after its last layer, and an EAGLE-3 head."""
import functools
import json
import os
import struct

import numpy

import golden

F32 = numpy.float32


# ---- safetensors

def as_bf16(a):
    bits = numpy.ascontiguousarray(a, F32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def from_bf16(bits):
    return (bits.astype(numpy.uint32) << 16).view(F32)


def read(path):
    """name: array, bf16 as float32."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    kinds = {"F32": F32, "BF16": numpy.uint16}
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            a = numpy.frombuffer(data[slice(*t["data_offsets"])], kinds[t["dtype"]])
            out[name] = (from_bf16(a) if t["dtype"] == "BF16" else a).reshape(t["shape"])
    return out


def write(path, tensors):
    """float32 arrays are stored as bf16 if that is exact, as `rounded` makes them."""
    head, data = {}, b""
    names = {numpy.dtype(t): name for t, name in (("int64", "I64"), ("bool", "BOOL"), (F32, "F32"), ("uint16", "BF16"))}
    for name, a in tensors.items():
        raw = as_bf16(a) if a.dtype == F32 and numpy.array_equal(rounded(a), a) else a
        head[name] = {"dtype": names[raw.dtype], "shape": list(a.shape),
                      "data_offsets": [len(data), len(data) + raw.nbytes]}
        data += raw.tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def rounded(a):
    return from_bf16(as_bf16(a))


def drawn(rng, *shape, scale=0.3):
    return rounded(rng.normal(0, scale, shape).astype(F32))


def near_one(rng, n):
    return rounded((1 + rng.normal(0, 0.2, n)).astype(F32))


# ---- folders

def folder_of(family):
    return family if os.path.isabs(family) else os.path.join(golden.GOLDEN, family)


def block(rng, c, prefix, n_in=None):
    """The tensors of one layer of a Llama."""
    d, hd, f = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    q, kv, n_in = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd, n_in or d
    shapes = {"self_attn.q_proj": (q, n_in), "self_attn.k_proj": (kv, n_in), "self_attn.v_proj": (kv, n_in),
              "self_attn.o_proj": (d, q), "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f)}
    out = {f"{prefix}{name}.weight": drawn(rng, *shape) for name, shape in shapes.items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        out[f"{prefix}{norm}.weight"] = near_one(rng, d)
    return out


def mtp_tensors(c, seed=1, n=1):
    rng = numpy.random.default_rng(seed)
    d = c["hidden_size"]
    norms = {f"mtp.{n}.weight": near_one(rng, d) for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    layers = [block(rng, c, f"mtp.layers.{i}.") for i in range(n)]
    return {"mtp.fc.weight": drawn(rng, d, 2 * d), **norms, **{k: v for layer in layers for k, v in layer.items()}}


def with_tensors(family, to, tensors, **config):
    """A copy of the family's folder with additional tensors."""
    os.makedirs(to)
    for name in os.listdir(folder_of(family)):
        if name not in ("expected.json", "config.json"):
            os.symlink(os.path.join(folder_of(family), name), os.path.join(to, name))
    with open(os.path.join(folder_of(family), "config.json")) as f:
        c = json.load(f)
    with open(os.path.join(to, "config.json"), "w") as f:
        json.dump({**c, **config}, f)
    path = os.path.join(to, "model.safetensors")
    old = read(path)
    os.remove(path)
    write(path, {**old, **tensors})
    return str(to)


EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "rms_norm_eps": 1e-6,
          "torch_dtype": "bfloat16", "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 512,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96}


def eagle3_tensors(c, target_hidden, n_fed, seed=2):
    rng = numpy.random.default_rng(seed)
    d, n, vocab = c["hidden_size"], c["draft_vocab_size"], c["vocab_size"]
    known = numpy.sort(rng.permutation(vocab)[:n])
    t2d = numpy.zeros(vocab, bool)
    t2d[known] = True
    return {"fc.weight": drawn(rng, d, n_fed * target_hidden), "norm.weight": near_one(rng, d),
            "lm_head.weight": drawn(rng, n, d), "midlayer.hidden_norm.weight": near_one(rng, d),
            "d2t": (known - numpy.arange(n)).astype(numpy.int64), "t2d": t2d, **block(rng, c, "midlayer.", 2 * d)}


def eagle3_folder(to, config, tensors):
    os.makedirs(to)
    with open(os.path.join(to, "config.json"), "w") as f:
        json.dump(config, f)
    write(os.path.join(to, "model.safetensors"), tensors)
    return str(to)


# ---- numpy

def norm(x, w, eps):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rope(x, theta):
    """[rows, heads, head_dim] at positions 0, 1, ..."""
    half = x.shape[-1] // 2
    angle = numpy.arange(len(x))[:, None, None] * theta ** (-numpy.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return numpy.concatenate([a * numpy.cos(angle) - b * numpy.sin(angle), b * numpy.cos(angle) + a * numpy.sin(angle)], -1)


def layer(w, prefix, c, x, read):
    """x of all rows after the layer; q, k and v are computed from `read`."""
    hd, n_q, n_kv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    theta, n = c.get("rope_theta") or c["rope_parameters"]["rope_theta"], len(x)

    def heads(name):
        return (read @ w[f"{prefix}self_attn.{name}_proj.weight"].T).reshape(n, -1, hd)

    q, k, v = rope(heads("q"), theta), rope(heads("k"), theta), heads("v")
    k, v = (numpy.repeat(t, n_q // n_kv, 1) for t in (k, v))
    scores = numpy.einsum("ihd,jhd->hij", q, k) / numpy.sqrt(hd)
    scores[:, numpy.triu_indices(n, 1)[0], numpy.triu_indices(n, 1)[1]] = -numpy.inf
    p = numpy.exp(scores - scores.max(-1, keepdims=True))
    out = numpy.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
    x = x + out @ w[f"{prefix}self_attn.o_proj.weight"].T
    h = norm(x, w[f"{prefix}post_attention_layernorm.weight"], c["rms_norm_eps"])
    gate, up = (h @ w[f"{prefix}mlp.{m}_proj.weight"].T for m in ("gate", "up"))
    return x + (gate / (1 + numpy.exp(-gate)) * up) @ w[f"{prefix}mlp.down_proj.weight"].T


class Target:
    def __init__(self, family):
        self.c, self.w = golden.config(family), read(os.path.join(folder_of(family), "model.safetensors"))
        self.w = {k: v.astype(float) for k, v in self.w.items()}

    def embed(self, tokens):
        return self.w["model.embed_tokens.weight"][tokens]

    def states(self, tokens):
        """x after each layer, and the last one normed."""
        x, out = self.embed(tokens), []
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            x = layer(self.w, p, self.c, x, norm(x, self.w[p + "input_layernorm.weight"], self.c["rms_norm_eps"]))
            out.append(x)
        return [*out, norm(x, self.w["model.norm.weight"], self.c["rms_norm_eps"])]


class Mtp:
    def __init__(self, target, tensors, index=0):
        self.t, self.w, self.index = target, {k: v.astype(float) for k, v in tensors.items()}, index

    def fed(self, tokens):
        return self.t.states(tokens)[-1]

    def run(self, tokens, before):
        """Logits over the target's ids and the new state, both of the last row; before: the states that the rows read."""
        states = self.states(tokens, before)
        return self.t.w["lm_head.weight"] @ states[-1], states[-1]

    def states(self, tokens, before):
        w, eps = self.w, self.t.c["rms_norm_eps"]
        e = norm(self.t.embed(tokens), w["mtp.pre_fc_norm_embedding.weight"], eps)
        h = norm(before, w["mtp.pre_fc_norm_hidden.weight"], eps)
        x = numpy.concatenate([e, h], -1) @ w["mtp.fc.weight"].T
        p = f"mtp.layers.{self.index}."
        x = layer(w, p, self.t.c, x, norm(x, w[p + "input_layernorm.weight"], eps))
        return norm(x, w["mtp.norm.weight"], eps)


class Modules:
    """Several modules: each reads the state of the previous module in the previous row, and makes the next draft; the last one
    then continues with its own states."""

    def __init__(self, target, tensors, n):
        self.modules = [Mtp(target, tensors, i) for i in range(n)]
        self.fed = self.modules[0].fed

    def chain(self, tokens, fed, k, allowed):
        drafts, states = [], fed[:len(tokens)]
        for j in range(k):
            rows = numpy.array([*tokens, *drafts])
            if j < len(self.modules):
                module, before = self.modules[j], numpy.concatenate([numpy.zeros((1, fed.shape[1])), states])[:len(rows)]
                states = module.states(rows, before)
            else:
                before = numpy.concatenate([before, states[-1:]])
                states = module.states(rows, before)
            logits = module.t.w["lm_head.weight"] @ states[-1]
            drafts.append(max(allowed, key=lambda i: logits[i]))
        return drafts


class Eagle3:
    def __init__(self, target, config, tensors, fed):
        self.t, self.c, self.layers = target, config, fed
        self.w = {k: v if v.dtype == bool else v.astype(float) for k, v in tensors.items()}

    def fed(self, tokens):
        states = self.t.states(tokens)
        return numpy.concatenate([states[i - 1] for i in self.layers], -1) @ self.w["fc.weight"].T

    def run(self, tokens, before):
        w, eps = self.w, self.c["rms_norm_eps"]
        table = w["embed_tokens.weight"] if "embed_tokens.weight" in w else self.t.w["model.embed_tokens.weight"]
        h = norm(before, w["midlayer.hidden_norm.weight"], eps)
        x = h if self.c.get("norm_before_residual") else before
        read_ = numpy.concatenate([norm(table[tokens], w["midlayer.input_layernorm.weight"], eps), h], -1)
        x = layer(w, "midlayer.", self.c, x, read_)
        logits = numpy.full(self.c["vocab_size"], -numpy.inf)
        own = w["lm_head.weight"] @ norm(x[-1], w["norm.weight"], eps)
        logits[numpy.arange(len(own)) + w["d2t"].astype(int)] = own
        return logits, x[-1]


def chain(head, tokens, fed, k, allowed):
    """k drafts after these tokens; fed: the target's states of their rows."""
    if isinstance(head, Modules):
        return head.chain(tokens, fed, k, allowed)
    before = numpy.concatenate([numpy.zeros((1, fed.shape[1])), fed[:len(tokens) - 1]])  # of the row before
    drafts = []
    for _ in range(k):
        logits, state = head.run(numpy.array([*tokens, *drafts]), before)
        drafts.append(max(allowed, key=lambda i: logits[i]))
        before = numpy.concatenate([before, state[None]])
    return drafts


@functools.cache  # runs with other flags give the same answer
def accepted(head, prompt, answer, k, allowed):
    """(drafts, accepted drafts) of a run with k drafts per step that gave this answer. Sequences are passed as tuples."""
    n, n_drafts, n_right = 1, 0, 0
    fed = head.fed(numpy.array([*prompt, *answer]))
    while n < len(answer):
        depth = min(k, len(answer) - n - 1)
        drafts = chain(head, [*prompt, *answer[:n]], fed, depth, list(allowed))
        right = 0
        while right < depth and drafts[right] == answer[n + right]:
            right += 1
        n_drafts, n_right, n = n_drafts + depth, n_right + right, n + right + 1
    return n_drafts, n_right


def like_layer(family, i, prefix, seed=3):
    """Random tensors with the shapes of one layer of the family, named with this prefix; and the further tensors that make the
    layer a multi-token prediction module in DeepSeek's format."""
    rng = numpy.random.default_rng(seed)
    d, out, own = golden.config(folder_of(family))["hidden_size"], {}, f"model.layers.{i}."
    for name, a in read(os.path.join(folder_of(family), "model.safetensors")).items():
        if name.startswith(own):
            out[prefix + name[len(own):]] = near_one(rng, a.shape[0]) if a.ndim == 1 else drawn(rng, *a.shape)
    norms = {f"{prefix}{n}.weight": near_one(rng, d) for n in ("enorm", "hnorm", "shared_head.norm")}
    return {**out, **norms, f"{prefix}eh_proj.weight": drawn(rng, d, 2 * d)}
