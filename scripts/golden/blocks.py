#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes test/gguf/blocks.json: some random blocks of each GGUF format, and a checksum of their values according to the
`gguf` package.

    pip install gguf                                                # version used: 0.19.0
    scripts/golden/blocks.py > test/gguf/blocks.json

Bytes are drawn from a hash of the format's name. The scales of a block are 16-bit floats, whose bits are changed where
they would be NaN or infinity, as are exponents of MXFP4 that would be 255. Each sum is the SHA-256 of the numbers as
little-endian f32.
"""
import hashlib
import json
import sys

import gguf
import numpy

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K",
           "IQ4_XS")
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "MXFP4": (),
          "Q2_K": (80, 82), "Q3_K": (108,)}
NUMBERS = 1024


def stream(name, n):
    out, i = b"", 0
    while len(out) < n:
        out += hashlib.sha256(("%s %d" % (name, i)).encode()).digest()
        i += 1
    return numpy.frombuffer(out[:n], numpy.uint8).copy()


def blocks(name):
    n, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = stream(name, NUMBERS // n * n_bytes).reshape(-1, n_bytes)
    for at in HALVES.get(name, (0,)):
        high = data[:, at + 1]
        data[:, at + 1] = numpy.where(high & 0x7C == 0x7C, high & 0xBF, high)
    if name == "MXFP4":
        data[:, 0] = numpy.where(data[:, 0] > 250, 120, data[:, 0])
        data[:2, 0] = 0, 1  # subnormal powers of two
    return data


def main():
    rows = {}
    for name in FORMATS:
        data = blocks(name)
        values = gguf.quants.dequantize(data.reshape(1, -1), gguf.GGMLQuantizationType[name])
        values = numpy.ascontiguousarray(values, "<f4")
        rows[name] = {"blocks": data.tobytes().hex(), "n": values.size,
                      "sha256_f32": hashlib.sha256(values.tobytes()).hexdigest()}
    print(json.dumps(rows, indent=0))


if __name__ == "__main__":
    sys.exit(main())
