# SPDX-License-Identifier: Apache-2.0
"""Short runs of scripts/soak, scripts/check_alone, scripts/chaos and scripts/fuzz_long; longer ones in `make nightly`."""
import csv
import os
import signal
import subprocess
import sys
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "test"))
from nightly import NIGHTLY, at_night  # noqa: E402

SLUICE = os.path.abspath(os.path.join(os.environ.get("SLUICE_BUILD", os.path.join(ROOT, "build/release")), "sluice"))
SANITIZED = any(s in os.environ.get("SLUICE_BUILD", "") for s in ("asan", "tsan"))


def run(script, *args, env=None):
    p = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", script), *map(str, args)], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})})
    return p.returncode, p.stdout


def test_a_short_soak_finds_no_leak_and_no_wrong_answer():
    seconds, prompts = (1800, 120) if NIGHTLY else (5, 10)
    rc, said = run("soak", "--seconds", seconds, "--phase", seconds / 3 if not NIGHTLY else 60, "--prompts", prompts, "--seed", 5)
    assert rc == 0, said[-3000:]


def check_alone(sluice, *args):
    return run("check_alone", "--sluice", sluice, "--model", os.path.join(ROOT, "models/demo-draft"), "--clients", 16, *args)


def test_answers_beside_changing_load_are_those_of_each_request_alone():
    rc, said = check_alone(SLUICE, "--requests", 2000 if NIGHTLY else 40)
    assert rc == 0 and " 0 different" in said, said[-3000:]


def test_answers_that_depend_on_the_load_would_be_found(tmp_path):
    """Runs check_alone with a program that quantises its KV cache when it serves, but not when it answers a batch."""
    other = tmp_path / "sluice"
    other.write_text('#!/bin/sh\n[ "$1" = serve ] && set -- "$@" --kv-cache-dtype int4\nexec %s "$@"\n' % SLUICE)
    other.chmod(0o755)
    rc, said = check_alone(other, "--requests", 8, "--output-len", 24)
    assert rc == 1 and "differs at token" in said, said[-3000:]


@pytest.mark.parametrize("scenario,rounds", [("kill", 3), ("memory", 1), ("partition", 1),
                                             *at_night(("lossy", 1), ("freeze", 1), ("descriptors", 1), ("disk", 1), ("clock", 2))])
def test_short_faults_are_survived(scenario, rounds):
    if SANITIZED and scenario == "memory":
        pytest.skip("a sanitizer needs address space")
    length = ("--rounds", 20 * rounds) if NIGHTLY else ("--rounds", rounds, "--prompts", 10)
    rc, said = run("chaos", scenario, *length, "--seed", 3)
    if " skipped " in said:
        pytest.skip(said.strip())
    assert rc == 0 and " held " in said, said[-3000:]


def test_executions_of_fuzzers_add_up(tmp_path):
    """Runs without clang, which would need a separate build of everything, and with the programs that are already built."""
    tree = os.environ.get("SLUICE_BUILD", "build/release")
    total = tmp_path / "total.csv"
    for runs in (1, 2):
        rc, said = run("fuzz_long", "--cc", "no-such-compiler", "--tree", tree, "--seconds", 1, "--total", total, "multipart",
                       env={"XDG_STATE_HOME": str(tmp_path)})
        assert rc == 0, said
        with open(total, newline="") as f:
            rows = list(csv.DictReader(f))
        assert [r["what"] for r in rows] == ["fuzz: multipart"]
        values = [0] if runs == 1 else [first]
        first = int(rows[0]["value"])
        assert first > values[0]
        assert "%d in all" % first in said


def test_mixtures_read_folders_and_keep_what_aborts(tmp_path):
    program = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"), "test/fuzz/multipart_fuzz_test")
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "one").write_bytes(b"--X\r\n\0more")
    env = {**os.environ, "FUZZ_ROUNDS": "1", "FUZZ_FINDING": str(tmp_path / "finding")}
    counts = [int(subprocess.check_output([program], env={**env, **more}).split()[0])
              for more in ({}, {"FUZZ_SEEDS_FROM": str(tmp_path / "seeds")})]
    assert counts[1] == counts[0] + 1
    running = subprocess.Popen([program], env={**env, "FUZZ_SECONDS": "60"}, stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    running.send_signal(signal.SIGABRT)
    assert running.wait(20) == -signal.SIGABRT and (tmp_path / "finding").exists()
