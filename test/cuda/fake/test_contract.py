# SPDX-License-Identifier: Apache-2.0
"""Runs the GPU's op tests on the fake device: for all their shapes, launches, copies and tensor maps must be valid. Results are
wrong there, so the tests' own verdict does not count."""
import os
import re
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
FAKE = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"), "test", "cuda", "fake")
LEAST_KERNELS = {"alone": 25, "ops": 50, "products": 60, "gate": 10, "attention": 25, "moe": 25, "mixture": 30, "mixture_bits": 25,
                 "state": 15, "quant": 60, "inputs": 25, "sample": 3, "greedy": 8, "masks": 2, "backend": 4, "hidden": 15, "heads": 20,
                 "ranks": 8, "streams": 12, "hyper": 15, "index": 40, "blocks": 30, "mla": 15, "growth": 10}


@pytest.mark.parametrize("name", LEAST_KERNELS)
def test_calls_are_valid_for_all_shapes(name):
    program = os.path.join(FAKE, f"cuda_{name}_on_fake")
    if not os.path.exists(program):
        pytest.skip("built without CUDA")
    run = subprocess.run([program], cwd=ROOT, env={**os.environ, "LD_LIBRARY_PATH": FAKE}, capture_output=True, text=True, timeout=900)
    assert run.returncode in (0, 1), (run.returncode, run.stderr[-500:])
    kernels, verdict = re.search(r"^\d+ calls, (\d+) kernels: (.*)$", run.stdout, re.M).groups()
    assert verdict == "in order"
    assert int(kernels) >= LEAST_KERNELS[name]
