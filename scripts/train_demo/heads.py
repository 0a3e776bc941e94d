# SPDX-License-Identifier: Apache-2.0
"""Draft heads of the demo model: a multi-token prediction module and an EAGLE-3 head, in the form used for training.

A head's row of the token at position p reads the demo model's hidden state of p - 1 (zeros at 0) and predicts the token
at p + 1; while it drafts, it reads its own state of the previous row. Each head is therefore trained over several
steps: the first one uses the demo model's states, each later one the head's own states of the previous step.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import model as llama

EAGLE3_SHAPE = dict(
    intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1
)
EAGLE3_IDS = 1024  # number of ids that the EAGLE-3 head knows


def after_last(n_layers):
    """The layers after which an EAGLE-3 head takes states, if its config does not name them."""
    return [i - 1 for i in (2, n_layers // 2, n_layers - 3)]


def one_later(x, positions):
    """Shifts each row's state to the next row of its document."""
    return torch.cat((x[:1], x[:-1])) * (positions > 0)[:, None]


class Mtp(nn.Module):
    def __init__(self, demo):
        super().__init__()
        c, norm = demo.config, type(demo.norm)
        self.fc = llama.Linear(2 * c.hidden_size, c.hidden_size)
        self.pre_fc_norm_embedding = norm(c.hidden_size, c.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(c.hidden_size, c.rms_norm_eps)
        self.layer = demo.attention_layer()
        self.norm = norm(c.hidden_size, c.rms_norm_eps)

    def forward(self, embedding, state, cos, sin, attend):
        """The input of the lm_head, and the state for the next step."""
        both = (self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(state))
        out = self.norm(self.layer(self.fc(torch.cat(both, -1)), cos, sin, attend))
        return out, out

    def first(self, states, normed):
        return normed

    def logits(self, out, demo):
        return demo.logits(out)

    def tensors(self):
        found = {}
        for name, p in self.named_parameters():
            published = "layers.0." + name.removeprefix("layer.") if name.startswith("layer.") else name
            found["mtp." + published] = p.detach().bfloat16().contiguous().cpu()
        return found

    def save(self, folder):
        """Writes a separate file next to the demo model's, and adds its tensors to the index."""
        tensors, file, index_file = self.tensors(), "mtp.safetensors", folder / "model.safetensors.index.json"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index = json.loads(index_file.read_text())
        others = {k: v for k, v in index["weight_map"].items() if not k.startswith("mtp.")}
        index["weight_map"] = dict(sorted({**others, **dict.fromkeys(tensors, file)}.items()))
        index["metadata"]["total_size"] = sum(
            (folder / f).stat().st_size for f in set(index["weight_map"].values())
        )
        index_file.write_text(json.dumps(index, indent=2) + "\n")


class Eagle3Layer(llama.Layer):
    """q, k and v read the embedding concatenated with the state."""

    def __init__(self, c):
        super().__init__(c)
        a = self.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(a, name, llama.Linear(2 * c.hidden_size, getattr(a, name).weight.shape[0]))
        self.hidden_norm = llama.Norm(c.hidden_size, c.rms_norm_eps)

    def before(self, embedding, state, cos, sin):
        read, a = torch.cat((self.input_layernorm(embedding), self.hidden_norm(state)), -1), self.self_attn
        q, k, v = (p(read).unflatten(-1, (-1, self.head_dim)) for p in (a.q_proj, a.k_proj, a.v_proj))
        return llama.rotate(q, cos, sin), llama.rotate(k, cos, sin), v


class Eagle3(nn.Module):
    def __init__(self, demo, ids):
        super().__init__()
        c = self.config = llama.Config(**{**vars(demo.config), **EAGLE3_SHAPE})
        self.fc = llama.Linear(3 * c.hidden_size, c.hidden_size)
        self.midlayer = Eagle3Layer(c)
        self.norm = llama.Norm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = llama.Linear(c.hidden_size, len(ids))
        self.lm_head.weight.data.copy_(demo.embed_tokens.weight.data[ids])
        self.register_buffer("ids", ids, persistent=False)

    def forward(self, embedding, state, cos, sin, attend):
        q, k, v = self.midlayer.before(embedding, state, cos, sin)
        x = self.midlayer.after(state, attend(q, k, v))
        return self.norm(x), x

    def first(self, states, normed):
        return self.fc(torch.cat(states, -1))

    def logits(self, out, demo):
        return self.lm_head(out)

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        c, ids = self.config, self.ids.cpu()
        tensors = {n: p.detach().bfloat16().contiguous().cpu() for n, p in self.named_parameters()}
        known = torch.zeros(c.vocab_size, dtype=torch.bool)
        known[ids] = True
        tensors.update(d2t=ids - torch.arange(len(ids)), t2d=known)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "draft_vocab_size": len(ids),
            "target_hidden_size": c.hidden_size,
            **vars(c),
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


@torch.no_grad()
def demo_states(demo, ids, positions, attend):
    """The embeddings, x after the layers that EAGLE-3 reads, and the normalised output of the last one."""
    cos, sin = demo.cos[positions].unsqueeze(-2), demo.sin[positions].unsqueeze(-2)
    x = embedding = demo.embed(ids)
    states, wanted = [], after_last(len(demo.layers))
    for i, layer in enumerate(demo.layers):
        x = layer(x, cos, sin, attend)
        states += [x] if i in wanted else []
    return embedding, states, demo.norm(x), cos, sin


def losses(head, demo, ids, positions, attend, rows, n_steps, known=None):
    """For each step the distance from the demo model's distribution in these rows, and the share of rows where both
    predict the same token. known: the demo's ids that the head has."""
    embedding, states, normed, cos, sin = demo_states(demo, ids, positions, attend)
    with torch.no_grad():
        wanted = demo.logits(normed[rows]).float()
        best = wanted.argmax(-1)
        wanted = wanted if known is None else wanted[:, known]
        p = wanted.softmax(-1)
    state, found = head.first(states, normed), []
    for _ in range(n_steps):
        out, state = head(embedding, one_later(state, positions), cos, sin, attend)
        said = head.logits(out[rows], demo).float()
        loss = F.cross_entropy(said, p)
        guess = said.argmax(-1) if known is None else known[said.argmax(-1)]
        found.append((loss, (guess == best).float().mean()))
    return found


def frequent_ids(targets, weights, vocab, n, always):
    """The most frequent ids of answers, and some fixed ones."""
    counts = torch.bincount(targets[weights > 0.9], minlength=vocab).float()
    counts[always] = float("inf")
    return counts.topk(n).indices.sort().values
