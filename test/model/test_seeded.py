# SPDX-License-Identifier: Apache-2.0
"""Weights that are drawn when they are needed: what tensors.json means, and files that several programs write at once."""
import json
import os
import statistics
import struct
import subprocess
import sys

import pytest

import golden
import seeded


def test_names_are_written_as_in_a_shell():
    assert seeded.names("lm_head.weight") == ["lm_head.weight"]
    assert seeded.names("l.{0-1,10}.{up,down}") == ["l.0.up", "l.0.down", "l.1.up", "l.1.down", "l.10.up", "l.10.down"]


def values(data, dtype):
    if dtype == "F32":
        return struct.unpack(f"<{len(data) // 4}f", data)
    words = struct.unpack(f"<{len(data) // 2}H", data)
    return struct.unpack(f"<{len(words)}f", struct.pack(f"<{len(words)}I", *(w << 16 for w in words)))


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_values_have_the_mean_and_deviation(dtype):
    drawn = values(seeded.drawn("a", "x.weight", [40, 500], -0.8, 0.6, dtype), dtype)
    assert abs(statistics.mean(drawn) + 0.8) < 0.02 and abs(statistics.pstdev(drawn) - 0.6) < 0.02
    assert 240 < len(set(drawn)) <= 256  # neighbours may round to the same number
    others = [seeded.drawn(*of, [40, 500], -0.8, 0.6, dtype) for of in (("a", "y.weight"), ("b", "x.weight"))]
    assert all(values(other, dtype) != drawn for other in others)


def test_bf16_is_rounded_to_the_nearest():
    for value, bits in [(1.0, 0x3F80), (1.0 + 2 ** -8, 0x3F80), (1.0 + 3 * 2 ** -8, 0x3F82), (-0.1, 0xBDCD), ("inf", 0x7F80)]:
        assert seeded.drawn("a", "x", [1], value, 0) == struct.pack("<H", bits)


def source(folder, **more):
    """A description of two tensors."""
    value = {"seed": "a", "tensors": [["layers.{0-1}.weight", [3, 5], 0, 1], ["A_log", [], 0, 0.5, "F32"]], **more}
    os.makedirs(folder, exist_ok=True)
    with open(folder / "tensors.json", "w") as f:
        json.dump({"sha256": seeded.digest(value), **value}, f)
    return folder


def files(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}


def test_a_changed_description_is_drawn_again(tmp_path):
    made = tmp_path / "made"
    seeded.complete(source(tmp_path / "a"), made)
    first = files(made)
    assert sorted(first) == ["model.safetensors", "tensors.json"]
    seeded.complete(source(tmp_path / "a", shards=2), made)
    second = files(made)
    assert sorted(second) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                              "model.safetensors.index.json", "tensors.json"]
    seeded.complete(source(tmp_path / "a"), made)
    assert files(made)["model.safetensors"] == first["model.safetensors"]


def test_other_weights_than_those_of_the_answers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="are not those"):
        seeded.complete(source(tmp_path / "a", sha256="0"), tmp_path / "made")
    assert list(files(tmp_path / "made")) == ["tensors.json"]


def test_several_programs_draw_at_once(tmp_path):
    here = source(tmp_path / "a", tensors=[["{0-39}", [300, 300], 0, 1]])
    call = f"import seeded; seeded.complete({str(here)!r}, {str(tmp_path / 'made')!r})"
    path = os.path.dirname(seeded.__file__)
    running = [subprocess.Popen([sys.executable, "-c", call], cwd=path) for _ in range(3)]
    assert [p.wait() for p in running] == [0, 0, 0]
    assert sorted(files(tmp_path / "made")) == ["model.safetensors", "tensors.json"]
    seeded.complete(here, tmp_path / "alone")
    assert files(tmp_path / "made") == files(tmp_path / "alone")


def test_folders_of_both_kinds_are_complete():
    for group, folder in (("golden", golden.GOLDEN), ("golden-families", golden.FAMILIES)):
        for name in os.listdir(os.path.join(golden.ROOT, "test", group)):
            made = os.path.join(folder, name)
            if os.path.isdir(made):
                assert os.path.exists(os.path.join(made, "config.json")) and os.path.exists(os.path.join(made, "tokenizer.json"))
