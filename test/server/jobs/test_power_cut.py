# SPDX-License-Identifier: Apache-2.0
"""Power cuts: data that was not synced may be lost, in any order. No answer may be lost or given twice."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from api import BUILD, DEMO, SLOW, Server
from batch_client import create, line, lines_of, run, upload, wait_for
from nightly import NIGHTLY
from preload import preload

pytestmark = pytest.mark.skipif(SLOW, reason="a sanitizer does not share the process with another preloaded library")
SEED = int(os.environ.get("SLUICE_POWER_SEED", "1"))
CUTS = int(os.environ.get("SLUICE_POWER_CUTS", "100" if NIGHTLY else "6"))
N, PAGE = 300 if NIGHTLY else 120, 4096


def read(path):
    """The file's bytes; empty if it does not exist."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return b""


class Disk:
    """A folder after power cuts: power_cut.c records which of its bytes survive."""

    def __init__(self):
        self.base = tempfile.mkdtemp()
        self.env = preload("server/jobs/power_cut.c")
        self.generation, self.rng = 0, random.Random(SEED)
        self.folder = os.path.join(self.base, "0")
        os.mkdir(self.folder)

    def environment(self):
        """The environment of the process that is started next."""
        self.disk = os.path.join(self.base, "disk%d" % self.generation)
        os.mkdir(self.disk)
        return {**self.env, "POWER_CUT_ROOT": self.folder, "POWER_CUT_DISK": self.disk}

    def cut(self):
        """After the process has died: keeps what was synced, and randomly some other pages."""
        assert "names" in os.listdir(self.disk), "the process ran without power_cut.c"
        names = read(os.path.join(self.disk, "names")).decode()
        self.generation += 1
        new = os.path.join(self.base, str(self.generation))
        os.mkdir(new)
        for key, name in (l.split(" ", 1) for l in names.splitlines()):
            if key == "folder":
                os.mkdir(os.path.join(new, name))
                continue
            synced = os.path.join(self.disk, key)
            live, kept = read(os.path.join(self.folder, name)), bytearray(read(synced))
            live += bytes(kept[len(live) :])  # truncated without a sync: the end may still exist
            luck = self.rng.choice((0, 0.2, 0.7))  # how much the kernel has written back by itself
            for at in range(0, len(live), PAGE):
                if self.rng.random() < luck:
                    kept.extend(bytes(max(0, at - len(kept))))
                    kept[at : at + PAGE] = live[at : at + PAGE]
            with open(os.path.join(new, name), "wb") as c:
                c.write(kept)
        shutil.rmtree(self.folder)
        self.folder = new

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.base)


def test_the_disk_forgets_what_was_not_synced():
    script = """if True:
        import os, sys
        os.chdir(sys.argv[1])
        with open("old", "r+b") as f:
            f.write(b"new")
        for name, synced in ("a", True), ("b", False):
            f = open(name, "wb")
            f.write(b"1" * 9000)
            f.flush()
            if synced:
                os.fsync(f.fileno())
                f.write(b"2" * 9000)
                f.flush()
        os.fsync(os.open(".", os.O_RDONLY))
        open("nameless", "wb").write(b"3")
    """
    with Disk() as d:
        with open(os.path.join(d.folder, "old"), "w") as f:
            f.write("old")
        d.rng.choice = lambda _: 0
        subprocess.run([sys.executable, "-c", script, d.folder], env={**os.environ, **d.environment()}, check=True)
        d.cut()
        assert {n: read(os.path.join(d.folder, n)) for n in os.listdir(d.folder)} == {"old": b"old", "a": b"1" * 9000, "b": b""}


def test_a_new_data_folder_is_synced_in_its_parent():
    with Disk() as d:
        Server(data_dir=os.path.join(d.folder, "data"), env=d.environment()).stop(signal.SIGKILL)
        d.cut()
        assert os.listdir(d.folder) == ["data"]


def test_a_process_without_the_library_is_no_power_cut():
    with Disk() as d:
        d.environment()
        open(os.path.join(d.folder, "a"), "w").close()
        with pytest.raises(AssertionError, match="without power_cut.c"):
            d.cut()


def texts(s, end):
    out = lines_of(s, end["output_file_id"])
    assert len(out) == N
    return {l["custom_id"]: l["response"]["body"]["choices"][0]["text"] for l in out}


def requests():
    return [line("r%d" % i, {"model": "demo", "prompt": "Count from %d to" % i, "max_tokens": 16, "temperature": 0,
                             "ignore_eos": True}) for i in range(N)]


def test_a_batch_survives_power_cuts():
    options = dict(real=True, model=DEMO, max_model_len=1024, max_num_seqs=8, served_model_name="demo")
    rng, lines, n_cuts = random.Random(SEED), requests(), 0
    with Server(**options) as s:
        want = texts(s, run(s, lines))
    while n_cuts < CUTS:
        with Disk() as d:
            s = Server(data_dir=d.folder, env=d.environment(), **options)
            b = create(s, upload(s, "".join(lines)).json()["id"]).json()["id"]
            done, over = 0, False
            while n_cuts < CUTS and not over:
                time.sleep(rng.uniform(0.02, 0.5))
                seen = s.get("/v1/batches/" + b).json()  # what it has reported once must survive
                over, done = seen["status"] == "completed", max(done, seen["request_counts"]["completed"])
                s.stop(signal.SIGKILL)
                d.cut()
                n_cuts += 1
                s = Server(data_dir=d.folder, env=d.environment(), **options)
                found = s.get("/v1/batches/" + b)
                assert found.status == 200, (found.body, s.stderr(), os.listdir(d.folder))
                seen = found.json()
                assert seen["request_counts"]["completed"] >= done and (not over or seen["status"] == "completed"), seen
            end = wait_for(s, b, seconds=120)
            assert end["status"] == "completed" and end["request_counts"] == {"total": N, "completed": N, "failed": 0}
            assert texts(s, end) == want
            assert s.stop() == 0


@pytest.mark.parametrize("ordered", [False, True])
def test_run_batch_resumes_after_a_power_cut(ordered):
    rng, lines = random.Random(SEED), requests()
    with Disk() as d, tempfile.TemporaryDirectory() as folder:
        questions = os.path.join(folder, "in.jsonl")
        with open(questions, "w") as f:
            f.write("".join(lines))

        def answers():
            return os.path.join(d.folder, "out.jsonl")

        def start(*more):
            return subprocess.Popen([os.path.join(BUILD, "sluice"), "run-batch", DEMO, "-i", questions, "-o", answers(),
                                     "--device", "cpu", "--dtype", "float32", "--served-model-name", "demo", *more],
                                    env={**os.environ, **d.environment()}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        more = ["--ordered"] if ordered else []
        open(answers(), "w").close()
        for _ in range(CUTS // 3):
            p = start(*more, "--resume")
            size, end = os.path.getsize(answers()), time.time() + 60
            while p.poll() is None and time.time() < end and os.path.getsize(answers()) <= size:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.2))
            p.kill()
            p.communicate()
            d.cut()
        p = start(*more, "--resume")
        _, err = p.communicate(timeout=120)
        assert p.returncode == 0, err
        with open(answers()) as f:
            ids = [json.loads(l)["custom_id"] for l in f]
        want = ["r%d" % i for i in range(N)]
        assert ids == want if ordered else sorted(ids) == sorted(want)
