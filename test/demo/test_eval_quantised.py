# SPDX-License-Identifier: Apache-2.0
"""Quantises the demo model in each format and runs a case or two of every task; scripts/eval_quantised
without CASES runs more."""

import os
import socket
import subprocess

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
