#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares four computations of a demo twin: this folder's in chunks, this folder's row by row, transformers', and sluice's;
and compares the drafts of its module in sluice with those in this folder. All in float32. Needs torch and transformers.

    scripts/train_demo/check_twin.py --models models            a twin with random weights
    scripts/train_demo/check_twin.py --models models OUT        the bf16 folder that train_twin.py wrote
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

import heads
import model as llama
import tokenizer as tok
import train_twin
import twin

SLUICE = os.environ.get("SLUICE", str(Path(__file__).resolve().parents[2] / "build" / "sluice"))
ROWS, TOLERANCE, K = 320, 1e-3, 3
ALLOWED = [10, 20, 30, 40, 50, 60]  # small, so that a module with random weights is often right


def random_twin(models, folder):
    """Changes every weight from its initial value, so that an error in any of them shows."""
    tokenizer = tok.cut(models / "demo" / "tokenizer.json", train_twin.VOCAB)
    tok.save(tokenizer, folder)
    model = twin.Twin(twin.Config(train_twin.VOCAB), torch.float32)
    head = heads.Mtp(model)
    for part in (model, head):
        for p in part.parameters():
            p.data.add_(torch.randn_like(p) * (0.02 if p.dim() == 2 else 0.1))
    ids = [tokenizer.token_to_id(t) for t in (tok.BOS, tok.PAD)]
    model.save(folder, ids[0], [tokenizer.token_to_id(t) for t in (tok.IM_END, tok.EOS)], ids[1], head)


def load_module(folder, model):
    head, stored = heads.Mtp(model), load_file(folder / "model.safetensors")
    named = {n.removeprefix("mtp.").replace("layers.0.", "layer."): t.float() for n, t in stored.items() if n[:4] == "mtp."}
    head.load_state_dict(named)
    return head


def states(model, ids):
    """The normed states of these rows, and the logits; rows are padded to whole chunks."""
    n = -(-len(ids) // twin.CHUNK) * twin.CHUNK
    ids, positions = torch.tensor(ids + [0] * (n - len(ids))), torch.arange(n)
    found = model.hidden(ids, positions, llama.Packed(torch.tensor([0, n]), n, n, positions))
    return found


def drafts(model, head, tokens, fed, depth):
    """The module's drafts after these tokens; fed: the model's states of their rows."""
    tokens, before = list(tokens), torch.cat((torch.zeros(1, fed.shape[1]), fed[: len(tokens) - 1]))
    n = len(tokens)
    for _ in range(depth):
        m = len(tokens)
        positions = torch.arange(m)
        cos, sin = model.cos[positions].unsqueeze(-2), model.sin[positions].unsqueeze(-2)
        attend = llama.Packed(torch.tensor([0, m]), m, m, positions)
        out, state = head(model.embed(torch.tensor(tokens)), before, cos, sin, attend)
        logits = head.logits(out[-1], model)
        tokens.append(max(ALLOWED, key=lambda i: logits[i]))
        before = torch.cat((before, state[-1:]))
    return tokens[n:]


def accepted(model, head, prompt, answer):
    """(number of drafts, number of right ones) of a run with K drafts per step that gave this answer."""
    known, fed = prompt + answer, states(model, prompt + answer)
    at, end, n_drafts, n_right = len(prompt) + 1, len(known), 0, 0
    while at < end:
        found = drafts(model, head, known[:at], fed, min(K, end - at - 1))
        right = next((i for i, token in enumerate(found) if token != known[at + i]), len(found))
        n_drafts, n_right, at = n_drafts + len(found), n_right + right, at + right + 1
    return n_drafts, n_right


def generate(folder, requests, *flags):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    command = [SLUICE, "generate", str(folder), "--json", "--dtype", "float32", "--log-level", "error", *flags]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_logits(folder, model):
    ids = torch.randint(0, train_twin.VOCAB, (ROWS,)).tolist()
    told = torch.tensor(ids[1:])[:, None]

    def told_by(logits):
        return logits.float().log_softmax(-1)[: ROWS - 1].gather(1, told)[:, 0]

    in_chunks = told_by(model.logits(states(model, ids)))
    for layer in model.layers:
        layer.rule = twin.delta_rule_by_row
    others = {"row by row": told_by(model.logits(states(model, ids)))}
    for layer in model.layers:
        layer.rule = twin.delta_rule
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    others[f"transformers {transformers.__version__}"] = told_by(theirs(torch.tensor([ids])).logits[0])
    asked = {"prompt_token_ids": ids, "max_tokens": 1, "prompt_logprobs": True}
    others["sluice"] = torch.tensor(generate(folder, [asked])[0]["prompt_logprobs"][1:])
    off = {name: (found - in_chunks).abs().max().item() for name, found in others.items()}
    print("log-probabilities, largest difference from those in chunks:", {k: f"{v:.1e}" for k, v in off.items()})
    return max(off.values()) < TOLERANCE


def check_drafts(folder, model):
    head, good, total = load_module(folder, model), True, 0
    asked = [{"prompt_token_ids": torch.randint(0, train_twin.VOCAB, (n,)).tolist(), "max_tokens": 40, "temperature": 0,
              "ignore_eos": True, "allowed_token_ids": ALLOWED} for n in (2, 9, 30, 55)]  # longer ones start without drafts
    drafting = json.dumps({"method": "mtp", "num_speculative_tokens": K, "fixed": True})
    for request, answer in zip(asked, generate(folder, asked, "--speculative-config", drafting)):
        usage = answer["usage"]
        have = usage["draft_tokens"], usage["accepted_draft_tokens"]
        want = accepted(model, head, request["prompt_token_ids"], answer["outputs"][0]["token_ids"])
        good, total = good and have == want, total + want[1]
        print(f"drafts, accepted: sluice {have}, here {want}")
    return good and total > 12


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder that has demo/")
    parser.add_argument("folder", type=Path, nargs="?")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        if not args.folder:
            random_twin(args.models, folder)
        model = twin.load(folder, torch.float32)
        good = [check_logits(folder, model), check_drafts(folder, model)]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
