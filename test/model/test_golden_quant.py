"""Quantised checkpoints against answers that were computed from their dequantised weights. The folders of
test/golden-quant are part of the project; more of them lie in $SLUICE_SHARED/golden-quant."""
import os

import pytest

import golden

SHARED = os.environ.get("SLUICE_SHARED", os.path.join(golden.ROOT, "..", "shared"))
ROOTS = [os.path.join(golden.ROOT, "test", "golden-quant"), os.path.join(SHARED, "golden-quant")]


def folders():
    found = {}
    for root in reversed(ROOTS):
        for name in os.listdir(root) if os.path.isdir(root) else []:
            if os.path.exists(os.path.join(root, name, "expected.json")):
                found[name] = os.path.join(root, name)
    return [pytest.param(found[name], id=name) for name in sorted(found)]


@pytest.mark.parametrize("folder", folders())
def test_float32_equals_the_dequantised_model(folder):
    golden.check_exact(folder)


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="several ranks have other sums")
@pytest.mark.parametrize("folder", folders())
def test_two_ranks_cut_inside_of_blocks(folder):
    """Ranks hold rows and columns that begin and end inside of blocks and groups."""
    golden.check_exact_unscored(folder, 1e-3, "--tensor-parallel-size", "2", *golden.TWO_THREADS)
