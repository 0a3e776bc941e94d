# SPDX-License-Identifier: Apache-2.0
"""A plain Llama in PyTorch: training over packed documents, generation with a cache, Hugging Face
files.

Activations are bf16 between the layers, as in a server; parameters are fp32 while training.
"""

import inspect
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None


@dataclass
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 4096
    rope_theta: float = 100000.0
    rms_norm_eps: float = 1e-5


class Linear(nn.Module):
    def __init__(self, n_in, n_out, scale=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * scale / n_in**0.5)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight.to(x.dtype)


def rotate(x, cos, sin):
    """x: [..., heads, head_dim]; cos, sin: [..., 1, head_dim / 2]."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q_proj = Linear(c.hidden_size, c.num_attention_heads * c.head_dim)
        self.k_proj = Linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.v_proj = Linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.o_proj = Linear(c.num_attention_heads * c.head_dim, c.hidden_size, 0.2)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = Linear(c.hidden_size, c.intermediate_size)
        self.up_proj = Linear(c.hidden_size, c.intermediate_size)
        self.down_proj = Linear(c.intermediate_size, c.hidden_size, 0.2)


class Layer(nn.Module):
    """Two halves around the attention, which differs between training and generation."""

    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.mlp = Mlp(c)
        self.head_dim = c.head_dim

    def before(self, x, cos, sin):
        h, a = self.input_layernorm(x), self.self_attn
        q, k, v = (p(h).unflatten(-1, (-1, self.head_dim)) for p in (a.q_proj, a.k_proj, a.v_proj))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def after(self, x, attended):
        x = x + self.self_attn.o_proj(attended.flatten(-2))
        h, m = self.post_attention_layernorm(x), self.mlp
        return x + m.down_proj(F.silu(m.gate_proj(h)) * m.up_proj(h))

    def forward(self, x, cos, sin, attend):
        return self.after(x, attend(*self.before(x, cos, sin)))


class Packed:
    """Causal attention inside each document of a packed batch [tokens, heads, head_dim]."""

    def __init__(self, starts, longest, row, positions):
        self.starts, self.longest, self.row, self.positions = starts, longest, row, positions
        self.use_varlen = varlen_attn is not None and starts.is_cuda
        if self.use_varlen:
            names = inspect.signature(varlen_attn).parameters
            self.kwargs = (
                {"window_size": (-1, 0)} if "window_size" in names else {"is_causal": True}
            )
            self.gqa = "enable_gqa" in names
        if not self.use_varlen:
            # Without that kernel: a mask for each row of `row` tokens, for small runs on a CPU.
            n = int(starts[-1])
            document = torch.searchsorted(
                starts, torch.arange(n, device=starts.device), right=True
            ).view(-1, row)
            same = document[:, :, None] == document[:, None, :]
            self.mask = (
                same & torch.ones(row, row, dtype=torch.bool, device=starts.device).tril()
            )[:, None]

    def __call__(self, q, k, v):
        groups = q.shape[1] // k.shape[1]
        if self.use_varlen:
            if self.gqa:
                return varlen_attn(
                    q,
                    k,
                    v,
                    self.starts,
                    self.starts,
                    self.longest,
                    self.longest,
                    enable_gqa=True,
                    **self.kwargs,
                )
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            return varlen_attn(
                q, k, v, self.starts, self.starts, self.longest, self.longest, **self.kwargs
            )
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        q, k, v = (t.unflatten(0, (-1, self.row)).transpose(1, 2) for t in (q, k, v))
        return (
            F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
            .transpose(1, 2)
            .flatten(0, 1)
        )


class Cached:
    """Attention over a cache of left-padded sequences [batch, time, heads, head_dim]."""

    def __init__(self, n_layers):
        self.keys, self.values = [None] * n_layers, [None] * n_layers
        self.layer, self.mask = 0, None

    def begin(self, mask):
        self.layer, self.mask = 0, mask

    def __call__(self, q, k, v):
        i = self.layer
        self.layer += 1
        if self.keys[i] is not None:
            k, v = torch.cat((self.keys[i], k), 1), torch.cat((self.values[i], v), 1)
        self.keys[i], self.values[i] = k, v
        groups = q.shape[2] // k.shape[2]
        q, k, v = (
            t.transpose(1, 2)
            for t in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2))
        )
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.04)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = (
            torch.arange(config.max_position_embeddings, dtype=torch.float64)[:, None]
            / config.rope_theta**half
        )
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def attention_layer(self):
        return Layer(self.config)

    def embed(self, ids):
        return self.embed_tokens(ids).bfloat16()

    def hidden(self, ids, positions, attend):
        cos, sin = self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype))

    def compile(self):
        """Compiles the code of one layer's halves; all layers have the same shapes and share it."""
        for layer in self.layers:
            layer.before = torch.compile(layer.before, dynamic=False)
            layer.after = torch.compile(layer.after, dynamic=False)

    # ---- generation ----

    @torch.no_grad()
    def generate(self, prompts, max_tokens, ends, pad):
        """Greedy continuations of a batch of prompts, each cut after its first id of `ends`."""
        device, n = self.norm.weight.device, len(prompts)
        longest = max(map(len, prompts))
        ids = torch.full((n, longest), pad)
        for row, prompt in zip(ids, prompts):
            row[longest - len(prompt) :] = torch.tensor(prompt)
        ids = ids.to(device)
        first = torch.tensor([longest - len(p) for p in prompts], device=device)
        time = torch.arange(longest + max_tokens, device=device)
        visible = time[None, :] >= first[:, None]
        causal = time[None, :longest] <= time[:longest, None]
        # A padded row sees itself, because its softmax needs something to sum over.
        mask = (visible[:, None, :longest] & causal) | torch.eye(
            longest, dtype=torch.bool, device=device
        )
        cache = Cached(self.config.num_hidden_layers)
        cache.begin(mask[:, None])
        positions = (time[None, :longest] - first[:, None]).clamp(min=0)
        hidden = self.hidden(ids, positions, cache)[:, -1]
        ends = torch.tensor(ends, device=device)
        done = torch.zeros(n, dtype=torch.bool, device=device)
        found = []
        for step in range(max_tokens):
            token = self.logits(hidden).float().argmax(-1)
            found.append(token)
            done |= torch.isin(token, ends)
            at = longest + step
            if at + 1 >= self.config.max_position_embeddings or (
                step % 8 == 7 and bool(done.all())
            ):
                break
            cache.begin(visible[:, None, None, : at + 1])
            hidden = self.hidden(token[:, None], (at - first)[:, None], cache)[:, -1]
        stop = set(ends.tolist())
        return [cut(row, stop) for row in torch.stack(found, 1).tolist()]

    # ---- files ----

    def tensors(self):
        return {
            f"model.{name}": p.detach().bfloat16().contiguous().cpu()
            for name, p in self.named_parameters()
        }

    def save(self, folder, n_shards, bos, eos, pad):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.tensors()
        if n_shards == 1:
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        else:
            save_shards(tensors, folder, n_shards)
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "torch_dtype": "bfloat16",
            "rope_scaling": None,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": pad,
            **asdict(self.config),
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        generation = {
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": pad,
            "do_sample": False,
        }
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def cut(ids, stop):
    for i, token in enumerate(ids):
        if token in stop:
            return ids[: i + 1]
    return ids


def save_shards(tensors, folder, n_shards):
    """Splits the tensors, in order, into shards of about equal size, with the index that
    transformers writes."""
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    shards, size = [{} for _ in range(n_shards)], 0
    for name, tensor in tensors.items():
        shards[min(n_shards - 1, size * n_shards // total)][name] = tensor
        size += tensor.numel() * tensor.element_size()
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def load(folder):
    folder = Path(folder)
    stored = json.loads((folder / "config.json").read_text())
    model = Llama(Config(**{name: stored[name] for name in Config.__dataclass_fields__}))
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):  # not those of the draft module
        tensors.update(load_file(file))
    model.load_state_dict({name.removeprefix("model."): t.float() for name, t in tensors.items()})
    return model
