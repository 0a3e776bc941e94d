# SPDX-License-Identifier: Apache-2.0
"""A few seconds of Schemathesis over /openapi.json: what the document allows is accepted, what it forbids is refused, and every
answer is documented. `scripts/check_schemathesis` installs it, and runs it at length."""

import os
import subprocess
import sys

import pytest
from api import ROOT, Server

OWN = os.path.join(ROOT, "build/schemathesis/bin/python")
SECONDS = 5
ENGINE = {"FAKE_CONTEXT": "16384", "FAKE_STEP_US": "20"}


def test_a_short_run_finds_nothing(tmp_path):
    python = OWN if os.path.exists(OWN) else sys.executable
    if subprocess.run([python, "-c", "import schemathesis"], capture_output=True).returncode:
        pytest.skip("schemathesis is not installed (scripts/check_schemathesis installs it)")
    with Server(env=ENGINE, max_num_queued_reqs=10000) as s:
        r = subprocess.run([python, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", "http://127.0.0.1:%d/openapi.json" % s.port,
                            "--exclude-path", "/drain",  # stops the server
                            "--generation-allow-x00", "false",  # U+0000 is accepted only in texts
                            "--phases", "fuzzing", "--seed", "1", "--max-examples", "1", "--max-time", str(SECONDS), "--request-timeout", "60", "--no-color"],
                           cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.path.dirname(__file__), "SCHEMATHESIS_HOOKS": "schemathesis_hooks"}, capture_output=True, text=True, timeout=120)
        assert r.returncode == 0 and "Tested:" in r.stdout, r.stdout + r.stderr
        assert s.get("/health").status == 200
