# SPDX-License-Identifier: Apache-2.0
"""The values of the GGUF formats whose numbers are digits to base 3 or points of grids. The grids are read from the C source,
which test/engine/device/blocks_test.c compares with the `gguf` package."""
import os
import re

import numpy

SOURCE = os.path.join(os.path.dirname(__file__), "../../engine/device/grids.c")


def points(name):
    """[points, digits] of a grid."""
    with open(SOURCE) as f:
        text = re.search(r"char %s\[\] =\s*([^;]*);" % name, f.read()).group(1)
    members = numpy.array([int(c, 16) for c in re.sub(r'["\s]', "", text)], numpy.uint8)
    numbers = numpy.flatnonzero(numpy.unpackbits(members[:, None], axis=1, bitorder="little")[:, :4])
    base, n = (8, 4) if "iq3" in name else (3, 8)
    numbers = numbers * (2 if "iq2" in name else 1)
    return numbers[:, None] // base ** numpy.arange(n) % base


def words(b, kind="<u2"):
    return numpy.ascontiguousarray(b).view(kind).astype(numpy.int64)


def fields(x, bits, n):
    """[..., m] words -> [..., m * n] fields, the first in the lowest bits."""
    return (x[..., None] >> bits * numpy.arange(n) & (1 << bits) - 1).reshape(*x.shape[:-1], -1)


def scaled(values, unit, steps):
    """values [blocks, 256], unit [blocks, 1] and odd steps [blocks, parts]."""
    scale = unit * (2 * steps + 1).astype("<f4")
    return values.astype("<f4").reshape(*scale.shape, -1) * scale[:, :, None]


def iq1(name, b):
    low = b[:, 2:34] if name == "IQ1_S" else b[:, :32]
    if name == "IQ1_S":
        w = words(b[:, 34:50])
        unit, high, steps, less = words(b[:, :2]), fields(w & 0xFFF, 3, 4), w >> 12 & 7, numpy.repeat(w >> 15, 4, axis=1)
    else:
        w, nibbles = words(b[:, 48:56]), fields(b[:, 32:48].astype(numpy.int64), 4, 2)
        unit = (w >> 12 << 4 * numpy.arange(4)).sum(axis=1, keepdims=True)
        high, steps, less = nibbles & 7, fields(w & 0xFFF, 3, 4), nibbles >> 3
    values = points("iq1")[low | high << 8] - 1 + (0.125 - 0.25 * less)[:, :, None]
    return scaled(values, unit.astype("<u2").view("<f2").astype("<f4"), steps)


def signs(bits, stored):
    """[..., 8] of 1 and -1; of seven stored signs the eighth follows."""
    negative = bits[..., None] >> numpy.arange(8) & 1
    if stored == 7:
        negative[..., 7] = negative[..., :7].sum(axis=-1) % 2
    return 1 - 2 * negative


def iq2_or_iq3(name, b):
    unit, low, stored = b[:, :2].copy().view("<f2").astype("<f4"), b[:, 2:34], 8
    if name == "IQ2_XXS":
        w = words(b[:, 2:], "<u4").reshape(len(b), 8, 2)
        index, negative, steps, stored = fields(w[:, :, 0], 8, 4), fields(w[:, :, 1] & (1 << 28) - 1, 7, 4), w[:, :, 1] >> 28, 7
    elif name == "IQ2_XS":
        w = words(b[:, 2:66])
        index, negative, steps, stored = w & 511, w >> 9, fields(words(b[:, 66:], "u1"), 4, 2), 7
    elif name == "IQ2_S":
        index, negative = low | fields(words(b[:, 66:74], "u1"), 2, 4) << 8, words(b[:, 34:66], "u1")
        steps = fields(words(b[:, 74:], "u1"), 4, 2)
    elif name == "IQ3_XXS":
        w = words(b[:, 66:], "<u4")
        index, negative, steps, stored = words(b[:, 2:66], "u1"), fields(w & (1 << 28) - 1, 7, 4), w >> 28, 7
    else:
        index = b[:, 2:66] | fields(words(b[:, 66:74], "u1"), 1, 8) << 8
        negative, steps = words(b[:, 74:106], "u1"), fields(words(b[:, 106:], "u1"), 4, 2)
    levels = {"2": (1, 3.125, 5.375), "3": (1, 3, 5, 7, 9, 11, 13, 15.5 if name == "IQ3_XXS" else 15)}[name[2]]
    values = numpy.array(levels)[points(name.lower())[index]].reshape(len(b), 32, 8)
    return scaled(values * signs(negative, stored), unit, steps)


def ternary(name, b):
    unit = b[:, -2:].copy().view("<f2").astype("<f4")
    if name == "TQ2_0":
        digits = b[:, :64].reshape(-1, 2, 1, 32) >> numpy.array([[0], [2], [4], [6]]) & 3
    else:
        powers = 3 ** numpy.arange(5)[:, None]
        parts = (b[:, :32], powers), (b[:, 32:48], powers), (b[:, 48:52], powers[:4])
        digits = numpy.concatenate([(q[:, None] * p % 256 * 3 >> 8).reshape(len(b), -1) for q, p in parts], axis=1)
    return (digits.reshape(len(b), -1).astype("<f4") - 1) * unit


FORMATS = {"IQ1_S": iq1, "IQ1_M": iq1, "IQ2_XXS": iq2_or_iq3, "IQ2_XS": iq2_or_iq3, "IQ2_S": iq2_or_iq3, "IQ3_XXS": iq2_or_iq3,
           "IQ3_S": iq2_or_iq3, "TQ1_0": ternary, "TQ2_0": ternary}
