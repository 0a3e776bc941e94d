#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes test/gguf/blocks.json: a checksum of the values of random blocks of each GGUF format according to the `gguf`
package.

    pip install gguf                                                # version used: 0.19.0
    scripts/golden/blocks.py > test/gguf/blocks.json

Bytes are drawn from a hash of the format's name, so blocks_test can draw them, too. Bit 6 of the bytes that `exponents`
names is cleared: of the high byte of each scale of 16 bits and of MXFP4's exponent, which could be NaN or infinite. There
are so many numbers that every point of a grid occurs. Each sum is the SHA-256 of the numbers as little-endian f32.
"""
import hashlib
import json
import sys

import gguf
import numpy

EXPONENTS = {"Q4_0": [1], "Q4_1": [1, 3], "Q5_0": [1], "Q5_1": [1, 3], "Q8_0": [1], "Q2_K": [81, 83], "Q3_K": [109],
             "Q4_K": [1, 3], "Q5_K": [1, 3], "Q6_K": [209], "IQ4_NL": [1], "IQ4_XS": [1], "MXFP4": [0], "IQ1_S": [1],
             "IQ1_M": [55], "IQ2_XXS": [1], "IQ2_XS": [1], "IQ2_S": [1], "IQ3_XXS": [1], "IQ3_S": [1], "TQ1_0": [53],
             "TQ2_0": [65]}
NUMBERS = 1 << 18


def stream(name, n):
    parts = (hashlib.sha256(("%s %d" % (name, i)).encode()).digest() for i in range((n + 31) // 32))
    return numpy.frombuffer(b"".join(parts)[:n], numpy.uint8).copy()


def blocks(name):
    n, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = stream(name, NUMBERS // n * n_bytes).reshape(-1, n_bytes)
    data[:, EXPONENTS[name]] &= 0xBF
    return data


def main():
    rows = {}
    for name, exponents in EXPONENTS.items():
        values = gguf.quants.dequantize(blocks(name).reshape(1, -1), gguf.GGMLQuantizationType[name])
        values = numpy.ascontiguousarray(values, "<f4")
        rows[name] = {"exponents": exponents, "sha256_f32": hashlib.sha256(values.tobytes()).hexdigest()}
    print("{\n%s\n}" % ",\n".join("%s: %s" % (json.dumps(k), json.dumps(row)) for k, row in rows.items()))


if __name__ == "__main__":
    sys.exit(main())
