#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make or check the tiny encoders of test/golden-encoders with transformers.

    encoders.py --make test/golden-encoders [NAME ...]    the rows below, or those named
    encoders.py --check test/golden-encoders/bert ...     recompute expected.json and compare

Weights are drawn (describe.py), and so are those of dense modules. expected.json holds, for prompts of ids, the pooled hidden states or
the logits; for texts, the vector that sentence-transformers would make of them, or the logits of a pair. All of it is computed in fp32
from the bf16 weights; bf16_mean_error is that of transformers' own bf16 run.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from describe import seeded, stored_tensors, write_description
from golden import draw_ids, fill_weights, seed_of

DECIMALS, TOLERANCE = 5, 2.5e-5
SIZES = {"vocab_size": 384, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80,
         "max_position_embeddings": 200}
MODULE = "sentence_transformers.models."
WORDS = ("the quick brown fox jumps over lazy dogs while ranking models read every query with its passage what is a neural network it "
         "returns vectors of numbers and answers how long do trees live in forests where rivers run to sea").split()
TEXTS = ["What is a neural network?", "how long do trees live", "The quick brown fox jumps over lazy dogs."]
PAIRS = [("What is a neural network?", "It returns vectors of numbers."), ("how long do trees live", "every query with its passage"),
         ("how long do trees live", "Trees live long in forests where rivers run to the sea.")]
ROWS = {
    "bert": {"model_type": "bert", "pooling": "cls_token"},
    "bert-reranker": {"model_type": "bert", "config": {"num_labels": 1},
                      "extra": {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}},
    "xlm-roberta-reranker": {"model_type": "xlm-roberta", "config": {"num_labels": 1, "type_vocab_size": 1, "pad_token_id": 1}},
    "roberta": {"model_type": "roberta", "config": {"type_vocab_size": 1, "pad_token_id": 1}, "pooling": "max_tokens"},
    "distilbert-classes": {"model_type": "distilbert", "config": {
        "dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 80, "id2label": {0: "bad", 1: "fair", 2: "good"}}},
    "nomic-bert": {"model_type": "nomic_bert", "pooling": "mean_tokens"},
    "modernbert": {"model_type": "modernbert", "config": {"local_attention": 16, "num_hidden_layers": 5, "pad_token_id": 1},
                   "pooling": "mean_tokens"},
    "modernbert-reranker": {"model_type": "modernbert", "config": {
        "local_attention": 16, "num_labels": 1, "classifier_pooling": "mean", "pad_token_id": 1}},
    "embeddinggemma": {"model_type": "gemma3_text", "config": {
        "head_dim": 16, "num_key_value_heads": 2, "num_hidden_layers": 7, "sliding_window": 24, "query_pre_attn_scalar": 16,
        "use_bidirectional_attention": True}, "pooling": "mean_tokens", "dense": [(48, 96), (96, 32)]},
}


def tokenizer_of(family):
    corpus = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
    if family in ("bert", "distilbert", "nomic_bert"):
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.normalizer = normalizers.BertNormalizer(lowercase=True)
        tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tok.decoder = decoders.WordPiece()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tok.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False))
        tok.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        return tok
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tok.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tok.train_from_iterator([*corpus, *TEXTS], trainers.BpeTrainer(vocab_size=160, special_tokens=special, show_progress=False))
    between = "" if family == "modernbert" else "</s> "
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair=f"<s> $A </s> {between}$B </s>",
                                                       special_tokens=[("<s>", 0), ("</s>", 2)])
    return tok


def write_modules(row, folder):
    """The files of sentence-transformers."""
    if "pooling" not in row:
        return
    names = [("", "Transformer"), ("1_Pooling", "Pooling"), *((f"{i + 2}_Dense", "Dense") for i in range(len(row.get("dense", [])))),
             (f"{len(row.get('dense', [])) + 2}_Normalize", "Normalize")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": MODULE + kind} for i, (path, kind) in enumerate(names)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    kinds = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": 48, **{f"pooling_mode_{k}": k == row["pooling"] for k in kinds}, "include_prompt": True}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2) + "\n")
    generator = torch.Generator().manual_seed(seed_of(folder.name))
    for i, (n_in, n_out) in enumerate(row.get("dense", [])):
        path = folder / f"{i + 2}_Dense"
        path.mkdir(exist_ok=True)
        act = "activation.Tanh" if i == 0 else "linear.Identity"
        config = {"in_features": n_in, "out_features": n_out, "bias": i == 0, "activation_function": f"torch.nn.modules.{act}"}
        (path / "config.json").write_text(json.dumps(config) + "\n")
        tensors = {"linear.weight": torch.randn(n_out, n_in, generator=generator) * n_in ** -0.5}
        tensors.update({"linear.bias": torch.randn(n_out, generator=generator) * 0.2} if i == 0 else {})
        save_file({k: v.to(torch.bfloat16) for k, v in tensors.items()}, path / "model.safetensors")
        write_description(path, path, f"{folder.name} {i}")


def make(name, folder):
    row = ROWS[name]
    family = row["model_type"]
    sizes = {} if family == "distilbert" else SIZES
    config = AutoConfig.for_model(family, **{**sizes, "vocab_size": 384, "max_position_embeddings": 200, **row.get("config", {})})
    kind = AutoModel if "pooling" in row else AutoModelForSequenceClassification
    model = kind.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        fill_weights(model, torch.Generator().manual_seed(seed_of(name)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tensors.json").unlink(missing_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **row.get("extra", {})}, indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer_of(family).save(str(folder / "tokenizer.json"), pretty=False)
    write_description(folder, folder, name)
    write_modules(row, folder)
    (folder / "expected.json").write_text(json.dumps(expected(folder), separators=(",", ":")) + "\n")
    print(f"{name:22} {sum(f.stat().st_size for f in folder.rglob('*.json')) / 1e3:.1f} kB")


# ---- computing ----


def load(folder):
    """The model in fp32 and in bf16, and the dense modules, from the drawn bf16 weights."""
    config = json.loads((folder / "config.json").read_text())
    kind = AutoModelForSequenceClassification if "Classification" in config["architectures"][0] else AutoModel
    with tempfile.TemporaryDirectory() as whole:
        seeded.complete(folder, whole)
        both = [kind.from_pretrained(whole, dtype=d, attn_implementation="eager").eval() for d in (torch.float32, torch.bfloat16)]
        dense = []
        for part in sorted(folder.glob("*_Dense")):
            module = json.loads((part / "config.json").read_text())
            linear = torch.nn.Linear(module["in_features"], module["out_features"], module["bias"])
            stored = stored_tensors(Path(whole) / part.name)
            linear.load_state_dict({k.removeprefix("linear."): v.float() for k, v in stored.items()})
            dense.append((linear, torch.nn.Tanh() if "Tanh" in module["activation_function"] else torch.nn.Identity()))
    return both, dense


def rounded(tensor):
    return [round(v, DECIMALS) for v in tensor.float().tolist()]


@torch.no_grad()
def run(model, ids, second=0):
    """The hidden states, or the logits. `second`: the first token of type 1."""
    types = {}
    if second and getattr(model.config, "type_vocab_size", 1) > 1:
        types["token_type_ids"] = torch.tensor([[int(i >= second) for i in range(len(ids))]])
    out = model(torch.tensor([ids]), **types)
    return out.logits[0].float() if "logits" in out else out.last_hidden_state[0].float()


POOLINGS = {"first": lambda h: h[0], "mean": lambda h: h.mean(0), "last": lambda h: h[-1], "max": lambda h: h.max(0).values}
OF_MODULE = {"cls_token": "first", "mean_tokens": "mean", "lasttoken": "last", "max_tokens": "max"}


@torch.no_grad()
def vector(folder, hidden, dense):
    """What the folder's modules make of hidden states."""
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    kind = next(name for key, name in OF_MODULE.items() if pooling[f"pooling_mode_{key}"])
    out = POOLINGS[kind](hidden)
    for linear, act in dense:
        out = act(linear(out))
    return torch.nn.functional.normalize(out, dim=0)


def case(models_, folder, prompt, dense):
    exact, rough = (run(m, prompt) for m in models_)
    value = {"prompt": prompt, "bf16_mean_error": round((exact - rough).abs().mean().item(), DECIMALS)}
    if exact.dim() == 1:
        return {**value, "logits": rounded(exact)}
    return {**value, **{name: rounded(of(exact)) for name, of in POOLINGS.items() if not dense}}


def expected(folder):
    both, dense = load(folder)
    tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    value = {"family": both[0].config.model_type, "transformers": transformers.__version__}
    value["cases"] = [case(both, folder, draw_ids(f"{folder.name} {n}", n, 384), dense) for n in (9, 150)]
    if (folder / "modules.json").exists():
        value["texts"] = [{"text": t, "vector": rounded(vector(folder, run(both[0], tok.encode(t).ids), dense))} for t in TEXTS]
    else:
        value["texts"] = [{"text": t, "logits": rounded(run(both[0], tok.encode(t).ids))} for t in TEXTS]
    if getattr(both[0].config, "num_labels", 0) == 1 and not (folder / "modules.json").exists():
        value["pairs"] = []
        for a, b in PAIRS:
            e = tok.encode(a, b)
            second = e.type_ids.index(1) if 1 in e.type_ids else 0
            value["pairs"].append({"query": a, "document": b, "n": len(e.ids), "logits": rounded(run(both[0], e.ids, second))})
    return value


def numbers(value):
    if isinstance(value, dict):
        return [n for key in value if key not in ("transformers", "bf16_mean_error") for n in numbers(value[key])]
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    return [value]


def check(folder):
    stored, computed = numbers(json.loads((folder / "expected.json").read_text())), numbers(expected(folder))
    same = len(stored) == len(computed) and all(isinstance(a, float) or a == b for a, b in zip(stored, computed))
    worst = max((abs(a - b) for a, b in zip(stored, computed) if isinstance(a, float)), default=0.0)
    good = same and worst <= TOLERANCE
    print(f"{folder.name:22} {'ok' if good else 'DIFFERS'} largest difference {worst:.1e}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--make", metavar="DIR", type=Path)
    mode.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*", help="with --make: rows; with --check: folders")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.make:
        for name in args.names or ROWS:
            make(name, args.make / name)
        return
    results = [check(Path(name)) for name in args.names]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
