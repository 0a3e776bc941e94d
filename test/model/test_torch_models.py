# SPDX-License-Identifier: Apache-2.0
"""Models of the years of pytorch_model.bin files, with the names and the buffers that the hub's files have, compared with
transformers."""
import json
import os
import shutil

import pytest

import golden
from api import Server

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYERS, POSITIONS = 2, 128
SIZES = {"vocab_size": 384, "hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
IDS = [5, 6, 7, 8, 9, 100, 200, 300, 11, 12]


def mask(dtype):
    return torch.tril(torch.ones(POSITIONS, POSITIONS)).to(dtype).view(1, 1, POSITIONS, POSITIONS)


def opt():
    return transformers.OPTForCausalLM(transformers.OPTConfig(**SIZES, ffn_dim=128, max_position_embeddings=POSITIONS,
                                                              word_embed_proj_dim=64))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=384, n_embd=64, n_layer=LAYERS, n_head=4, n_positions=POSITIONS))


def pythia():
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES, intermediate_size=128, max_position_embeddings=POSITIONS,
                                                                      rotary_pct=0.25, tie_word_embeddings=False))


def falcon():
    return transformers.FalconForCausalLM(transformers.FalconConfig(**SIZES, multi_query=True, parallel_attn=True, bias=False, alibi=False,
                                                                    max_position_embeddings=POSITIONS))


def bare(prefix):
    """Saved without the head, which is tied, and without the name of the model in it."""
    return lambda names: {k: k.removeprefix(prefix) for k in names if k != "lm_head.weight"}


def same(names):
    return {k: k for k in names}


# The model; the names in the file; the dtype; the number of files; buffers of each layer.
ROWS = {
    "opt-125m": (opt, same, torch.float16, 1, {}),
    "opt-6.7b": (opt, bare("model."), torch.float16, 2, {}),
    "gpt2": (gpt2, bare("transformer."), torch.float32, 1, {"h.%d.attn.bias": mask(torch.float32)}),
    "gpt2 trained on": (gpt2, same, torch.float32, 1, {"transformer.h.%d.attn.bias": mask(torch.uint8),
                                                       "transformer.h.%d.attn.masked_bias": torch.tensor(-1e4)}),
    "pythia": (pythia, lambda names: {k: "embed_out.weight" if k == "lm_head.weight" else k for k in names}, torch.float16, 1, {
        "gpt_neox.layers.%d.attention.bias": mask(torch.bool), "gpt_neox.layers.%d.attention.masked_bias": torch.tensor(-1e9),
        "gpt_neox.layers.%d.attention.rotary_emb.inv_freq": torch.ones(2)}),
    "falcon-7b": (falcon, same, torch.bfloat16, 2, {}),
}


def saved(folder, row):
    """Writes the model; returns it, in fp32, with the values that were saved."""
    make, names, dtype, n_files, buffers = ROWS[row]
    torch.manual_seed(1)
    model = make().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_((0.2 * torch.randn(p.shape) + (1 if "norm" in name and p.dim() == 1 else 0)).to(dtype))
    made = {names(model.state_dict())[k]: v.to(dtype) for k, v in model.state_dict().items() if k in names(model.state_dict())}
    made.update({name % i: value for name, value in buffers.items() for i in range(LAYERS)})
    os.makedirs(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(golden.GOLDEN, "llama-2", name), folder)
    config = {**model.config.to_dict(), "torch_dtype": str(dtype).removeprefix("torch.")}
    config.pop("dtype")
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    files = ["pytorch_model.bin"] if n_files == 1 else [f"pytorch_model-{i + 1:05}-of-{n_files:05}.bin" for i in range(n_files)]
    for i, file in enumerate(files):
        torch.save(dict(list(made.items())[i::n_files]), os.path.join(folder, file))
    if n_files > 1:
        with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as f:
            json.dump({"weight_map": {k: files[i % n_files] for i, k in enumerate(made)}}, f)
    return model


@pytest.mark.parametrize("row", ROWS)
def test_scores_are_those_of_transformers(row, tmp_path):
    folder = str(tmp_path / "m")
    model = saved(folder, row)
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([IDS])).logits[0], -1)
    got = golden.generate(folder, [{"prompt_token_ids": IDS, "max_tokens": 1, "prompt_logprobs": True}], "--dtype", "float32")
    for i, logprob in enumerate(got[0]["prompt_logprobs"][1:]):
        assert abs(scores[i, IDS[i + 1]].item() - logprob) < 1e-3


@pytest.mark.parametrize("row", ["opt-125m", "pythia"])
def test_a_server(row, tmp_path):
    folder = str(tmp_path / "m")
    model = saved(folder, row)
    want = list(IDS)
    with torch.no_grad():
        for _ in range(5):
            want.append(model(torch.tensor([want])).logits[0, -1].argmax().item())
    with Server(real=True, model=folder) as s:
        r = s.post("/v1/completions", {"prompt": IDS, "max_tokens": 5, "temperature": 0, "ignore_eos": True,
                                       "return_token_ids": True}).json()
        assert r["choices"][0]["token_ids"] == want[len(IDS):]
        assert "weights are read from PyTorch's files: pytorch_model.bin" in s.stderr()
