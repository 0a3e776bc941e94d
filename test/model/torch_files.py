# SPDX-License-Identifier: Apache-2.0
"""Writes files as torch.save does, without torch. test_torch_files.py checks that torch reads them."""
import json
import os
import struct
import zipfile

STORAGES = {"F32": "FloatStorage", "BF16": "BFloat16Storage", "F16": "HalfStorage", "I64": "LongStorage", "BOOL": "BoolStorage"}
WIDTHS = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "BOOL": 1}


def text(s):
    return b"X" + struct.pack("<I", len(s.encode())) + s.encode()


def integers(values):
    return b"(" + b"".join(b"J" + struct.pack("<i", v) for v in values) + b"t"


def strides(shape):
    steps = [1]
    for n in reversed(shape[1:]):
        steps.insert(0, steps[0] * n)
    return steps[:len(shape)]


def tensor(key, dtype, shape, n_bytes):
    storage = b"(" + text("storage") + f"ctorch\n{STORAGES[dtype]}\n".encode() + text(key) + text("cpu")
    storage += b"J" + struct.pack("<i", n_bytes // WIDTHS[dtype]) + b"tQ"
    args = storage + b"K\0" + integers(shape) + integers(strides(shape)) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + args + b"tR"


def archive(path, pickle, storages):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", pickle)
        z.writestr("archive/byteorder", "little")
        for key, data in storages.items():
            z.writestr(f"archive/data/{key}", data)
        z.writestr("archive/version", "3\n")


def save(path, tensors):
    """`tensors`: (dtype, shape, bytes) by name."""
    entries, storages = b"", {}
    for i, (name, (dtype, shape, data)) in enumerate(tensors.items()):
        entries += text(name) + tensor(str(i), dtype, shape, len(data))
        storages[str(i)] = data
    archive(path, b"\x80\x02ccollections\nOrderedDict\n)R(" + entries + b"u.", storages)


def stored(path):
    """The tensors of a safetensors file, as for save."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for k, t in header.items()}


def without_weights(source, folder):
    """A folder with all files of a model but its weights."""
    os.makedirs(folder)
    for name in os.listdir(source):
        if "safetensors" not in name and name != "tensors.json":
            os.symlink(os.path.realpath(os.path.join(source, name)), os.path.join(folder, name))
    return str(folder)
