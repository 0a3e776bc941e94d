# SPDX-License-Identifier: Apache-2.0
"""`sluice run-batch`: how much is computed in each order, right answers, and files."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from importlib.machinery import SourceFileLoader

import pytest
from nightly import NIGHTLY

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SLUICE = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"), "sluice")
DEMO = os.path.join(ROOT, "models/demo")
SMALL = os.path.join(ROOT, "models/demo-draft")  # the same tokenizer and template, a tenth of the weights
BLOCK = 16


def run(path, out, *flags, model=SMALL, stdin=None, ok=True):
    done = subprocess.run([SLUICE, "run-batch", model, "-i", str(path), "-o", str(out), "--device", "cpu", "--dtype", "float32",
                           "--served-model-name", "demo", "--block-size", str(BLOCK), *flags],
                          capture_output=True, text=True, timeout=300, input=stdin)
    assert (done.returncode == 0) == ok, done.stderr
    return done


def figure(done, name):
    (value,) = [l.split()[-1] for l in done.stderr.splitlines() if l.strip().startswith(name + " ")]
    return float(value.rstrip("%"))


def line(custom_id, body, url="/v1/completions"):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "demo", **body}}) + "\n"


def answers(path):
    with open(path) as f:
        lines = [json.loads(l) for l in f]
    found = {l["custom_id"]: l for l in lines}
    assert len(found) == len(lines)
    return found


def text_of(answer):
    return answer["response"]["body"]["choices"][0]["text"]


# ---- the ladder


def shared(prompts, block, unit=16):
    """The number of prompt tokens that an unbounded cache would find. Prompts are compared in units, but only their whole blocks
    are cached."""
    seen, n = set(), 0
    for p in prompts:
        for k in range((len(p) - 1) // unit, 0, -1):
            if tuple(p[: k * unit]) in seen:
                n += k * unit
                break
        seen.update(tuple(p[: k * unit]) for k in range(1, len(p) // block * block // unit + 1))
    return n


# In blocks of 64 the prefixes end inside a block.
@pytest.mark.parametrize("block, prefix, pool", [(16, 51, 14), (64, 179, 6)])
def test_the_ladder_counts_computed_tokens(tmp_path, block, prefix, pool):
    rng = random.Random(5)
    ids = lambda n: [rng.randrange(300, 900) for _ in range(n)]  # noqa: E731
    prefixes = [ids(prefix) for _ in range(8)]
    prompts = [prefixes[i % 8] + ids(rng.randrange(16, 28)) for i in range(32)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(line("r%d" % i, {"prompt": p, "max_tokens": 2, "temperature": 0, "ignore_eos": True})
                            for i, p in enumerate(prompts)))
    logical, least = sum(map(len, prompts)), sum(map(len, prompts)) - shared(prompts, block)
    assert least == 8 * (prefix - 3) + sum(len(p) - (prefix - 3) for p in prompts)  # 3 tokens are less than a unit
    computed, texts = {}, {}
    small = ["--max-num-seqs", "1", "--num-gpu-blocks-override", str(pool)]
    for name, flags in (("nothing", ["--group-order", "none", "--no-enable-prefix-caching", *small]),
                        ("arrival", ["--group-order", "none", *small]),
                        ("roomy", ["--group-order", "none", "--max-num-seqs", "1", "--num-gpu-blocks-override", "400"]),
                        ("sorted", ["--group-order", "sorted", *small]),
                        ("groups", ["--group-order", "groups", *small]),
                        ("ratio", ["--group-order", "ratio", *small])):
        done = run(path, tmp_path / name, "--block-size", str(block), *flags)
        assert figure(done, "prompt tokens") == logical
        computed[name] = figure(done, "computed")
        assert figure(done, "could be saved") == pytest.approx(100 * (1 - least / logical), abs=0.06)
        texts[name] = {k: text_of(v) for k, v in answers(tmp_path / name).items()}
        assert texts[name] == texts["nothing"] and len(texts[name]) == len(prompts)
    assert computed["nothing"] == logical
    assert computed["arrival"] == logical  # eight prefixes in turn do not fit: each has been evicted when it is needed again
    for name in ("roomy", "sorted", "groups", "ratio"):
        assert computed[name] == least, name


def test_several_lanes_and_a_bench_file(tmp_path):
    path = tmp_path / "in.jsonl"
    subprocess.run([SLUICE, "bench", "--write-batch", str(path), "--model", "demo", "--workload", "shared-prefix", "--groups", "6",
                    "--members", "10", "--prefix-len", "64", "--suffix-len", "8", "--output-len", "6", "--order", "shuffled"],
                   check=True)
    done = run(path, tmp_path / "out", "--num-gpu-blocks-override", "40", "--max-num-seqs", "8")
    assert figure(done, "computed") == 6 * 64 + 60 * 8 and figure(done, "requests") == 60
    assert figure(done, "saved") == figure(done, "could be saved")
    assert figure(done, "output tokens") == 360


# ---- answers


def load(name, path):
    loader = SourceFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def test_the_demos_questions_are_answered_line_by_line(tmp_path):
    sys.path.insert(0, os.path.join(ROOT, "scripts/train_demo"))
    demo = load("eval_demo", os.path.join(ROOT, "scripts/eval_demo"))
    # Long prompts are asked over HTTP too (test_demo_server.py), and cost more than all others together.
    tasks = [t for t in demo.corpus.TASKS if NIGHTLY or t not in ("copy long", "lookup long")]
    cases = {"%s-%d" % (task, i): demo.corpus.case(task, i) for task in tasks for i in range(117 if NIGHTLY else 2)}
    path = tmp_path / "in.jsonl"
    path.write_text("".join(line(k, demo.request_of(c, "demo", {}, False), "/v1/chat/completions") for k, c in cases.items()))
    run(path, tmp_path / "out", model=DEMO)
    few = tmp_path / "few.jsonl"
    few.write_text("".join(path.read_text().splitlines(keepends=True)[::5]))
    run(few, tmp_path / "alone", "--group-order", "none", "--ordered", "--max-num-seqs", "2", model=DEMO)
    got, alone = answers(tmp_path / "out"), answers(tmp_path / "alone")
    assert list(alone) == list(cases)[::5] and set(got) == set(cases)
    n_right = 0
    for k, case in cases.items():
        choice = got[k]["response"]["body"]["choices"][0]
        other = alone.get(k, got[k])["response"]["body"]["choices"][0]
        assert choice == other or choice["message"].get("tool_calls"), k  # ids of calls differ between runs
        message = choice["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
        n_right += choice["finish_reason"] != "length" and bool(demo.judge.is_right(case, message.get("content") or "", calls or None))
    assert n_right >= 0.95 * len(cases), n_right


def few(tmp_path, n=30):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(line("r%d" % i, {"prompt": "Count from %d" % i, "max_tokens": 5, "temperature": 0}) for i in range(n)))
    return path


def test_standard_input_and_output(tmp_path):
    path = few(tmp_path)
    run(path, tmp_path / "out", "--ordered")
    done = run("-", "-", "--ordered", stdin=path.read_text())
    lines = [json.loads(l) for l in done.stdout.splitlines()]
    want = answers(tmp_path / "out")
    assert [l["custom_id"] for l in lines] == ["r%d" % i for i in range(30)] == list(want)
    assert [text_of(l) for l in lines] == [text_of(w) for w in want.values()]


@pytest.mark.parametrize("ordered", [[], ["--ordered"]])
def test_an_interrupted_run_is_resumed(tmp_path, ordered):
    path, out = few(tmp_path), tmp_path / "out"
    run(path, out, "--ordered")
    whole = out.read_text().splitlines(keepends=True)
    out.write_text("".join(whole[:12]) + whole[12][:40])  # in the middle of a line
    done = run(path, out, "--resume", *ordered)
    assert figure(done, "answered before") == 12 and figure(done, "answered now") == 18
    now = out.read_text().splitlines(keepends=True)
    assert now[:12] == whole[:12] and len(now) == 30
    assert {k: text_of(v) for k, v in answers(out).items()} == {json.loads(l)["custom_id"]: text_of(json.loads(l)) for l in whole}
    assert not ordered or [json.loads(l)["custom_id"] for l in now] == [json.loads(l)["custom_id"] for l in whole]
    done = run(path, out, "--resume")
    assert figure(done, "answered now") == 0 and out.read_text() == "".join(now)
    fresh = tmp_path / "fresh"
    run(path, fresh, "--resume")  # there is no output yet
    assert len(answers(fresh)) == 30


def test_zeros_left_by_a_power_cut_are_removed(tmp_path):
    path, out = few(tmp_path), tmp_path / "out"
    run(path, out, "--ordered")
    whole = out.read_text()
    out.write_text(whole[:5000] + "\0" * 4096 + whole[9096:])
    done = run(path, out, "--resume", "--ordered")
    assert figure(done, "answered before") == whole[:5000].count("\n")
    assert {k: text_of(v) for k, v in answers(out).items()} == {(l := json.loads(t))["custom_id"]: text_of(l) for t in whole.splitlines()}


@pytest.mark.parametrize("content", ["a letter to mother\nand another line\n", "no line at all", '{"a": 1}\n', "\n"])
def test_a_file_of_another_kind_is_not_truncated(tmp_path, content):
    path, out = few(tmp_path, 3), tmp_path / "out"
    out.write_text(content)
    done = run(path, out, "--resume", ok=False)
    assert "line 1 of the output is not an answer" in done.stderr and out.read_text() == content


def test_wrong_lines_are_named_and_nothing_is_run(tmp_path):
    path, out = few(tmp_path), tmp_path / "out"
    with open(path, "a") as f:
        f.write("{\n" + line("r1", {}) + line("x", {}, "/v1/nothing"))
    done = run(path, out, ok=False)
    for word in ("line 31: ", "line 32: ", "line 33: ", "invalid lines of the input: 3;"):
        assert word in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("flags", [[], ["--resume"]])
def test_answers_do_not_replace_the_requests(tmp_path, flags):
    path, link = few(tmp_path, 3), tmp_path / "link"
    link.symlink_to(path)
    before = open(path).read()
    for out in (path, link):
        assert "is the input" in run(path, out, *flags, ok=False).stderr and open(path).read() == before


def test_refused_requests_get_error_answers(tmp_path):
    path = few(tmp_path, 3)
    with open(path, "a") as f:
        f.write(line("bad", {"prompt": "x", "max_tokens": -1}))
    done = run(path, tmp_path / "out")
    assert figure(done, "of these with errors") == 1
    bad = answers(tmp_path / "out")["bad"]["response"]
    assert bad["status_code"] == 400 and bad["body"]["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("flags,word", [
    ([], "needs -i FILE and -o FILE"),
    (["-i", "/nothing/here", "-o", "x"], "/nothing/here"),
    (["-i", os.devnull, "-o", "-", "--resume"], "resume"),
    (["-i", os.devnull, "-o", "-", "--group-order", "up"], "group-order"),
    (["-i", os.devnull, "-o", "-"], "sluice: /dev/null: The file has no requests"),
    (["-i", __file__, "-o", "/nothing/here"], "invalid"),
])
def test_bad_arguments(flags, word):
    done = subprocess.run([SLUICE, "run-batch", DEMO, "--device", "cpu", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and word in done.stderr, done.stderr


def test_help_needs_no_files():
    done = subprocess.run([SLUICE, "run-batch", "--help", "--resume"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "run-batch" in done.stdout, done.stderr
