# SPDX-License-Identifier: Apache-2.0
"""The demo twin: a small Qwen3.5 in training form. Three of four layers are gated delta nets, whose state is computed for
chunks of a row in parallel; the fourth has gated attention. Files have the published names.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import model as llama
from model import Linear

CHUNK = 64
FORGET = -50.0  # log of the decay at a document's first row: clears the state of the previous document
QWEN = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "initializer_range": 0.02,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "tie_word_embeddings": True,
    "use_cache": True,
}


@dataclass
class Config:
    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 160
    num_hidden_layers: int = 4
    full_attention_interval: int = 4
    num_attention_heads: int = 2
    num_key_value_heads: int = 1
    head_dim: int = 64
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6

    rope_theta = 100000.0
    rotary = 0.25  # share of a head that is rotated

    def has_attention(self, layer):
        return (layer + 1) % self.full_attention_interval == 0

    def published(self):
        types = ["full_attention" if self.has_attention(i) else "linear_attention" for i in range(self.num_hidden_layers)]
        rope = {"rope_type": "default", "rope_theta": self.rope_theta, "partial_rotary_factor": self.rotary,
                "mrope_interleaved": True, "mrope_section": [4, 2, 2]}
        return {**asdict(self), "layer_types": types, "rope_parameters": rope}


class Norm(nn.Module):
    """Stores weights minus one."""

    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * (1 + self.weight.float())).to(x.dtype)


# ---- the gated delta rule


class UnitInverse(torch.autograd.Function):
    """(1 + a)^-1 for strictly lower triangular a."""

    @staticmethod
    def forward(ctx, a):
        one = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype).expand_as(a)
        found = torch.linalg.solve_triangular(a, one, upper=False, unitriangular=True)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx, grad):
        (found,) = ctx.saved_tensors
        return -(found.mT @ grad @ found.mT).tril(-1)


def states_before(step, added):
    """The state before each chunk; a chunk turns S into step @ S + added. A scan over dimension 2."""
    n, s = step.shape[2], 1
    while s < n:
        later = step[:, :, s:]
        added = torch.cat((added[:, :, :s], later @ added[:, :, :-s] + added[:, :, s:]), 2)
        step = torch.cat((step[:, :, :s], later @ step[:, :, :-s]), 2)
        s *= 2
    return F.pad(added[:, :, :-1], (0, 0, 0, 0, 1, 0))


def delta_rule(q, k, v, decay, beta, row):
    """q, k, v: [rows, heads, d] in float32; decay (its log), beta: [rows, heads]. Returns the outputs, in the shape of v."""

    def chunks(x):
        x = x.unflatten(0, (-1, row // CHUNK, CHUNK))
        return x.permute(0, 3, 1, 2, *range(4, x.dim()))

    q, k, v, decay, beta = (chunks(x) for x in (q, k, v, decay, beta))
    total = decay.cumsum(-1)
    since = total[..., :, None] - total[..., None, :]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    since = since.masked_fill(~lower, float("-inf")).exp()
    beta = beta[..., None]
    solved = UnitInverse.apply((beta * since * (k @ k.mT)).tril(-1))
    until, after = total.exp()[..., None], (total[..., -1:] - total).exp()[..., None]
    corrected, seen = solved @ (beta * v), solved @ (beta * until * k)
    left = (k * after).mT
    one = torch.eye(k.shape[-1], device=k.device)
    state = states_before(until[..., -1:, :] * one - left @ seen, left @ corrected)
    out = (q * until) @ state + (since * (q @ k.mT)) @ (corrected - seen @ state)
    return out.permute(0, 2, 3, 1, 4).flatten(0, 2)


def delta_rule_by_row(q, k, v, decay, beta, row):
    """The same by definition, row by row: the reference for the version with chunks."""
    out = torch.empty_like(v)
    for i in range(len(v)):
        if i % row == 0:
            state = v.new_zeros(v.shape[1], k.shape[-1], v.shape[-1])
        state = state * decay[i].exp()[:, None, None]
        u = beta[i][:, None] * (v[i] - torch.einsum("hk,hkv->hv", k[i], state))
        state = state + k[i][:, :, None] * u[:, None, :]
        out[i] = torch.einsum("hk,hkv->hv", q[i], state)
    return out


# ---- layers


class DeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.shared_by = c.linear_num_value_heads, c.linear_num_value_heads // c.linear_num_key_heads
        self.dims = c.linear_key_head_dim, c.linear_value_head_dim
        n_key, n_value = c.linear_num_key_heads * self.dims[0], self.heads * self.dims[1]
        self.parts, width = (n_key, n_key, n_value), 2 * n_key + n_value
        self.in_proj_qkv = Linear(c.hidden_size, width)
        self.in_proj_z = Linear(c.hidden_size, n_value)
        self.in_proj_b = Linear(c.hidden_size, self.heads)
        self.in_proj_a = Linear(c.hidden_size, self.heads)
        self.out_proj = Linear(n_value, c.hidden_size, 0.2)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(torch.randn(width, 1, c.linear_conv_kernel_dim) * 0.5)
        first = torch.exp(torch.linspace(-6.9, -2.3, self.heads))  # steps from 0.001 to 0.1
        self.dt_bias = nn.Parameter(first.expm1().log())
        self.A_log = nn.Parameter(torch.linspace(1, 8, self.heads).log())
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(self.dims[1]))
        self.eps = c.rms_norm_eps

    def convolve(self, x, positions):
        """A convolution over the previous rows of the same document."""
        w = self.conv1d.weight.to(x.dtype)
        n = w.shape[-1]
        out = x * w[:, 0, -1]
        for back in range(1, n):
            earlier = torch.cat((x[:back] * 0, x[:-back])) * (positions >= back)[:, None]
            out = out + earlier * w[:, 0, n - 1 - back]
        return F.silu(out)

    def before(self, h, positions):
        q, k, v = self.convolve(self.in_proj_qkv(h), positions).float().split(self.parts, -1)
        q, k = (self.unit(x.unflatten(-1, (-1, self.dims[0]))).repeat_interleave(self.shared_by, 1) for x in (q, k))
        decay = -self.A_log.exp() * F.softplus(self.in_proj_a(h).float() + self.dt_bias)
        decay = torch.where((positions == 0)[:, None], FORGET, decay)
        return q * self.dims[0] ** -0.5, k, v.unflatten(-1, (self.heads, -1)), decay, self.in_proj_b(h).float().sigmoid()

    @staticmethod
    def unit(x):
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

    def after(self, h, out):
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + self.eps) * self.norm.weight
        gated = out * F.silu(self.in_proj_z(h).float()).unflatten(-1, (self.heads, -1))
        return self.out_proj(gated.flatten(-2).to(h.dtype))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        n_q, n_kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.head_dim, self.rotated = c.head_dim, int(c.head_dim * c.rotary)
        self.q_proj = Linear(c.hidden_size, 2 * n_q)
        self.k_proj = Linear(c.hidden_size, n_kv)
        self.v_proj = Linear(c.hidden_size, n_kv)
        self.o_proj = Linear(n_q, c.hidden_size, 0.2)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.rms_norm_eps), Norm(c.head_dim, c.rms_norm_eps)

    def before(self, h, cos, sin):
        q, gate = self.q_proj(h).unflatten(-1, (-1, 2 * self.head_dim)).chunk(2, -1)
        k, v = (p(h).unflatten(-1, (-1, self.head_dim)) for p in (self.k_proj, self.v_proj))
        q, k = (self.rotate(x, cos, sin) for x in (self.q_norm(q), self.k_norm(k)))
        return q, k, v, gate

    def rotate(self, x, cos, sin):
        turned, rest = x[..., : self.rotated], x[..., self.rotated :]
        return torch.cat((llama.rotate(turned, cos, sin), rest), -1)

    def after(self, attended, gate):
        return self.o_proj((attended * gate.sigmoid()).flatten(-2))


class Layer(nn.Module):
    def __init__(self, c, attention):
        super().__init__()
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        if attention:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = DeltaNet(c)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.mlp = llama.Mlp(c)
        self.mixer = self.attention if attention else self.delta_net
        self.rule = delta_rule

    def attention(self, x, cos, sin, attend):
        q, k, v, gate = self.self_attn.before(self.input_layernorm(x), cos, sin)
        return self.feed(x + self.self_attn.after(attend(q, k, v), gate))

    def delta_net(self, x, cos, sin, attend):
        h = self.input_layernorm(x)
        out = self.rule(*self.linear_attn.before(h, attend.positions), attend.row)
        return self.feed(x + self.linear_attn.after(h, out))

    def feed(self, x):
        h, m = self.post_attention_layernorm(x), self.mlp
        return x + m.down_proj(F.silu(m.gate_proj(h)) * m.up_proj(h))

    def forward(self, x, cos, sin, attend):
        return self.mixer(x, cos, sin, attend)

    def compile(self):
        """Compiles the code around the attention kernels; all layers of a kind share it."""
        if hasattr(self, "self_attn"):
            a = self.self_attn
            a.before, a.after = torch.compile(a.before, dynamic=False), torch.compile(a.after, dynamic=False)
            self.feed = torch.compile(self.feed, dynamic=False)
        else:
            self.mixer = torch.compile(self.delta_net, dynamic=False)


class Twin(nn.Module):
    def __init__(self, config, dtype=torch.bfloat16):
        super().__init__()
        self.config, self.dtype = config, dtype
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.04)
        self.layers = nn.ModuleList(Layer(config, config.has_attention(i)) for i in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        rotated = int(config.head_dim * config.rotary)
        share = torch.arange(0, rotated, 2, dtype=torch.float64) / rotated
        angles = torch.arange(config.max_position_embeddings, dtype=torch.float64)[:, None] / config.rope_theta**share
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def attention_layer(self):
        return Layer(self.config, True)

    def embed(self, ids):
        return self.embed_tokens(ids).to(self.dtype)

    def hidden(self, ids, positions, attend):
        cos, sin = self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype))

    def compile(self):
        for layer in self.layers:
            layer.compile()

    # ---- files ----

    def save(self, folder, bos, eos, pad, head=None):
        """head: a multi-token prediction module, whose tensors are stored with the model's."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model.{name}": stored(name, p) for name, p in self.named_parameters()}
        tensors.update(head.tensors() if head else {})
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
        config = {**QWEN, **ids, **self.config.published()}
        if not head:
            del config["mtp_num_hidden_layers"]
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "generation_config.json").write_text(json.dumps({**ids, "do_sample": False}, indent=2) + "\n")


def stored(name, p):
    """Dtypes as published: the decay's base and the norm after the state in float32."""
    wide = name.endswith(("A_log", "linear_attn.norm.weight"))
    return p.detach().to(torch.float32 if wide else torch.bfloat16).contiguous().cpu()


def load(folder, dtype=torch.bfloat16):
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    model = Twin(Config(**{name: config[name] for name in Config.__dataclass_fields__}), dtype)
    tensors = load_file(folder / "model.safetensors")
    named = {n.removeprefix("model."): t.float() for n, t in tensors.items() if not n.startswith("mtp.")}
    model.load_state_dict(named)
    return model
