# SPDX-License-Identifier: Apache-2.0
"""Like test_torture.py, for the streams between nodes: two processes with one model, in one of which each system call of
engine/cluster and its wire fails once, in turn. Either both nodes continue, or both end with a message and every request
ends. (Allocations there end the program by design.)"""
import glob
import os
import socket
import subprocess
import tempfile

import pytest

import test_torture
from test_torture import BUILD, FOLDER, Torture, lines, numbers, places_of, verdict_of, write_input

library = test_torture.library
pytestmark = test_torture.pytestmark
PROGRAM = os.path.join(BUILD, "sluice")
LIMIT_S = 30  # a node is lost after 8 s of silence


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(node, env, folder, port):
    common = [FOLDER, "--device", "cpu", "--threads", "1", "--kv-cache-memory-bytes", "1MiB", "--nnodes", "2", "--node-rank", str(node),
              "--master-addr", "127.0.0.1", "--master-port", str(port), "--tensor-parallel-size", "2", "--node-timeout", "5"]
    batch = ["run-batch", *common, "-i", os.path.join(folder, "in.jsonl"), "-o", os.path.join(folder, "out.jsonl")]
    with open(os.path.join(folder, "node%d.log" % node), "w") as log:
        return subprocess.Popen([PROGRAM, *(batch if node == 0 else ["serve", *common])], env={**os.environ, **env}, stdout=log, stderr=log)


def end_of(process):
    """The exit code; None: it hangs."""
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def run_both(failing, env, folder):
    """Each node's exit code and messages, and the answers."""
    out = os.path.join(folder, "out.jsonl")
    if os.path.exists(out):
        os.unlink(out)
    port = free_port()
    nodes = [start(i, env if i == failing else {}, folder, port) for i in range(2)]
    codes, said = [end_of(p) for p in nodes], []
    for i in range(2):
        with open(os.path.join(folder, "node%d.log" % i), errors="replace") as f:
            said.append(f.read())
    return codes, said, lines(out) if codes[0] == 0 else {}


def what_is_wrong(t, number, failing, folder, expected):
    codes, said, got = run_both(failing, t.failing("system", number), folder)
    verdicts = [verdict_of(codes[0], said[0], got, expected), verdict_of(codes[1], said[1], {}, {})]
    _, failed, left = t.report() if codes[failing] == 0 else ({}, "", [])
    if left:
        verdicts[failing] += " left: %s" % {t.place(a) for a in left[:5]}
    name, _, at = failed.partition(" ")
    return any(verdicts) and "system %d (%s in %s): %s: %s" % (number, name, t.place(at) if at else "?", verdicts,
                                                              [s[-300:] for s in said])


@pytest.mark.parametrize("failing", [0, 1])
def test_nodes_go_on_or_both_end_with_a_message(library, failing):
    objects = [*glob.glob(os.path.join(BUILD, "engine/cluster/*.o")), os.path.join(BUILD, "engine/base/wire.o")]
    with tempfile.TemporaryDirectory() as folder:
        write_input(folder)
        t = Torture(library, PROGRAM, folder, only=places_of(PROGRAM, objects))
        codes, said, expected = run_both(failing, t.failing("system", 0), folder)
        counts, _, left = t.report()
        assert codes == [0, 0] and len(expected) == 6 and None not in expected.values() and not left, (codes, said, left)
        assert counts["system"] > 50, counts
        found = (what_is_wrong(t, n, failing, folder, expected) for n in numbers(counts["system"], 10))
        wrong = [w for w in found if w]
        assert not wrong, "%d of %d\n%s" % (len(wrong), counts["system"], "\n".join(wrong[:20]))
