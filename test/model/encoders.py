# SPDX-License-Identifier: Apache-2.0
"""The folders of test/golden-encoders with their weights, in build/."""
import json
import os

import seeded

SOURCE = os.path.join(seeded.ROOT, "test", "golden-encoders")
NAMES = sorted(name for name in os.listdir(SOURCE) if os.path.isdir(os.path.join(SOURCE, name)))


def folder(name):
    return seeded.complete(os.path.join(SOURCE, name), os.path.join(seeded.ROOT, "build", "golden-encoders", name))


def expected(name):
    with open(os.path.join(SOURCE, name, "expected.json")) as f:
        return json.load(f)


def having(key):
    """The folders whose answers have it."""
    return [name for name in NAMES if key in expected(name)]
