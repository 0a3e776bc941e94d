#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains models/demo-twin, a small Qwen3.5 (gated delta nets beside attention), and then its multi-token prediction module.

    train_twin.py --models models --out OUT --minutes 5.2 --head-minutes 1 --compile      on one large GPU
    train_twin.py --models models --out OUT --steps 3 --head-steps 2 --tiny               the whole path, on a CPU

The tokenizer is the demo model's with fewer merges, so that the embedding stays small. OUT gets a folder in bf16;
`sluice quantize OUT models/demo-twin --format int8` makes what is shipped.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import batches
import heads
import optimizer as opt
import tokenizer as tok
import twin
from train import learning_rate, to_device
from train_heads import judged_rows

SEED, VOCAB, ROW = 3, 704, 5120
CURRICULUM = ((0, 640), (80_000_000, 1920), (200_000_000, ROW))
UNROLL, MOST_ROWS = 3, 24576


class Progress:
    """From 0 to 1, by steps or by the clock."""

    def __init__(self, steps, minutes):
        self.steps, self.minutes, self.step, self.begun = steps, minutes, 0, time.time()

    def at(self):
        return self.step / self.steps if self.steps else min(1.0, (time.time() - self.begun) / (60 * self.minutes))

    def seconds(self):
        return time.time() - self.begun


def loss_of(logits, targets, weights):
    """Weighted cross-entropy, and the share of the answers' tokens that are right."""
    logits, answers = logits.float(), weights > 0.9
    loss = (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
    return loss, ((logits.argmax(-1) == targets) & answers).sum() / answers.sum()


def train_trunk(args, model, stream, device, save):
    optimizer = opt.Optimizer([model], lr=args.lr, adam_lr=args.adam_lr)
    progress, saved = Progress(args.steps, args.minutes), time.time()
    ready, log = to_device(stream.next(), device, args.row), []
    while progress.at() < 1:
        ids, targets, weights, positions, attend = ready
        loss, right = loss_of(model.logits(model.hidden(ids, positions, attend)), targets, weights)
        loss.backward()
        ready = to_device(stream.next(), device, args.row)
        optimizer.step(max(learning_rate(progress.at()), 0.0))
        progress.step += 1
        if progress.step % args.log_every == 0 or progress.at() >= 1:
            n = progress.step * args.rows * args.row
            log.append([progress.step, round(loss.item(), 4), round(right.item(), 4)])
            print(f"{progress.step:6} loss {log[-1][1]:.4f} right {log[-1][2]:.4f} {n / 1e6:.1f} Mtok "
                  f"{n / progress.seconds() / 1e6:.3f} Mtok/s waited {stream.waited} {progress.seconds():.0f} s", flush=True)
        if time.time() - saved > args.save_every:
            save(None)
            saved = time.time()
    return {"steps": progress.step, "tokens": progress.step * args.rows * args.row, "seconds": round(progress.seconds(), 1),
            "log": log}


def train_head(args, model, head, stream, device):
    """The module learns the twin's distributions; the twin stays as it is."""
    for p in model.parameters():
        p.requires_grad_(False)
    optimizer = opt.Optimizer([head], lr=args.lr, adam_lr=args.adam_lr)
    progress, seen = Progress(args.head_steps, args.head_minutes), []
    while progress.at() < 1:
        ids, _, weights, positions, attend = to_device(stream.next(), device, args.row)
        seen = heads.losses(head, model, ids, positions, attend, judged_rows(weights, MOST_ROWS), UNROLL)
        sum(loss * 0.8**i for i, (loss, _) in enumerate(seen)).backward()
        optimizer.step(max(learning_rate(progress.at()), 0.0))
        progress.step += 1
        if progress.step % args.log_every == 0 or progress.at() >= 1:
            agree = " ".join(f"{a.item():.4f}" for _, a in seen)
            print(f"{progress.step:6} module agrees {agree} {progress.seconds():.0f} s", flush=True)
    return {"steps": progress.step, "seconds": round(progress.seconds(), 1), "agree": [round(a.item(), 4) for _, a in seen]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder that contains demo/, whose tokenizer is used")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0, help="train for about this long instead of --steps")
    parser.add_argument("--head-steps", type=int, default=0)
    parser.add_argument("--head-minutes", type=float, default=0)
    parser.add_argument("--rows", type=int, default=26, help="rows of a batch")
    parser.add_argument("--row", type=int, default=ROW, help="tokens of a row, a multiple of 64")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument("--curriculum", type=float, default=1.0, help="factor for the length of the curriculum; 0: full documents from the start")
    parser.add_argument("--first-batch", type=int, default=0, help="number of the first batch, to continue after --resume")
    parser.add_argument("--resume", type=Path, help="begin with the model of this folder")
    parser.add_argument("--compile", action="store_true", help="compile the layers")
    parser.add_argument("--float32", action="store_true", help="activations in float32: faster on a CPU without bf16")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=float, default=60, help="seconds between checkpoints")
    parser.add_argument("--report", type=Path, help="write the figures as JSON to this file")
    args = parser.parse_args()
    if not (args.steps or args.minutes) or not (args.head_steps or args.head_minutes):
        parser.error("--steps or --minutes, and --head-steps or --head-minutes, are needed")
    if args.tiny:
        args.rows, args.row = 2, 512
    if args.row % twin.CHUNK:
        parser.error(f"--row must be a multiple of {twin.CHUNK}")
    return args


def main():
    args = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    tokenizer = tok.cut(args.models / "demo" / "tokenizer.json", VOCAB)
    tok.save(tokenizer, args.out, twin.Config(VOCAB).max_position_embeddings)
    stream = batches.Batches(args.out / "tokenizer.json", args.workers, args.rows, args.row, args.curriculum,
                             args.first_batch, CURRICULUM)
    torch.manual_seed(SEED)
    dtype = torch.float32 if args.float32 else torch.bfloat16
    model = twin.load(args.resume, dtype) if args.resume else twin.Twin(twin.Config(VOCAB), dtype)
    head = heads.Mtp(model).to(device)
    model.to(device)
    sizes = [sum(p.numel() for p in m.parameters()) for m in (model, head)]
    print(f"demo-twin: {sizes[0]:,} parameters, {sizes[1]:,} in the module", flush=True)
    if args.compile:
        model.compile()
    ids = [tokenizer.token_to_id(t) for t in (tok.BOS, tok.PAD)]
    ends = [tokenizer.token_to_id(t) for t in (tok.IM_END, tok.EOS)]

    def save(head):
        model.save(args.out, ids[0], ends, ids[1], head)

    report = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    report["training"] = train_trunk(args, model, stream, device, save)
    save(None)
    report["module"] = train_head(args, model, head, stream, device)
    save(head)
    stream.close()
    if args.report:
        args.report.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
