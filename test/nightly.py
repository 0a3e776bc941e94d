# SPDX-License-Identifier: Apache-2.0
"""What `make test` looks at of long lists, and `make nightly` ($SLUICE_NIGHTLY) in full."""
import os
import random

import pytest

NIGHTLY = os.environ.get("SLUICE_NIGHTLY", "0") not in ("", "0")
nightly = pytest.mark.skipif(not NIGHTLY, reason="runs at length in `make nightly`")


def at_night(*values):
    """Parameters that are tried by `make nightly` alone."""
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=nightly) for v in values]


def share(values, which, of):
    """All of them at night; else one of `of` shares, which are drawn so that none favours a value of an axis. All shares
    together are all of them, so where fewer are taken than there are, something is tried at night alone."""
    values = list(values)
    drawn = random.Random(1).sample(range(len(values)), len(values))
    return values if NIGHTLY else [values[i] for i in sorted(drawn[which % of::of])]
