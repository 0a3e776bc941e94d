# SPDX-License-Identifier: Apache-2.0
# test/run: long
"""The demo model's accuracy over the API, and the same answers with every optimisation of the
server."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from nightly import NIGHTLY, at_night

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "train_demo"))
import corpus  # noqa: E402

SLUICE = os.environ.get("SLUICE", os.path.join(ROOT, "build", "sluice"))
DEVICE = os.environ.get("SLUICE_TEST_DEVICE", "cpu")
START_S = 60
DRAFT = json.dumps({"method": "draft_model", "model": os.path.join(ROOT, "models", "demo-draft"), "num_speculative_tokens": 4})
MTP = json.dumps({"method": "mtp", "num_speculative_tokens": 3, "fixed": True})  # so that it measures no passes at the start
EAGLE3 = json.dumps({"method": "eagle3", "model": os.path.join(ROOT, "models", "demo-eagle3"), "num_speculative_tokens": 3})
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4})
TREE = json.dumps({"method": "tree", "model": os.path.join(ROOT, "models", "demo-draft")})
# Their prompts fill most of the context, so that one of them costs as much as all cases of a short task.
LONG = ["copy long", "lookup long"]
# Evaluations: of many cases of the two basic tasks, and of a few of the others. The answers of the last one, which covers all
# tasks, are kept.
LOOKS = [
    ["--tasks", "arithmetic,lookup", "--cases", "40", "--floor", "0.95"],
    ["--cases", "6", "--floor", "0.8"],
] if NIGHTLY else [
    ["--tasks", "arithmetic,lookup", "--cases", "12", "--floor", "0.9"],
    ["--tasks", ",".join(task for task in corpus.TASKS if task not in LONG), "--cases", "5", "--floor", "0.8"],
    ["--cases", "2", "--floor", "0.5"],
]


def can_serve():
    done = subprocess.run([SLUICE, "--help"], capture_output=True, text=True)
    return re.search(r"^ +serve ", done.stdout + done.stderr, re.M) is not None


pytestmark = pytest.mark.skipif(not can_serve(), reason="built without the server")


class Server:
    def __init__(self, log, *flags, model=os.path.join(ROOT, "models", "demo")):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = log
        command = [
            SLUICE,
            "serve",
            str(model),
            "--device",
            DEVICE,
            "--port",
            str(self.port),
            "--drain-delay",
            "0",  # no load balancer has to notice the drain
        ]
        with open(log, "w") as out:
            self.process = subprocess.Popen([*command, *flags], stdout=out, stderr=out)

    def __enter__(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.port}/health/ready", timeout=1
                ):
                    return self
            except OSError:
                assert self.process.poll() is None, open(self.log).read()[-2000:]
                time.sleep(0.01)
        self.__exit__()
        raise AssertionError("not ready: " + open(self.log).read()[-2000:])

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def evaluate(self, *flags):
        url = f"http://127.0.0.1:{self.port}/v1"
        command = [
            sys.executable,
            os.path.join(ROOT, "scripts", "eval_demo"),
            "--base-url",
            url,
            "--json",
            *flags,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=1200 if NIGHTLY else 240)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """(file of the default server's answers, output of eval_demo)"""
    folder = tmp_path_factory.mktemp("demo")
    with Server(folder / "log") as server:
        done = [server.evaluate("--save", str(folder / "answers.json"), *look) for look in LOOKS]
    return folder / "answers.json", done


def test_accuracy_is_above_the_floors(plain):
    for done in plain[1]:
        assert done.returncode == 0, done.stdout + done.stderr


# The CPU backend gives the same bits for every batch, chunking and cache hit.
@pytest.mark.skipif(DEVICE != "cpu", reason="elsewhere near ties may fall either way")
@pytest.mark.parametrize(
    "flags",
    [
        ["--max-num-batched-tokens", "64", "--threads", "2"],
        ["--speculative-config", MTP],
        *at_night(["--speculative-config", DRAFT], ["--no-enable-prefix-caching"], ["--no-enable-chunked-prefill"], ["--max-num-seqs", "2"],
                  ["--speculative-config", NGRAM], ["--speculative-config", EAGLE3]),
    ],
)
def test_answers_do_not_depend_on_how_they_are_scheduled(plain, tmp_path, flags):
    answers, _ = plain
    with Server(tmp_path / "log", *flags) as server:
        done = server.evaluate("--cases", "3" if NIGHTLY else "1", "--concurrency", "8", "--compare", str(answers))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["tasks"]
    assert {task: row["differ"] for task, row in rows.items() if row["differ"]} == {}


# The tasks whose answers have a format that a constraint can enforce.
FORMED = ["--tasks", "json,tool call,lookup", "--cases", "100" if NIGHTLY else "3"]


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """Output of eval_demo for the same cases without constraints."""
    with Server(tmp_path_factory.mktemp("free") / "log") as server:
        done = server.evaluate(*FORMED)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["tasks"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--speculative-config", TREE],
        *at_night([], ["--speculative-config", MTP], ["--speculative-config", NGRAM], ["--speculative-config", DRAFT], ["--speculative-config", EAGLE3]),
    ],
)
def test_constrained_answers_match_their_format_and_are_as_often_right(free, tmp_path, flags):
    with Server(tmp_path / "log", *flags) as server:
        done = server.evaluate("--constrain", *FORMED)
        # The format must be enforced even where the model would write something else.
        hot = server.evaluate("--constrain", *FORMED, "--extra", '{"temperature": 3, "seed": 7}')
    assert done.returncode == 0 and hot.returncode == 0, done.stdout + hot.stdout + hot.stderr
    for task, row in json.loads(done.stdout)["tasks"].items():
        assert row["invalid"] == 0 and row["right"] >= free[task]["right"]
    assert all(row["invalid"] == 0 for row in json.loads(hot.stdout)["tasks"].values())


def test_the_table_has_every_setting(tmp_path):
    """Two columns, one of them with --add."""
    command = [os.path.join(ROOT, "scripts", "eval_table"), "--cases", "2", "--tasks", "arithmetic,json", "--only", "plain"]
    done = subprocess.run(
        [*command, "--add", "one sequence=--max-num-seqs 1", "--markdown"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "SLUICE": SLUICE},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    assert rows[0] == ["task", "plain", "one sequence"]
    assert [r[0] for r in rows[2:]] == ["arithmetic", "json", "differ", "tokens/s"]
    assert rows[-2][1:] == ["0", "0"]


def test_the_table_of_another_model():
    """The twin gives the same answers with drafts."""
    command = [os.path.join(ROOT, "scripts", "eval_table"), "--model", os.path.join(ROOT, "models", "demo-twin")]
    done = subprocess.run(
        [*command, "--cases", "4", "--tasks", "arithmetic,memory", "--only", "plain,mtp", "--markdown"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "SLUICE": SLUICE},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {r[0]: r[1:] for r in ([c.strip() for c in line.strip("|").split("|")] for line in done.stdout.splitlines())}
    assert [float(rows[t][0]) for t in ("arithmetic", "memory")] == [1, 1]
    assert rows["differ"] == ["0", "0"]


def test_the_table_names_results_below_the_floor():
    command = [os.path.join(ROOT, "scripts", "eval_table"), "--cases", "1", "--tasks", "arithmetic", "--only", "plain"]
    env = {**os.environ, "SLUICE": SLUICE}
    done = subprocess.run([*command, "--floor", "1.1"], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 1 and "below the floor" in done.stderr
    done = subprocess.run([*command, "--add", "bad=--nonsense"], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 2 and "nonsense" in done.stderr


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU's driver takes longer to start")
def test_start_to_first_token(tmp_path):
    """Half a second of processor time; elapsed time, which depends on other load, is only printed."""
    begun = time.monotonic()
    with Server(tmp_path / "log") as server:
        body = {"messages": [{"role": "user", "content": "What is 12 + 30?"}], "stream": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            while b'"content":"' not in reply.readline():
                pass
            print(f"start to first token: {time.monotonic() - begun:.3f} s")
        assert processor_seconds(server.process.pid) < 0.5
