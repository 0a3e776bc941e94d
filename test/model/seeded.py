# SPDX-License-Identifier: Apache-2.0
"""Models whose weights are not stored: tensors.json tells how they are drawn, the same on every machine.

    {"seed": TEXT, "sha256": of all tensors' bytes, "shards": number of files (1 if missing), "file": name of a single one,
     "tensors": [[names, shape, mean, deviation, dtype (BF16 if missing)], ...]}

Names are written as in a shell: `layers.{0-3}.{up,down}_proj.weight` are eight tensors. A tensor's values are 256 quantiles of a
normal distribution, each picked by a byte of SHAKE-256 of the seed and the name."""
import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import re
import statistics
import struct

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUANTILES = [statistics.NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)]
WIDTH = {"BF16": 2, "F32": 4}


def names(pattern):
    """All names in the order in which they are written."""
    def options(text):
        span = re.fullmatch(r"(\d+)-(\d+)", text)
        return [str(i) for i in range(int(span[1]), int(span[2]) + 1)] if span else [text]

    parts = re.split(r"{(.*?)}", pattern)  # every other one was in braces
    choices = [[o for t in p.split(",") for o in options(t)] if i % 2 else [p] for i, p in enumerate(parts)]
    return ["".join(row) for row in itertools.product(*choices)]


def encoded(value, dtype):
    """Little-endian, rounded to the nearest."""
    raw = struct.pack("<f", value)
    if dtype == "F32":
        return raw
    bits = struct.unpack("<I", raw)[0]
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


@functools.lru_cache(maxsize=None)
def tables(mean, deviation, dtype):
    """For each byte of an element, the table that translates a random byte to it."""
    values = [encoded(mean + deviation * q if deviation else mean, dtype) for q in QUANTILES]
    return [bytes(v[k] for v in values) for k in range(WIDTH[dtype])]


def drawn(seed, name, shape, mean, deviation, dtype="BF16"):
    random = hashlib.shake_256(f"{seed} {name}".encode()).digest(math.prod(shape))
    out = bytearray(len(random) * WIDTH[dtype])
    for k, table in enumerate(tables(float(mean), float(deviation), dtype)):
        out[k::WIDTH[dtype]] = random.translate(table)
    return bytes(out)


def contents(description):
    """Each tensor: (name, shape, dtype, bytes)."""
    for pattern, shape, *how in description["tensors"]:
        for name in names(pattern):
            yield name, shape, how[2] if len(how) > 2 else "BF16", drawn(description["seed"], name, shape, *how)


def digest(description):
    return hashlib.sha256(b"".join(data for _, _, _, data in contents(description))).hexdigest()


def replace(path, data):
    """Other programs may read the old file, or write the same one."""
    with open(f"{path}.{os.getpid()}", "wb") as f:
        f.write(data)
    os.replace(f.name, path)


def write_file(path, tensors, origin):
    header, size = {"__metadata__": {"format": "pt", "drawn_from": origin}}, 0
    for name, shape, dtype, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [size, size + len(data)]}
        size += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    replace(path, b"".join([struct.pack("<Q", len(text)), text, *(data for *_, data in tensors)]))


def origin_of(path):
    """What the file was drawn from; None if there is no such file."""
    if not os.path.exists(path):
        return None
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return header.get("__metadata__", {}).get("drawn_from")


def draw(source, folder):
    """Writes the weights that source/tensors.json describes to the folder, unless they are there."""
    with open(os.path.join(source, "tensors.json"), "rb") as f:
        text = f.read()
    origin, description = hashlib.sha256(text).hexdigest(), json.loads(text)
    n = description.get("shards", 1)
    one = description.get("file", "model.safetensors")
    files = [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)] if n > 1 else [one]
    if all(origin_of(os.path.join(folder, file)) == origin for file in files):
        return
    tensors = list(contents(description))
    if hashlib.sha256(b"".join(data for *_, data in tensors)).hexdigest() != description["sha256"]:
        raise ValueError(f"{source}: the drawn weights are not those that expected.json was computed with")
    where = {name: files[i % n] for i, (name, *_) in enumerate(tensors)}
    for old in os.listdir(folder):
        if old.endswith((".safetensors", ".safetensors.index.json")) and old not in files:
            with contextlib.suppress(FileNotFoundError):  # another program may have removed it
                os.remove(os.path.join(folder, old))
    if n > 1:
        index = {"metadata": {"total_size": sum(len(data) for *_, data in tensors)}, "weight_map": where}
        replace(os.path.join(folder, "model.safetensors.index.json"), json.dumps(index).encode())
    for file in files:
        write_file(os.path.join(folder, file), [t for t in tensors if where[t[0]] == file], origin)


def complete(source, folder):
    """Makes the folder a model: links to the files of the source, and its weights, also in folders in it."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(source):
        link = os.path.join(folder, name)
        if os.path.isdir(os.path.join(source, name)):
            complete(os.path.join(source, name), link)
            continue
        target = os.path.relpath(os.path.join(source, name), folder)
        if not os.path.islink(link):
            os.symlink(target, f"{link}.{os.getpid()}")
            os.replace(f"{link}.{os.getpid()}", link)
    if os.path.exists(os.path.join(source, "tensors.json")):
        draw(source, folder)
    return folder


def complete_all():
    """All models of test/golden and test/golden-families; returns the two folders with them."""
    made = []
    for group in ("golden", "golden-families"):
        source, folder = os.path.join(ROOT, "test", group), os.path.join(ROOT, "build", group)
        for name in os.listdir(source):
            if os.path.isdir(os.path.join(source, name)):
                complete(os.path.join(source, name), os.path.join(folder, name))
        made.append(folder)
    return made


if __name__ == "__main__":
    complete_all()
