#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains models/demo and models/demo-draft together, evaluates both, and writes them as Hugging
Face folders.

    train.py --out models --steps 3000           the full training, on one large GPU (minutes)
    train.py --out /tmp/tiny --tiny --steps 40   the whole path with tiny models, on a CPU
    train.py --out models --eval-only            evaluate existing models (CPU or GPU)
    train.py --out models --tokenizer-only       write only the tokenizer and template files

The draft learns from the same batches: from the right answers and from the large model's predictions.
With --minutes the number of steps follows from the measured speed; the report has that number, and
--steps repeats the run.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import batches
import model as llama
import offline_eval
import tokenizer as tok

DEMO = dict(
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=10,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
)
DRAFT = dict(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
)
TINY_DEMO = dict(
    DEMO, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
)
TINY_DRAFT = dict(DRAFT, hidden_size=32, intermediate_size=64, num_hidden_layers=1)

SEED = 1
WARM_UP, COOL_DOWN = 0.02, 0.5
SPEED_FROM, SPEED_TO = 20, 60
N_SHARDS = {"demo": 2, "demo-draft": 1}


def learning_rate(progress):
    """Rises, stays constant, and falls to zero over the last half."""
    return min(1.0, progress / WARM_UP + 0.02, (1 - progress) / COOL_DOWN)


def losses(demo, draft, demo_hidden, draft_hidden, targets, weights):
    """Weighted cross-entropy of both, and the draft's distance from the demo model on answer tokens."""
    logits, small = demo.logits(demo_hidden).float(), draft.logits(draft_hidden).float()
    total = weights.sum()
    loss = (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / total
    small_loss = (F.cross_entropy(small, targets, reduction="none") * weights).sum() / total
    wanted, said = F.log_softmax(logits.detach(), -1), F.log_softmax(small, -1)
    distance = ((wanted.exp() * (wanted - said)).sum(-1) * weights).sum() / total
    answers = weights > 0.9
    right = ((logits.argmax(-1) == targets) & answers).sum() / answers.sum()
    agreed = ((logits.argmax(-1) == small.argmax(-1)) & answers).sum() / answers.sum()
    return loss, small_loss, distance, right, agreed


def to_device(batch, device, row):
    ids, targets, weights, positions, starts = batch
    longest = int((starts[1:] - starts[:-1]).max())

    def move(a, dtype):
        t = torch.from_numpy(a.astype(dtype))
        return t.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else t

    positions = move(positions, "int64")
    return (
        move(ids, "int64"),
        move(targets, "int64"),
        move(weights, "float32") * tok.WEIGHT_UNIT,
        positions,
        llama.Packed(move(starts, "int32"), longest, row, positions),
    )


def save(models, out, tokenizer):
    ids = {name: tokenizer.token_to_id(t) for name, t in (("bos", tok.BOS), ("pad", tok.PAD))}
    ends = [tokenizer.token_to_id(t) for t in (tok.IM_END, tok.EOS)]
    for name, model in models.items():
        model.save(out / name, N_SHARDS[name], ids["bos"], ends, ids["pad"])


def build(args, device, tokenizer):
    torch.manual_seed(SEED)
    shapes = {
        "demo": TINY_DEMO if args.tiny else DEMO,
        "demo-draft": TINY_DRAFT if args.tiny else DRAFT,
    }
    if args.resume:
        models = {name: llama.load(args.resume / name) for name in shapes}
    else:
        models = {
            name: llama.Llama(llama.Config(vocab_size=tok.VOCAB, **shape))
            for name, shape in shapes.items()
        }
    for name, model in models.items():
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
        model.to(device)
    return models


def train(args, models, device, tokenizer, started):
    import optimizer as opt

    demo, draft = models["demo"], models["demo-draft"]
    n_rows, row = (4, 1024) if args.tiny else (args.rows, tok.MAX_TOKENS)
    stream = batches.Batches(
        args.out / "demo" / "tokenizer.json",
        args.workers,
        n_rows,
        row,
        args.curriculum,
        args.first_batch,
    )
    optimizer = opt.Optimizer([demo, draft], lr=args.lr, adam_lr=args.adam_lr)
    compute = losses
    if args.compile:
        demo.compile(), draft.compile()
        compute = torch.compile(losses, dynamic=False)
    steps, log, begun = args.steps or 10**9, [], time.time()
    step, saved = 0, time.time()
    ready = to_device(stream.next(), device, row)
    while step < steps:
        ids, targets, weights, positions, attend = ready
        found = compute(
            demo,
            draft,
            demo.hidden(ids, positions, attend),
            draft.hidden(ids, positions, attend),
            targets,
            weights,
        )
        loss, small_loss, distance = found[:3]
        (loss + 0.5 * small_loss + 0.5 * distance).backward()
        ready = to_device(stream.next(), device, row)
        optimizer.step(
            learning_rate(step / steps if args.steps or step > SPEED_TO else 0.001 * step)
        )
        step += 1
        if not args.steps and step in (SPEED_FROM, SPEED_TO):
            if device.type == "cuda":
                torch.cuda.synchronize()
            if step == SPEED_TO:
                left = args.minutes * 60 - (time.time() - begun)
                args.steps = steps = step + int(
                    left * (SPEED_TO - SPEED_FROM) / (time.time() - measured)
                )
                print(f"{steps} steps", flush=True)
            measured = time.time()
        if step % args.log_every == 0 or step == steps:
            values = [round(v.item(), 4) for v in found]
            log.append([step, *values])
            seconds = time.time() - begun
            print(
                f"{step:6} loss {values[0]:.4f} draft {values[1]:.4f} distance {values[2]:.4f}"
                f" right {values[3]:.4f} agree {values[4]:.4f} "
                f" {step * n_rows * row / seconds / 1e6:.2f} Mtok/s waited {stream.waited}"
                f" {time.time() - started:.0f} s",
                flush=True,
            )
        if time.time() - saved > args.save_every:
            save(models, args.out, tokenizer)
            saved = time.time()
    stream.close()
    save(models, args.out, tokenizer)
    return {
        "steps": steps,
        "tokens": steps * n_rows * row,
        "seconds": round(time.time() - begun, 1),
        "log": log,
    }


def evaluate(args, device, tokenizer):
    """Reads the stored files again, so that the shipped models are measured."""
    asked = offline_eval.Answers(tok.Encoder(tokenizer), args.cases)
    report = {"cases_per_task": args.cases}
    answers = {}
    for name in ("demo", "demo-draft"):
        model = llama.load(args.out / name).to(device).bfloat16()
        model.cos, model.sin = model.cos.float(), model.sin.float()
        answers[name] = asked.of(model)
        report[name], wrong = asked.accuracy(answers[name])
        if name == "demo":
            for task, cases in wrong.items():
                for question, text, answer in cases[:2]:
                    print(
                        f"wrong {task}: {question!r}: {text[-200:]!r}, not {str(answer)[-200:]!r}"
                    )
    report["agreement"] = asked.agreement(model, answers["demo"])
    print(f"\n{'task':14} {'demo':>7} {'draft':>7} {'agree':>7}")
    for task in report["demo"]:
        print(
            f"{task:14} {report['demo'][task]:7.3f} {report['demo-draft'][task]:7.3f}"
            f" {report['agreement'][task]:7.3f}"
        )
    return report


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder that gets demo/ and demo-draft/"
    )
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=0, help="train for about this long instead of --steps"
    )
    parser.add_argument("--rows", type=int, default=32, help="rows of 4,096 tokens in a batch")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument(
        "--curriculum",
        type=float,
        default=1.0,
        help="factor for the length of the curriculum; 0: full documents from the start",
    )
    parser.add_argument(
        "--first-batch",
        type=int,
        default=0,
        help="number of the first batch, to continue after --resume",
    )
    parser.add_argument("--resume", type=Path, help="begin with the models of this folder")
    parser.add_argument("--compile", action="store_true", help="compile the layers")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cases", type=int, default=100, help="held-out cases of each task")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=float, default=60, help="seconds between checkpoints")
    parser.add_argument("--eval-only", action="store_true")
    parser.add_argument(
        "--no-eval", action="store_true", help="leave the evaluation to a later --eval-only"
    )
    parser.add_argument("--tokenizer-only", action="store_true")
    parser.add_argument("--report", type=Path, help="write the figures as JSON to this file")
    args = parser.parse_args()
    started = time.time()
    if not (args.eval_only or args.tokenizer_only or args.steps or args.minutes):
        parser.error("one of --steps, --minutes, --eval-only, --tokenizer-only is needed")
    file = args.out / "demo" / "tokenizer.json"
    # An existing one is kept: another version of the library may train a slightly different one.
    tokenizer = tok.tokenizers.Tokenizer.from_file(str(file)) if file.exists() else tok.train()
    for name in N_SHARDS:
        tok.save(tokenizer, args.out / name)
    if args.tokenizer_only:
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    if not args.eval_only:
        report["training"] = train(args, build(args, device, tokenizer), device, tokenizer, started)
        report["arguments"] = " ".join(sys.argv[1:])
    if not args.no_eval:
        print(f"evaluation begins at {time.time() - started:.0f} s", flush=True)
        report["evaluation"] = evaluate(args, device, tokenizer)
    print(f"done at {time.time() - started:.0f} s", flush=True)
    if args.report:
        args.report.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
