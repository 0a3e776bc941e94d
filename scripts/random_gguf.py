#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a llama.cpp model file (GGUF, bf16) of a Llama's shape with random weights, for comparisons of speed.

    scripts/random_gguf.py 8b /dev/shm/8b.gguf       16 GB, about 10 s

Shapes: 1b (tied, as Llama-3.2-1B), 8b (Llama-3.1-8B), tiny. The vocabulary consists of words
such as "t1000". Weights repeat one block of normally distributed numbers: speed does not depend on them.
Needs numpy.
"""
import os
import struct
import sys

import numpy

from random_model import CONTEXT, SHAPES, words

F32, BF16 = 0, 30  # types of tensors
UINT32, FLOAT32, STRING, ARRAY, INT32, BOOL = 4, 6, 8, 9, 5, 7  # types of values
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # types of tokens
ALIGNMENT = 32


def string(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(kind, x):
    if kind == STRING:
        return string(x)
    return struct.pack({UINT32: "<I", FLOAT32: "<f", INT32: "<i", BOOL: "<?"}[kind], x)


def entry(key, kind, x):
    return string(key) + struct.pack("<I", kind) + value(kind, x)


def entries(key, kind, values):
    head = string(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
    return head + b"".join(value(kind, x) for x in values)


def metadata(s):
    tokens = words(s)
    kinds = [UNKNOWN, CONTROL, CONTROL, BYTE] + [NORMAL] * (len(tokens) - 4)
    return [
        entry("general.architecture", STRING, "llama"),
        entry("llama.vocab_size", UINT32, s["vocab"]),
        entry("llama.context_length", UINT32, CONTEXT),
        entry("llama.embedding_length", UINT32, s["hidden"]),
        entry("llama.block_count", UINT32, s["layers"]),
        entry("llama.feed_forward_length", UINT32, s["ffn"]),
        entry("llama.attention.head_count", UINT32, s["heads"]),
        entry("llama.attention.head_count_kv", UINT32, s["kv_heads"]),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        entry("llama.rope.freq_base", FLOAT32, 500000.0),
        entry("llama.rope.dimension_count", UINT32, s["head"]),
        entry("tokenizer.ggml.model", STRING, "llama"),
        entries("tokenizer.ggml.tokens", STRING, tokens),
        entries("tokenizer.ggml.scores", FLOAT32, [0.0] * len(tokens)),
        entries("tokenizer.ggml.token_type", INT32, kinds),
        entry("tokenizer.ggml.bos_token_id", UINT32, 1),
        entry("tokenizer.ggml.eos_token_id", UINT32, 2),
        entry("tokenizer.ggml.unknown_token_id", UINT32, 0),
        entry("tokenizer.ggml.add_bos_token", BOOL, False),
    ]


def tensors(s):
    """(name, rows, columns); rows 0: a vector."""
    h, kv = s["hidden"], s["kv_heads"] * s["head"]
    yield "token_embd.weight", s["vocab"], h
    yield "output_norm.weight", 0, h
    if not s["tied"]:
        yield "output.weight", s["vocab"], h
    for i in range(s["layers"]):
        for name, rows, columns in (("attn_norm", 0, h), ("attn_q", s["heads"] * s["head"], h), ("attn_k", kv, h),
                                    ("attn_v", kv, h), ("attn_output", h, s["heads"] * s["head"]), ("ffn_norm", 0, h),
                                    ("ffn_gate", s["ffn"], h), ("ffn_up", s["ffn"], h), ("ffn_down", h, s["ffn"])):
            yield "blk.%d.%s.weight" % (i, name), rows, columns


def padded(n):
    return (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def write(path, shape):
    s = SHAPES[shape]
    infos, sizes, at = [], [], 0
    for name, rows, columns in tensors(s):
        dims = (columns, rows) if rows else (columns,)
        n_bytes = columns * (2 * rows if rows else 4)
        info = string(name) + struct.pack("<I", len(dims)) + struct.pack("<%dQ" % len(dims), *dims)
        infos.append(info + struct.pack("<IQ", BF16 if rows else F32, at))
        sizes.append((rows, columns, n_bytes))
        at += padded(n_bytes)
    keys = metadata(s)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys + infos)
    normal = numpy.random.default_rng(1).standard_normal(1 << 24, dtype=numpy.float32) * numpy.float32(0.02)
    numbers = memoryview((normal.view(numpy.uint32) >> 16).astype(numpy.uint16)).cast("B")
    with open(path, "wb") as f:
        f.write(head + bytes(padded(len(head)) - len(head)))
        for rows, columns, n_bytes in sizes:
            if not rows:
                f.write(numpy.ones(columns, numpy.float32).tobytes())
            for begin in range(0, n_bytes if rows else 0, len(numbers)):
                f.write(numbers[: n_bytes - begin])
            f.write(bytes(padded(n_bytes) - n_bytes))


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(__doc__)
    write(sys.argv[2], sys.argv[1])
    print("%s: %.2f GB" % (sys.argv[2], os.path.getsize(sys.argv[2]) / 1e9))


if __name__ == "__main__":
    main()
