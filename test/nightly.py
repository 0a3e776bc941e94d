# SPDX-License-Identifier: Apache-2.0
"""Long lists of cases: `make test` runs a part of them, `make nightly` ($SLUICE_NIGHTLY) all."""
import itertools
import os
import random

import pytest

NIGHTLY = os.environ.get("SLUICE_NIGHTLY", "0") not in ("", "0")
nightly = pytest.mark.skipif(not NIGHTLY, reason="runs at length in `make nightly`")


def at_night(*values):
    """Parameters for `make nightly` only."""
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=nightly) for v in values]


def share(values, which, of):
    """All cases in a nightly run; else one of `of` shares, drawn so that none favours a value of an axis. The shares together
    cover all cases; tests that use only some of the shares run the rest only at night."""
    values = list(values)
    drawn = random.Random(1).sample(range(len(values)), len(values))
    return values if NIGHTLY else [values[i] for i in sorted(drawn[which % of::of])]


def covering(*axes):
    """Rows with a value of each axis, such that any two values of different axes are together in at least one row."""
    def pairs(row):
        return set(itertools.combinations(enumerate(row), 2))

    every = {row: pairs(row) for row in itertools.product(*axes)}
    left, rows = set().union(*every.values()), []
    while left:
        rows.append(max(every, key=lambda row: len(every[row] & left)))
        left -= every[rows[-1]]
    return rows
