# SPDX-License-Identifier: Apache-2.0
"""Replaces the stored weights of a model by a description from which test/model/seeded.py draws new ones: names, shapes and
spread of its tensors."""

import collections
import json
import math
import re
import sys
from pathlib import Path

import torch
from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "test" / "model"))  # behind this folder, which has another golden.py
import seeded  # noqa: E402

STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}


def stored_tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})
    return found


def round_number(x):
    """One of few numbers, so that tensors of one kind have the same description."""
    if x == 0 or math.isinf(x):
        return str(x) if x else 0
    size = 10.0 ** math.floor(math.log10(abs(x)))
    value = min(STEPS, key=lambda step: abs(step - abs(x) / size)) * size
    return float(f"{math.copysign(value, x):.2g}")


def spread(tensors):
    """Mean and deviation of all values; a mean near 0 or 1 is 0 or 1."""
    values = torch.cat([t.float().flatten() for t in tensors])
    if bool((values == values[0]).all()):
        return round_number(values[0].item()), 0
    mean, deviation = values.mean().item(), values.std().item()
    nearest = round(mean)
    mean = nearest if nearest in (0, 1) and abs(mean - nearest) < 0.5 * deviation else round_number(mean)
    return mean, round_number(deviation)


def rows_of(tensors):
    """One row per tensor: (parts of the name, each a set of alternatives; the rest of the row)."""
    def kind(name, tensor):
        return re.sub(r"\.\d+(?=\.)", ".#", name), tensor.shape, tensor.dtype

    kinds = collections.defaultdict(list)
    for name, tensor in tensors.items():
        kinds[kind(name, tensor)].append(tensor)
    rows = []
    for name, tensor in tensors.items():
        dtype = DTYPES[tensor.dtype]
        rest = (tuple(tensor.shape), *spread(kinds[kind(name, tensor)]), *([dtype] if dtype != "BF16" else []))
        rows.append((tuple(frozenset([part]) for part in name.split(".")), rest))
    return rows


def merged(rows):
    """Joins rows that differ in one part of the name, beginning with the last part."""
    for at in reversed(range(max(len(parts) for parts, _ in rows))):
        joined = {}
        for parts, rest in rows:
            key = (parts[:at], parts[at + 1:], len(parts), rest)
            joined.setdefault(key, []).extend(parts[at:at + 1])
        rows = [((*before, frozenset().union(*here), *after)[:n], rest) for (before, after, n, rest), here in joined.items()]
    return rows


def written(part):
    """The alternatives as in a shell."""
    if len(part) == 1:
        return next(iter(part))
    if not all(p.isdigit() for p in part):
        return "{" + ",".join(sorted(part)) + "}"
    spans = []
    for n in sorted(int(p) for p in part):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return "{" + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) + "}"


def described(tensors, seed, n_shards):
    value = {"seed": seed, **({"shards": n_shards} if n_shards > 1 else {})}
    value["tensors"] = [[".".join(written(p) for p in parts), *rest] for parts, rest in merged(rows_of(tensors))]
    return {**value, "sha256": seeded.digest(value)}


def write_description(source, folder, seed, n_shards=1):
    """The source may be the folder itself."""
    value = described(stored_tensors(source), seed, n_shards)
    for path in folder.glob("model*.safetensors*"):
        path.unlink()
    rows = value.pop("tensors")
    text = json.dumps(value)[:-1] + ', "tensors": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]}\n"
    (folder / "tensors.json").write_text(text)
