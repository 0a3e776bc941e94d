# SPDX-License-Identifier: Apache-2.0
"""Quantises the demo model in each format and runs a case or two of every task; scripts/eval_quantised
without CASES runs more. A copy in AWQ's format answers with quantised keys and values, on two ranks."""

import os
import socket
import subprocess
import sys

import pytest
from nightly import NIGHTLY, at_night
from test_demo_server import ROOT, SLUICE, can_serve

DEVICE = os.environ.get("SLUICE_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(not can_serve(), reason="built without the server")


@pytest.mark.parametrize("name", ["int4", *at_night("fp8", "int8")])
def test_answers_are_right_when_quantised(name):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, SLUICE=os.path.abspath(SLUICE), DEVICE=DEVICE, CASES="2" if NIGHTLY else "1", PORT=str(port))
    done = subprocess.run(
        [os.path.join(ROOT, "scripts", "eval_quantised"), name],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (" of 34 right" if NIGHTLY else " of 17 right") in done.stdout


def awq_copy(*args):
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "awq_copy"), *args], capture_output=True, text=True)


@pytest.mark.skipif(DEVICE != "cpu", reason="needs two devices")
def test_answers_are_right_with_awq_weights(tmp_path):
    pytest.importorskip("numpy")
    demo, out = os.path.join(ROOT, "models", "demo"), str(tmp_path / "awq")
    done = awq_copy(demo, out)
    assert done.returncode == 0, done.stderr
    command = [os.path.join(ROOT, "scripts", "eval_table"), "--model", out, "--cases", "2", "--tasks", "arithmetic,lookup", "--only", "plain"]
    add = ["--add", "int4, two ranks=--kv-cache-dtype int4 --tensor-parallel-size 2 --no-enable-prefix-caching"]
    done = subprocess.run(
        [*command, *add, "--markdown"], capture_output=True, text=True, timeout=300, env={**os.environ, "SLUICE": os.path.abspath(SLUICE)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| arithmetic | 1.00 | 1.00 |" in done.stdout and "| lookup | 1.00 | 1.00 |" in done.stdout
    done = awq_copy(demo, str(tmp_path / "uneven"), "--group", "96")
    assert done.returncode == 2 and "96 inputs" in done.stderr and "proj" in done.stderr
