#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains draft heads for models/demo: a multi-token prediction module, which goes into its folder, and an EAGLE-3 head,
models/demo-eagle3. The demo model itself stays as it is.

    train_heads.py --models models --minutes 2.5     on one large GPU
    train_heads.py --models /tmp/m --steps 3 --tiny  the whole path, on a CPU
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

import batches
import heads
import model as llama
import optimizer as opt
import tokenizer as tok
from train import learning_rate, to_device

SEED, MOST_ROWS, COUNTED = 2, 24576, 8  # rows per batch that are evaluated; number of batches whose answers determine the vocabulary


def judged_rows(weights, n):
    """Rows of answers, at most n of them."""
    rows = (weights > 0.9).nonzero()[:, 0]
    return rows if len(rows) <= n else rows[torch.randperm(len(rows), device=rows.device)[:n]].sort().values


def build(args, stream, device):
    demo = llama.load(args.models / "demo").to(device).bfloat16()
    demo.cos, demo.sin = demo.cos.float(), demo.sin.float()
    for p in demo.parameters():
        p.requires_grad_(False)
    torch.manual_seed(SEED)
    first = [stream.next() for _ in range(COUNTED if not args.tiny else 1)]
    targets = torch.cat([torch.from_numpy(b[1].astype("int64")) for b in first])
    weights = torch.cat([torch.from_numpy(b[2].astype("float32")) for b in first]) * tok.WEIGHT_UNIT
    tokenizer = tok.tokenizers.Tokenizer.from_file(str(args.models / "demo" / "tokenizer.json"))
    always = [tokenizer.token_to_id(t) for t in (tok.IM_END, tok.EOS)]
    ids = heads.frequent_ids(targets, weights, demo.config.vocab_size, heads.EAGLE3_IDS, always)
    return demo, {"mtp": heads.Mtp(demo).to(device), "eagle3": heads.Eagle3(demo, ids).to(device)}


def save(args, found):
    found["mtp"].save(args.models / "demo")
    found["eagle3"].save(args.models / "demo-eagle3")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder that has demo/")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0, help="train for about this long instead of --steps")
    parser.add_argument("--unroll", type=int, default=4, help="number of consecutive drafts to train")
    parser.add_argument("--rows", type=int, default=32, help="rows of 4,096 tokens in a batch")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.002)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--log-every", type=int, default=25)
    args = parser.parse_args()
    if not (args.steps or args.minutes):
        parser.error("one of --steps and --minutes is needed")
    started, device = time.time(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    n_rows, row = (1, 512) if args.tiny else (args.rows, tok.MAX_TOKENS)
    stream = batches.Batches(args.models / "demo" / "tokenizer.json", args.workers, n_rows, row, 0, 0)
    demo, found = build(args, stream, device)
    for name, head in found.items():
        print(f"{name}: {sum(p.numel() for p in head.parameters()):,} parameters", flush=True)
    optimizer = opt.Optimizer(list(found.values()), lr=args.lr, adam_lr=args.adam_lr)
    begun, step, progress = time.time(), 0, 0.0
    ready = to_device(stream.next(), device, row)
    while progress < 1:
        ids, _, weights, positions, attend = ready
        rows, seen = judged_rows(weights, MOST_ROWS), {}
        for name, head in found.items():
            seen[name] = heads.losses(head, demo, ids, positions, attend, rows, args.unroll, getattr(head, "ids", None))
            sum(loss * 0.8**i for i, (loss, _) in enumerate(seen[name])).backward()
        ready = to_device(stream.next(), device, row)
        progress = (step + 1) / args.steps if args.steps else (time.time() - begun) / (60 * args.minutes)
        optimizer.step(max(learning_rate(min(progress, 1.0)), 0.0))
        step += 1
        if step % args.log_every == 0 or progress >= 1:
            agree = {n: " ".join(f"{a.item():.4f}" for _, a in v) for n, v in seen.items()}
            print(f"{step:6} {time.time() - begun:.0f} s agree {agree} waited {stream.waited}", flush=True)
    stream.close()
    save(args, found)
    print(json.dumps({"steps": step, "tokens": step * n_rows * row, "seconds": round(time.time() - started, 1)}))


if __name__ == "__main__":
    main()
