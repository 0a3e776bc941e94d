# SPDX-License-Identifier: Apache-2.0
"""How each quantised format stores a matrix, for quant_variants.py: from the format's specification, and independent of the
server's readers. Every function returns the tensors by suffix, and the values that they encode."""

import json

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E2M1 = torch.cat([E2M1, -E2M1])
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334]
NF4 += [-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224]
NF4 = torch.tensor([*NF4, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])
FP4 = torch.tensor([0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0]) / 12
FP4 = torch.cat([FP4, -FP4])
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def cut(n, by):
    return -(-n // by)


def spread(grid, rows, cols, shape):
    return grid.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(cols, 1)[:, : shape[1]]


def extremes(w, rows, cols):
    """Least and greatest of each block; both include zero."""
    n, m = cut(w.shape[0], rows), cut(w.shape[1], cols)
    room = torch.zeros(n * rows, m * cols)
    room[: w.shape[0], : w.shape[1]] = w
    blocks = room.view(n, rows, m, cols)
    return blocks.amin((1, 3)), blocks.amax((1, 3))


def block_scales(w, rows, cols, top, dtype):
    low, high = extremes(w, rows, cols)
    return (torch.maximum(-low, high) / top).clamp(min=1e-4).to(dtype)


def fields(codes, bits, dim):
    """Packs integers along a dimension, the first into the lowest bits of each word."""
    codes, n = codes.transpose(dim, -1).long(), 32 // bits
    room = torch.zeros(*codes.shape[:-1], cut(codes.shape[-1], n) * n, dtype=torch.long)
    room[..., : codes.shape[-1]] = codes
    words = (room.view(*room.shape[:-1], -1, n) << (bits * torch.arange(n))).sum(-1)
    return words.to(torch.uint32).view(torch.int32).transpose(dim, -1).contiguous()


def whole(w, bits, group, dtype, asymmetric, groups=None):
    """Quantises to unsigned codes: returns them, scales and zeros [out][groups], and the values. `groups` has each
    input's group."""
    columns = torch.arange(w.shape[1]) // group if groups is None else groups
    order = torch.argsort(columns, stable=True)
    low, high = extremes(w[:, order], 1, group)
    top = 2**bits - 1
    if asymmetric:
        s = ((high - low) / top).clamp(min=1e-4).to(dtype)
        z = torch.round(-low / s.float()).clamp(1, top)
    else:
        s = (torch.maximum(-low, high) / (2 ** (bits - 1) - 0.5)).clamp(min=1e-4).to(dtype)
        z = torch.full_like(low, 2 ** (bits - 1))
    by_column, zeros = s.float()[:, columns], z[:, columns]
    codes = torch.round(w / by_column + zeros).clamp(0, top)
    return codes, s, z, (codes - zeros) * by_column


def fp8(w, block, dtype, name, shape=None):
    s = block_scales(w, *block, 448.0, dtype)
    by_value = spread(s.float(), *block, w.shape)
    codes = (w / by_value).clamp(-448, 448).to(torch.float8_e4m3fn)
    stored = s if shape is None else s.reshape(shape)
    return {".weight": codes, name: stored}, codes.float() * by_value


def int8(w, group, dtype, asymmetric, per_tensor=False):
    if per_tensor:
        s = block_scales(w, *w.shape, 127.0, dtype)
        codes = torch.round(w / s.float()).clamp(-128, 127)
        return {".weight": codes.to(torch.int8), ".weight_scale": s.reshape(1)}, codes * s.float()
    codes, s, z, values = whole(w, 8, group, dtype, asymmetric)
    made = {".weight": (codes - 128).to(torch.int8), ".weight_scale": s}
    if asymmetric:
        made[".weight_zero_point"] = (z - 128).to(torch.int8)
    return made, values


def packed(w, bits, group, dtype, asymmetric, groups=None):
    codes, s, z, values = whole(w, bits, group, dtype, asymmetric, groups)
    made = {
        ".weight_packed": fields(codes, bits, 1),
        ".weight_scale": s,
        ".weight_shape": torch.tensor(w.shape),
    }
    if asymmetric:
        made[".weight_zero_point"] = fields(z, bits, 0)
    if groups is not None:
        made[".weight_g_idx"] = groups.to(torch.int32)
    return made, values


def awq(w, group, dtype, asymmetric):
    codes, s, z, values = whole(w, 4, group, dtype, asymmetric)

    def words(grid):
        return fields(grid.T.reshape(-1, w.shape[0] // 8, 8)[:, :, AWQ_ORDER], 4, 2)[:, :, 0]

    made = {".qweight": words(codes), ".qzeros": words(z), ".scales": s.T.contiguous()}
    return {name: t.contiguous() for name, t in made.items()}, values


def gptq(w, bits, group, dtype, asymmetric, offset, groups=None):
    codes, s, z, values = whole(w, bits, group, dtype, asymmetric, groups)
    if groups is None:
        groups = torch.arange(w.shape[1]) // group
    made = {
        ".qweight": fields(codes.T, bits, 0),
        ".qzeros": fields((z - offset).T, bits, 1),
        ".scales": s.T.contiguous(),
        ".g_idx": groups.to(torch.int32),
    }
    return made, values


def nearest_e2m1(x):
    return (x.unsqueeze(-1) - E2M1).abs().argmin(-1)


def halves(codes):
    """Packs two codes into a byte, the first into the lower half."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def nvfp4(w, modelopt):
    """Blocks of 16 with E4M3 scales, and one scale for the whole tensor: compressed-tensors divides by it, modelopt multiplies."""
    whole_scale = (w.abs().max() / 2688).clamp(min=1e-6)
    if not modelopt:
        whole_scale = 1 / whole_scale
    times = (lambda s: s * whole_scale) if modelopt else (lambda s: s / whole_scale)
    low, high = extremes(w, 1, 16)
    unit = torch.maximum(-low, high) / 6
    unit = unit / whole_scale if modelopt else unit * whole_scale
    s = unit.clamp(0.002, 448).to(torch.float8_e4m3fn)
    by_value = spread(times(s.float()), 1, 16, w.shape)
    codes = nearest_e2m1(w / by_value)
    if modelopt:
        made = {".weight": halves(codes), ".weight_scale": s, ".weight_scale_2": whole_scale}
    else:
        made = {".weight_packed": halves(codes), ".weight_scale": s}
        made[".weight_global_scale"] = whole_scale.reshape(1)
    return made, E2M1[codes] * by_value


def mxfp4_codes(w):
    """E8M0 exponents and codes, in blocks of 32 of the last dimension."""
    blocks = w.reshape(*w.shape[:-1], -1, 32)
    s = torch.floor(torch.log2(blocks.abs().amax(-1).clamp(min=1e-6) / 4))
    by_value = torch.exp2(s).unsqueeze(-1)
    codes = nearest_e2m1(blocks / by_value)
    return codes, (s + 127).to(torch.uint8), (E2M1[codes] * by_value).reshape(w.shape)


def mxfp4(w):
    codes, s, values = mxfp4_codes(w)
    return {".weight_packed": halves(codes.reshape(w.shape)), ".weight_scale": s}, values


def bnb_scales(s, nested, made, state):
    """Scales as bitsandbytes stores them, and their values; nested ones are codes of a table, in blocks that have scales."""
    if not nested:
        made[".weight.absmax"] = s
        return s
    table, offset = torch.linspace(-1, 1, 256), s.mean().item()
    blocks = torch.nn.functional.pad(s - offset, (0, -len(s) % nested)).view(-1, nested)
    units = blocks.abs().amax(1).clamp(min=1e-6)
    codes = (blocks / units[:, None]).unsqueeze(-1).sub(table).abs().argmin(-1)
    values = (table[codes] * units[:, None]).flatten()[: len(s)] + torch.tensor(offset)
    made.update({".weight.absmax": codes.flatten()[: len(s)].to(torch.uint8), ".weight.nested_absmax": units})
    made[".weight.nested_quant_map"] = table
    state.update(nested_blocksize=nested, nested_dtype="float32", nested_offset=offset)
    return values


def bnb4(w, kind, block, nested):
    """bitsandbytes' 4 bits: blocks of the whole matrix; the first of two codes is in a byte's upper half."""
    table = {"nf4": NF4, "fp4": FP4}[kind]
    state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": list(w.shape)}
    made, flat = {".weight.quant_map": table}, w.reshape(-1, block)
    s = bnb_scales(flat.abs().amax(1).clamp(min=1e-6), nested, made, state)
    codes = (flat / s[:, None]).unsqueeze(-1).sub(table).abs().argmin(-1)
    made[".weight"] = halves(codes.flatten().view(-1, 2).flip(1).flatten()).unsqueeze(1)
    made[f".weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return made, (table[codes] * s[:, None]).view(w.shape)


def bnb8(w):
    s = w.abs().amax(1).clamp(min=1e-6)
    codes = torch.round(w * (127 / s[:, None]))
    return {".weight": codes.to(torch.int8), ".SCB": s}, codes * (s / 127)[:, None]


def ternary(w, dtype, inverse):
    """BitNet: multiples -1, 0 and 1 of a scale, four rows in one; the scale or its reciprocal is stored."""
    mean = w.abs().mean().clamp(min=1e-5)
    scale = (1 / mean if inverse else mean).to(dtype)
    exact = 1 / scale.float() if inverse else scale.float()
    signs = (w / exact).round().clamp(-1, 1)
    quarters = (signs + 1).to(torch.uint8).chunk(4)
    packed = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
    return {".weight": packed, ".weight_scale": scale.reshape(1)}, signs * exact
