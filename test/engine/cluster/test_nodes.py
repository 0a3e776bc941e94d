# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""Several processes that share one model, on this host: the bits are those of one process; a node that dies, is silent,
never comes, or has another model; strangers on the port; what mpirun, srun and a LeaderWorkerSet set."""
import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

import golden
import test_cube as cube
import test_hybrid as hybrid
import torch_files
from test_checkpoint import Checkpoint, poke
from nightly import NIGHTLY, share

LLAMA = os.path.join(golden.GOLDEN, "llama-3")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def flags(port, node, nodes=2, ranks=2):
    return ["--nnodes", str(nodes), "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port),
            "--tensor-parallel-size", str(ranks), "--node-timeout", "30"]


class Process:
    """One `sluice serve`, whose log the tests read; `into`: where the log goes instead."""

    def __init__(self, model, *args, env=None, into=None):
        self.log_path = f"/tmp/sluice-node-{os.getpid()}-{id(self)}.log"
        self.log_file = open(self.log_path, "w")
        command = [golden.SLUICE, "serve", model, "--device", "cpu", "--threads", "1", *args]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "PMI_", "LWS_", "MASTER_"))}
        self.p = subprocess.Popen(command, stderr=into or self.log_file, stdout=into or self.log_file, env={**clean, **(env or {})})

    def log(self):
        with open(self.log_path) as f:
            return f.read()

    def wait_log(self, text, timeout=30):
        end = time.time() + timeout
        while text not in self.log():
            assert time.time() < end and self.p.poll() is None, f"no '{text}' in:\n{self.log()}"
            time.sleep(0.05)

    def wait(self, timeout=30):
        try:
            return self.p.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still runs after {timeout} s:\n{self.log()}")

    def close(self):
        if self.p.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.p.send_signal(signal.SIGCONT)
            self.p.kill()
            self.p.wait()
        self.log_file.close()
        os.unlink(self.log_path)


@pytest.fixture
def start():
    running = []

    def go(*args, **kwargs):
        running.append(Process(*args, **kwargs))
        return running[-1]

    yield go
    for p in running:
        p.close()


@contextlib.contextmanager
def followers(model, port, nodes=2, ranks=2, extra=(), env=None):
    """Nodes 1 and up; they must end well when the block does."""
    them = [Process(model, *flags(port, i, nodes, ranks), *extra, env=env) for i in range(1, nodes)]
    try:
        yield
        for p in them:
            assert p.wait() == 0, p.log()
    finally:
        for p in them:
            p.close()


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def wait_ready(http, process, timeout=60):
    end = time.time() + timeout
    while True:
        with contextlib.suppress(OSError):
            if get(http, "/health")[0] == 200:
                return
        assert time.time() < end and process.p.poll() is None, process.log()
        time.sleep(0.1)


def leader(start, port, http, *more, **kwargs):
    return start(LLAMA, *flags(port, 0), "--port", str(http), "--drain-delay", "0", *more, **kwargs)


def complete(http, **body):
    body = {"model": LLAMA, "prompt": [5, 6, 7, 8], "max_tokens": 8, "temperature": 0, "ignore_eos": True, **body}
    request = urllib.request.Request(f"http://127.0.0.1:{http}/v1/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


@pytest.fixture
def pair(start):
    """Node 0 with HTTP and node 1, ready."""
    port, http = free_port(), free_port()
    zero = leader(start, port, http)
    one = start(LLAMA, *flags(port, 1))
    wait_ready(http, zero)
    return zero, one, http, port


# ---- the same bits ----------------------------------------------------------------------------


# What a family computes does not depend on where the ranks are: test_cube.py has two ranks of each.
@pytest.mark.parametrize("family", share(golden.families(), 0, of=4))
def test_two_processes_give_the_stored_answers(family):
    port = free_port()
    with followers(os.path.join(golden.GOLDEN, family), port, extra=["--dtype", "float32"]):
        golden.check_exact(family, 1e-3, *flags(port, 0), "--threads", "1")


CASES = {
    "chunked, tiny pool, two processes": (2, 2, "plain", cube.CHUNKS["chunked"] + cube.POOL["tiny pool"]),
    "parts of blocks, two processes": (2, 2, "plain", ["--block-size", "16", "--prefix-match-unit", "4"]),
    "n-grams, two processes of two ranks": (2, 4, "ngram", []),
    "draft model, two processes": (2, 2, "draft", cube.POOL["tiny pool"]),
    "own draft, four processes": (4, 4, "own draft", []),
    "trees of two drafts, two processes": (2, 2, "two drafts", []),
    "a static tree, two processes": (2, 2, "static tree", []),
}


@pytest.mark.parametrize("family", ["llama-3", "qwen2-moe"])
@pytest.mark.parametrize("case", CASES)
def test_several_processes_give_the_bits_of_one(family, case):
    nodes, ranks, how, more = CASES[case]
    more = more + cube.drafts(family)[how] + ["--max-model-len", "256"]
    want = [cube.essence(a) for a in golden.generate(family, cube.requests())]
    port = free_port()
    model = os.path.join(golden.GOLDEN, family)
    if ranks == 4 and golden_heads(model) % 4 != 0:
        pytest.skip("its heads do not divide among four")
    with followers(model, port, nodes, ranks, more):
        answers = golden.generate(family, cube.requests(), *flags(port, 0, nodes, ranks), *more, "--threads", "1")
    cube.check_same(answers, want, f"{family}, {case}")
    if "--prefix-match-unit" in more:
        assert any(a["usage"]["cached_tokens"] % 16 for a in answers)


def test_the_layer_in_which_nan_begins_is_found_on_all_nodes(start, tmp_path):
    """Only one token's embedding is NaN. Both nodes take part in finding the layer, and both continue."""
    ck = Checkpoint(tmp_path / "m")
    poke(ck, "model.embed_tokens.weight", 6 * ck.header["model.embed_tokens.weight"]["shape"][1], "nan")
    ck.write()
    port, http = free_port(), free_port()
    zero = start(ck.folder, *flags(port, 0), "--port", str(http), "--drain-delay", "0", "--check-weights", "off")
    one = start(ck.folder, *flags(port, 1), "--check-weights", "off")
    wait_ready(http, zero)

    def answer(*tokens):
        return json.load(complete(http, model=ck.folder, prompt=[*tokens]))["choices"][0]["text"]

    before = answer(5, 7, 8)
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError) as failed:
            answer(5, 6)
        assert failed.value.code == 500
        assert answer(5, 7, 8) == before
    zero.wait_log("this begins in layer 0 (of 0 to 3), or in the embedding before it")
    assert zero.log().count("hold NaN") == 1
    zero.p.send_signal(signal.SIGTERM)
    assert zero.wait() == 0 and one.wait() == 0


def test_a_requests_lists_outlive_the_step_that_brings_them():
    """Each of these requests has a list that all its draws read. The C library overwrites what the other node frees."""
    lists = [{"logit_bias": {"40": 3, "50": 2, "60": 3, "70": 4}}, {"allowed_token_ids": list(range(20, 60))},
             {"stop_token_ids": list(range(10, 70)), "min_tokens": 20}, {"bad_words": list("abcdefghijklmnopqrstuvwxyz")}]
    requests = [{"prompt_token_ids": [5, 6, 7, 8] * 4, "max_tokens": 24, "logprobs": 2, "ignore_eos": True, "seed": i, **more}
                for i, more in enumerate(lists)]
    want = [cube.essence(a) for a in golden.generate("llama-3", requests)]
    port = free_port()
    with followers(LLAMA, port, env={"MALLOC_PERTURB_": "7"}):
        answers = golden.generate("llama-3", requests, *flags(port, 0), "--threads", "1")
    cube.check_same(answers, want, "lists")


@pytest.mark.parametrize("how", ["plain", "two drafts"])
def test_recurrent_states_travel_with_the_steps(how):
    model = hybrid.folder("qwen3.5")
    more = hybrid.DRAFTS[how] + hybrid.CHUNKS["chunked"] + hybrid.POOL["few states"] + hybrid.BASE
    want = [cube.essence(a) for a in golden.generate(model, hybrid.requests(), "--no-enable-prefix-caching", *hybrid.BASE)]
    port = free_port()
    with followers(model, port, 2, 2, more):
        answers = golden.generate(model, hybrid.requests(), *flags(port, 0, 2, 2), *more, "--threads", "1")
    cube.check_same(answers, want, how)
    assert sum(a["usage"]["cached_tokens"] for a in answers) > 0


@pytest.mark.parametrize("how", ["plain", "dynamic tree"])
def test_pages_of_windows_travel_with_the_steps(how):
    family = "gpt-oss"
    more = cube.drafts(family)[how] + cube.CHUNKS["chunked"] + cube.PAGES["chunked"] + ["--block-size", "16"]
    want = [cube.essence(a) for a in golden.generate(family, cube.requests(), "--no-enable-prefix-caching")]
    port = free_port()
    with followers(os.path.join(golden.GOLDEN, family), port, 2, 2, more):
        answers = golden.generate(family, cube.requests(), *flags(port, 0, 2, 2), *more, "--threads", "1")
    cube.check_same(answers, want, how)
    assert sum(a["usage"]["recomputed_tokens"] for a in answers) > 0


def golden_heads(model):
    with open(os.path.join(model, "config.json")) as f:
        return json.load(f)["num_attention_heads"]


# ---- how nodes end ----------------------------------------------------------------------------


def test_both_end_in_order_and_the_follower_waits_for_running_requests(pair):
    zero, one, http, _ = pair
    health = json.loads(get(http, "/health")[1])
    assert health["nodes"] == 2 and health["nodes_alive"] == 2 and health["ranks"] == 2
    metrics = get(http, "/metrics")[1]
    assert re.search(r"^sluice_nodes_alive(\{.*\})? 2", metrics, re.M), metrics
    with complete(http, max_tokens=200, stream=True) as r:
        r.readline()
        one.p.send_signal(signal.SIGTERM)  # a launcher signals all processes at once
        zero.p.send_signal(signal.SIGTERM)
        rest = r.read().decode()
    assert "[DONE]" in rest and '"error"' not in rest
    assert zero.wait() == 0
    assert one.wait() == 0


def exits(process, limit):
    """A process that has lost a node stays for 10 s, so that probes see it. In `make test` one test waits for that."""
    assert process.wait(limit) != 0


def lose(zero, http, how):
    """A stream runs while `how` happens: it ends with an error, health is red."""
    events = b""
    prompts = [[5, 6, 7, i % 300] for i in range(300)]  # seconds of work
    with complete(http, max_tokens=400, stream=True, prompt=prompts) as r:
        r.readline()
        how()
        with contextlib.suppress(ConnectionError):
            events = r.read()
    assert b'"error"' in events, events[-300:]
    status, body = get(http, "/health")
    assert status == 503 and json.loads(body)["status"] == "dead" and "node 1" in body, body
    assert get(http, "/health/live")[0] == 503


def test_a_killed_node_ends_all_requests_with_an_error_and_the_process(pair):
    zero, one, http, _ = pair
    start = time.time()
    lose(zero, http, one.p.kill)
    exits(zero, 30)
    assert time.time() - start < 30


def lost_lines(http):
    return float(re.search(r"^sluice_log_lost_lines_total(?:\{.*\})? (\S+)", get(http, "/metrics")[1], re.M)[1])


def test_a_lost_node_is_noticed_while_nobody_reads_the_log(start):
    """Node 0 writes to a pipe that is full."""
    port, http = free_port(), free_port()
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 4096)
    zero = leader(start, port, http, into=into)
    os.close(into)
    one = start(LLAMA, *flags(port, 1))
    try:
        wait_ready(http, zero)
        end = time.time() + 60
        while lost_lines(http) == 0:
            assert time.time() < end, "the log never overflowed"
            for _ in range(200):  # each requests a report of several lines
                zero.p.send_signal(signal.SIGUSR1)
                time.sleep(0.001)
        lose(zero, http, one.p.kill)
        exits(zero, 30)
    finally:
        os.close(out)


def test_a_silent_node_is_a_lost_node(pair):
    zero, one, http, _ = pair
    lose(zero, http, lambda: one.p.send_signal(signal.SIGSTOP))
    if NIGHTLY:
        exits(zero, 30)


def test_idle_nodes_notice_a_killed_node_too(pair):
    zero, one, http, _ = pair
    one.p.kill()
    end = time.time() + 5
    while get(http, "/health")[0] == 200:
        assert time.time() < end
        time.sleep(0.1)
    with pytest.raises(urllib.error.HTTPError) as refused:
        complete(http)
    assert refused.value.code == 503
    if NIGHTLY:
        exits(zero, 30)


def test_a_killed_leader_ends_the_other_node(pair):
    zero, one, _, _ = pair
    zero.p.kill()
    assert one.wait(15) == 2
    assert "node 0 has gone" in one.log()


# ---- who joins, and who does not ----------------------------------------------------------------


def test_a_node_that_never_connects_is_named(start):
    zero = start(LLAMA, *flags(free_port(), 0)[:-1], "1", "--port", str(free_port()))
    assert zero.wait() == 1
    assert "node 1 of 2 did not join within 1 s" in zero.log()


def test_a_node_without_a_leader_ends(start):
    one = start(LLAMA, *flags(free_port(), 1)[:-1], "1")
    assert one.wait() == 1
    assert "node 0 did not answer within 1 s" in one.log()


def test_a_node_with_another_model_or_option_is_rejected_and_the_right_one_may_still_join(start):
    port, http = free_port(), free_port()
    zero = leader(start, port, http)
    other = start(os.path.join(golden.GOLDEN, "qwen3"), *flags(port, 1))
    assert other.wait() == 1
    assert "the model's config" in other.log() and "node 0 refuses this node" in other.log()
    longer = start(LLAMA, *flags(port, 1), "--block-size", "32")
    assert longer.wait() == 1
    assert "'block-size: 32', node 0 has 'block-size: auto'" in longer.log()
    start(LLAMA, *flags(port, 1))
    wait_ready(http, zero)
    assert json.loads(complete(http).read())["usage"]["completion_tokens"] == 8


def test_a_node_with_other_weights_in_pytorchs_file_is_rejected(start, tmp_path):
    tensors, folders = torch_files.stored(os.path.join(LLAMA, "model.safetensors")), []
    for name in "ab":
        folders.append(torch_files.without_weights(LLAMA, tmp_path / name))
        torch_files.save(os.path.join(folders[-1], "pytorch_model.bin"), tensors)
        dtype, shape, data = tensors["lm_head.weight"]
        tensors["lm_head.weight"] = dtype, shape, data[:-1] + bytes([data[-1] ^ 1])
    port, http = free_port(), free_port()
    start(folders[0], *flags(port, 0), "--port", str(http), "--drain-delay", "0")
    other = start(folders[1], *flags(port, 1))
    assert other.wait() == 1
    assert "the model's weights" in other.log() and "node 0 refuses this node" in other.log()


def test_strangers_are_refused_and_harm_nothing(start):
    port, http = free_port(), free_port()
    zero = leader(start, port, http, "--node-token", "right")
    zero.wait_log("waits on port")
    silent = socket.create_connection(("127.0.0.1", port))
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100000, os.urandom(5000), b"slui", b"slucen\n" + b"\xff" * 300,
                 b"slicen\n\x01\0\0\0" + b"\xff" * 200, b"sluicen\n\x01\0\0\0\x01\0\0\0\x02\0\0\0\xff\xff\xff\xff" + b"a" * 99,
                 b"sluicen\n\x01\0\0\0\x01\0\0\0\x02\0\0\0\x10\0\0\0" + b"a" * 48):
        with socket.create_connection(("127.0.0.1", port)) as s:
            with contextlib.suppress(OSError):
                s.sendall(junk)
                s.shutdown(socket.SHUT_WR)
                s.settimeout(10)
                assert len(s.recv(1000)) <= 32  # only the greeting
    wrong = start(LLAMA, *flags(port, 1)[:-1], "3", "--node-token", "wrong")
    assert wrong.wait() == 1
    assert "token" in wrong.log()
    start(LLAMA, *flags(port, 1), "--node-token", "right")
    wait_ready(http, zero)
    silent.close()
    assert "not a sluice node" in zero.log() and "does not know the token" in zero.log()
    with pytest.raises(OSError):  # all nodes have joined: the port is closed
        socket.create_connection(("127.0.0.1", port), timeout=2).recv(1)
    assert json.loads(complete(http).read())["usage"]["completion_tokens"] == 8


def between(port, change):
    """A port that forwards to `port`; change(bytes) alters the bytes from node 0 on their way."""
    door = socket.create_server(("127.0.0.1", 0))

    def run():
        near, _ = door.accept()
        far = socket.create_connection(("127.0.0.1", port))

        def pump(a, b, f):
            with contextlib.suppress(OSError):
                while data := a.recv(65536):
                    b.sendall(f(data))
            for s in (a, b):
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=pump, args=(near, far, bytes), daemon=True).start()
        pump(far, near, change)

    threading.Thread(target=run, daemon=True).start()
    return door.getsockname()[1]


def test_a_modified_frame_ends_all_nodes(start):
    """One bit of a step is changed: without authentication it could be another token or another address."""
    port, http, armed = free_port(), free_port(), threading.Event()

    def change(data):
        if armed.is_set() and len(data) > 200:  # a step, not a heartbeat
            armed.clear()
            return data[:-60] + bytes([data[-60] ^ 1]) + data[-59:]
        return data

    zero = leader(start, port, http, "--node-token", "right")
    zero.wait_log("waits on")
    one = start(LLAMA, *flags(between(port, change), 1), "--node-token", "right")
    wait_ready(http, zero)
    assert json.loads(complete(http).read())["usage"]["completion_tokens"] == 8
    armed.set()
    with contextlib.suppress(OSError, urllib.error.HTTPError):
        complete(http)
    assert one.wait() != 0 and "does not know the token, or the frame was changed on its way" in one.log()
    if NIGHTLY:
        exits(zero, 30)


def test_node_0_listens_only_at_its_address(start):
    port = free_port()
    zero = start(LLAMA, *flags(port, 0), "--port", str(free_port()))
    zero.wait_log("waits on")
    socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", port), timeout=2)
    elsewhere = start(LLAMA, *flags(port, 0), "--port", str(free_port()), "--master-addr", "192.0.2.1", "--node-token", "x")
    assert elsewhere.wait() == 1 and "cannot listen on 192.0.2.1" in elsewhere.log()


def test_nodes_that_others_can_reach_need_a_token(start):
    for node in (0, 1):
        bare = start(LLAMA, *flags(free_port(), node), "--port", str(free_port()), "--master-addr", "192.0.2.1")
        assert bare.wait() == 2 and "node-token" in bare.log() and "--no-node-token" in bare.log()
    free = start(LLAMA, *flags(free_port(), 0), "--port", str(free_port()), "--master-addr", "192.0.2.1", "--no-node-token")
    assert free.wait() == 1 and "cannot listen on 192.0.2.1" in free.log()  # it got as far as listening


def test_a_node_that_leaves_before_all_have_joined_may_join_again(start):
    port = free_port()
    three = [start(LLAMA, *flags(port, 0, 3, 3)[:-1], "3", "--port", str(free_port()))]
    three.append(start(LLAMA, *flags(port, 1, 3, 3)))
    three[0].wait_log("node 1 of 3 has joined")
    three[1].p.kill()
    three[0].wait_log("before all nodes had joined")
    again = start(LLAMA, *flags(port, 1, 3, 3))
    end = time.time() + 10
    while three[0].log().count("node 1 of 3 has joined") < 2:
        assert time.time() < end, three[0].log() + again.log()
        time.sleep(0.05)
    assert three[0].wait() == 1 and "node 2 of 3 did not join" in three[0].log()


@pytest.mark.parametrize("launcher", [
    [{"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "%d", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "mpirun"],
    [{"SLURM_NTASKS": "2", "SLURM_PROCID": "%d", "SLURM_NODELIST": "127.0.0.[1-2]"}, "srun"],
    [{"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "%d", "LWS_LEADER_ADDRESS": "127.0.0.1"}, "LeaderWorkerSet"],
])
def test_launchers_determine_the_node_ranks(start, launcher):
    names, who = launcher
    port, http = free_port(), free_port()
    common = ["--tensor-parallel-size", "2", "--master-port", str(port), "--node-timeout", "30"]
    both = [start(LLAMA, *common, "--port", str(http), "--drain-delay", "0",
                  env={k: v % i if "%d" in v else v for k, v in names.items()}) for i in range(2)]
    wait_ready(http, both[0])
    assert f"according to {who}" in both[0].log() and f"according to {who}" in both[1].log()
    assert json.loads(complete(http).read())["usage"]["completion_tokens"] == 8
    both[0].p.send_signal(signal.SIGTERM)
    assert both[0].wait() == 0 and both[1].wait() == 0


def test_bad_ranks_are_refused_with_a_reason(start):
    for args, env, text in [
        (["--nnodes", "2", "--node-rank", "2", "--tensor-parallel-size", "2"], {}, "node-rank 2"),
        (["--nnodes", "2", "--node-rank", "1", "--tensor-parallel-size", "2"], {}, "master-addr"),
        (["--nnodes", "2", "--node-rank", "1", "--tensor-parallel-size", "3"], {}, "3 is not a multiple of the 2 nodes"),
        (["--nnodes", "2", "--node-rank", "1", "--tensor-parallel-size", "2", "--max-loras", "3"], {}, "max-loras: with 2 nodes"),
        (["--tensor-parallel-size", "2"], {"OMPI_COMM_WORLD_SIZE": "two", "OMPI_COMM_WORLD_RANK": "0"}, "not a number"),
        (["--tensor-parallel-size", "2"], {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "5"}, "is impossible with"),
    ]:
        p = start(LLAMA, *args, env=env)
        assert p.wait() == 2
        assert text in p.log(), p.log()
