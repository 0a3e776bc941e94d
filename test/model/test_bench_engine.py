# SPDX-License-Identifier: Apache-2.0
"""`sluice bench-engine`: a line per figure, with consistent numbers, and errors that say what is wrong."""
import os
import re
import subprocess

from golden import GOLDEN, ROOT, SLUICE

MODEL = os.path.join(GOLDEN, "llama-3")
DECODE = re.compile(r"decode +batch +(\d+) at +(\d+): +([\d.]+) ms a step \(([\d.]+) to ([\d.]+)\) +([\d.]+) tok/s")


def bench(*arguments):
    command = [SLUICE, "bench-engine", *arguments, "--device", "cpu", "--max-num-batched-tokens", "128"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_each_batch_and_context_has_a_line():
    done = bench(MODEL, "--batch", "3,2", "--context", "90,150", "--prompt", "64", "--steps", "20")
    assert done.returncode == 0, done.stderr
    lines = [m.groups() for m in map(DECODE.match, done.stdout.splitlines()) if m]
    assert [int(batch) for batch, *_ in lines] == [3, 2, 3, 2]
    # Long contexts first: they fill the prefix cache. A tiny model may finish before it is observed.
    assert all(140 <= int(context) < 300 for _, context, *_ in lines[:2])
    assert all(80 <= int(context) < 240 for _, context, *_ in lines[2:])
    for _, _, median, least, most, rate in lines:
        assert float(least) <= float(median) <= float(most)
        assert float(rate) > 0
    assert re.search(r"prefill +12 prompts of +64: .* tok/s", done.stdout)


def test_a_cached_prefix_is_compared_with_an_uncached_one():
    done = bench(MODEL, "--batch", "1", "--context", "20", "--steps", "2", "--cached-prompt", "1000/1100", "--max-model-len", "2048")
    assert done.returncode == 0, done.stderr
    line = re.search(r"cached +(\d+) of 1100 tokens, 1000 shared: ([\d.]+) ms to the first token, ([\d.]+) without \(([\d.]+)\)", done.stdout)
    assert line, done.stdout
    cached, hit, miss, ratio = map(float, line.groups())
    assert 960 <= cached <= 1000
    assert hit < miss and abs(ratio - hit / miss) < 0.05


def test_a_cached_prefix_needs_the_cache():
    done = bench(MODEL, "--batch", "1", "--context", "20", "--steps", "2", "--cached-prompt", "500/600", "--max-model-len", "2048",
                 "--no-enable-prefix-caching")
    assert done.returncode == 0 and re.search(r"cached +0 of 600 tokens", done.stdout), done.stdout + done.stderr


def test_dummy_weights_need_no_checkpoint(tmp_path):
    with open(os.path.join(MODEL, "config.json")) as f:
        (tmp_path / "config.json").write_text(f.read())
    done = bench(str(tmp_path), "--load-format", "dummy", "--batch", "1", "--context", "80", "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert DECODE.search(done.stdout)


def test_bad_arguments_are_refused():
    for bad in (["--batch", "0"], ["--batch", "1,x"], ["--context", ""], ["--steps", "0"],
                ["--cached-prompt", "8"], ["--cached-prompt", "8/8"], ["--cached-prompt", "0/8"], ["--cached-prompt", "4/8x"]):
        assert bench(MODEL, *bad).returncode in (1, 2), bad
    missing = bench("/nowhere")
    assert missing.returncode == 1 and "nowhere" in missing.stderr
    long = bench(MODEL, "--context", "100000", "--batch", "1")
    assert long.returncode == 1 and "context length" in long.stderr


def test_the_size_of_weights_is_what_they_take():
    """Quantised weights are counted as they are stored."""
    def size(*options):
        done = bench(os.path.join(ROOT, "models", "demo"), "--batch", "1", "--context", "20", "--steps", "2", *options)
        return int(re.search(r"(\d+) MB of weights", done.stdout)[1])

    full = size()
    assert 0.5 * full < size("--quantization", "fp8") < 0.75 * full
    assert size("--quantization", "int4") < 0.5 * full


def test_a_batch_that_cannot_run_at_once_is_refused():
    done = bench(MODEL, "--batch", "2,5", "--context", "20", "--max-num-seqs", "4")
    assert done.returncode == 1 and "add --max-num-seqs 5" in done.stderr and "decode" not in done.stdout
