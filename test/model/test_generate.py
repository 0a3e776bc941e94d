# SPDX-License-Identifier: Apache-2.0
"""`sluice generate` with invalid input: an {"error": ...} instead of that line's answer; all other lines are answered."""
import json
import os
import re
import resource
import subprocess
import threading

import pytest

import golden
from test_checkpoint import broken

MODEL = os.path.join(golden.GOLDEN, "llama-3")
GOOD = {"prompt_token_ids": [5, 6, 7], "max_tokens": 2, "temperature": 0}


def run(text, *flags, timeout=60):
    data = text if isinstance(text, bytes) else text.encode()
    return subprocess.run([*golden.RUN, MODEL, "--max-model-len", "256", *flags],
                          input=data, capture_output=True, timeout=timeout)


def answers(lines, *flags):
    done = run("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "--json", *flags)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_without_a_prompt_the_error_says_what_to_give():
    done = run("")
    assert done.returncode == 1 and done.stdout == b""
    assert b"no prompt" in done.stderr and b"--json" in done.stderr
    assert run("a").returncode == 0


WRONG = {"a string": "x", "true": True, "a list": [], "an object": {}, "a list of lists": [["a"]], "half": 0.5, "huge": 1e300,
         "negative": -(1 << 40)}
TAKES = {  # the valid value of each key; null counts as absent
    "max_tokens": [], "min_tokens": [], "top_k": [], "n": [], "priority": [], "num_speculative_tokens": [],
    "temperature": ["half"], "top_p": ["half"], "min_p": ["half"], "repetition_penalty": ["half"],
    "frequency_penalty": ["half"], "presence_penalty": ["half"], "seed": ["negative"],
    "logprobs": ["true"], "prompt_logprobs": ["true"], "ignore_eos": ["true"], "logit_bias": ["an object"],
    "bad_words": ["a list"], "stop_token_ids": ["a list"], "allowed_token_ids": [], "pool": [], "prompt_token_ids": [],
}


def test_each_key_accepts_only_its_type():
    cases = [(key, name) for key in TAKES for name in WRONG]
    got = answers([{**GOOD, key: WRONG[name]} for key, name in cases], "--log-level", "error")
    assert len(got) == len(cases)
    for (key, name), answer in zip(cases, got):
        assert ("error" not in answer) == (name in TAKES[key]), (key, name, answer)
        assert "error" not in answer or key in answer["error"] or key == "prompt_token_ids", (key, name, answer)
    plain = answers([GOOD])[0]["outputs"]
    free = [key for key in TAKES if key not in GOOD]
    assert [a["outputs"] for a in answers([{**GOOD, key: None} for key in free])] == [plain] * len(free)


REFUSED = [
    ({}, "Missing"), ([], "object"), (None, "object"), ("{", "byte"), ("5", "object"),
    ({"prompt": "a", "prompt_token_ids": [5]}, "both"), ({"prompt": 5}, "'prompt'"), ({"prompt_token_ids": []}, "empty"),
    ({"prompt_token_ids": [384]}, "384"), ({"prompt_token_ids": [-1]}, "-1"), ({"prompt_token_ids": [5, 5.5]}, "integers"),
    ({**GOOD, "prompt_token_ids": [5] * 100000}, "100000 tokens"), ({**GOOD, "n": 1000}, "'n'"),
    ({**GOOD, "logprobs": 100}, "logprobs"), ({**GOOD, "min_tokens": 3}, "min_tokens"),
    ({**GOOD, "stop_token_ids": [999]}, "999"), ({**GOOD, "allowed_token_ids": [999]}, "999"),
    ({**GOOD, "bad_words": [[]]}, "bad_words"), ({**GOOD, "bad_words": [""]}, "bad_words"),
    ({**GOOD, "bad_words": ["a" * 9000]}, "bad_words"), ({**GOOD, "bad_words": [7]}, "bad_words"), ({**GOOD, "bad_words": [[7], "a"]}, "bad_words"),
    ({**GOOD, "logit_bias": {"5": 1e300}}, "logit_bias"), ({**GOOD, "logit_bias": {"": 1}}, "logit_bias"),
    ({**GOOD, "logit_bias": {"9999": 1}}, "9999"), ({**GOOD, "pool": "median"}, "pool"), ({**GOOD, "pool": "first"}, "pool"),
    ('{"prompt": "\\ud800"}', "surrogate"),
]


def test_a_bad_line_gets_an_error_and_affects_no_other():
    lines = [line for pair in REFUSED for line in (pair[0], GOOD)]
    got = answers([line if isinstance(line, str) else json.dumps(line) for line in lines])
    good = answers([GOOD])[0]["outputs"]
    assert len(got) == len(lines)
    for (line, word), bad, other in zip(REFUSED, got[::2], got[1::2]):
        assert list(bad) == ["error"] and word in bad["error"], (str(line)[:80], bad)
        assert other["outputs"] == good


def test_invalid_utf8_and_blank_lines():
    line = json.dumps(GOOD).encode()
    done = run(b"\n" + line + b"\r\n  \t \n{\"prompt\": \"\xff\xfe\"}\n\0\n\xff\n" + line, "--json")
    got = [json.loads(out) for out in done.stdout.splitlines()]
    assert done.returncode == 0 and ["error" in a for a in got] == [False, True, True, True, False], got


def test_a_giant_line():
    got = answers([json.dumps(dict(GOOD, note="x" * (20 << 20))), GOOD, "[" * 1000000])
    assert got[0]["outputs"] == got[1]["outputs"] and "error" in got[2]


def test_a_failed_write_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*golden.RUN, MODEL, "--json"], input=json.dumps(GOOD),
                              stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "written" in done.stderr, done


def test_empty_input_gives_empty_output():
    assert run(b"", "--json").stdout == b""


def test_an_unknown_key_is_logged_once():
    def told(lines, *flags):
        return run("\n".join(map(json.dumps, lines)), "--json", *flags).stderr.decode()
    assert told([GOOD, dict(GOOD, max_token=5), dict(GOOD, max_token=5)]).count("'max_token'") == 1
    assert told([dict(GOOD, max_token=5)], "--log-level", "error") == ""
    assert told([GOOD]) == ""


@pytest.mark.parametrize("flags, words", [
    (("--num-gpu-blocks-override", "1"), ["num-gpu-blocks-override", "two"]),
    (("--kv-cache-memory-bytes", "1k"), ["kv-cache-memory-bytes", "two"]),
    (("--gpu-memory-utilization", "0.000001"), ["gpu-memory-utilization", "activations"]),
    (("--num-gpu-blocks-override", str(1 << 30)), ["num-gpu-blocks-override", "free"]),
])
def test_too_little_memory_names_the_option_to_change(flags, words):
    if "utilization" in flags[0] and any("kv-cache-memory" in f for f in golden.RUN):
        pytest.skip("another option of this run gives the room")
    done = run(json.dumps(GOOD), "--json", *flags)
    assert done.returncode == 1 and all(word in done.stderr.decode() for word in words), done


def test_a_prompt_together_with_json_lines_is_refused():
    done = run(json.dumps(GOOD), "--json", "hello")
    assert done.returncode == 1 and b"hello" in done.stderr and not done.stdout, done


@pytest.mark.parametrize("flags", [("--max-tokens", "many"), ("--max-tokens=-1",), ("--max-tokens",), ("--max-tokens", "99999999999999999999")])
def test_an_invalid_number_of_tokens(flags):
    done = run(b"", "hello", *flags)
    assert done.returncode == 1 and b"max-tokens" in done.stderr and not done.stdout, done


@pytest.mark.parametrize("text, why", [(None, "No such file"), ("{", "byte 1")], ids=["absent", "broken"])
def test_without_a_tokenizer_ids_go_in_and_out(text, why, tmp_path):
    for name in ("config.json", "model.safetensors"):
        os.symlink(os.path.join(MODEL, name), tmp_path / name)
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    done = subprocess.run([*golden.RUN, str(tmp_path), "--json", "--log-level", "error"],
                          input=json.dumps(GOOD) + "\n" + json.dumps({"prompt": "a"}), capture_output=True, text=True, timeout=60)
    ids, words = [json.loads(line) for line in done.stdout.splitlines()]
    assert ids["outputs"][0]["token_ids"] == answers([GOOD])[0]["outputs"][0]["token_ids"] and "text" not in ids["outputs"][0]
    assert "tokenizer.json" in words["error"] and why in words["error"] and "must be token ids" in words["error"]


def test_nan_weights_still_give_valid_json(tmp_path):
    folder = broken(tmp_path / "m", MODEL, "model.norm.weight")

    def no_constant(name):
        raise AssertionError(name)
    lines = [dict(GOOD, logprobs=2, prompt_logprobs=2), {"prompt_token_ids": [5, 6], "pool": "mean"}]
    done = subprocess.run([*golden.RUN, folder, "--json", "--check-weights", "off"],
                          input="\n".join(map(json.dumps, lines)), capture_output=True, text=True, timeout=60)
    scored, pooled = [json.loads(line, parse_constant=no_constant) for line in done.stdout.splitlines()]
    assert "not numbers" in scored["error"] and "not numbers" in pooled["error"]


HIDDEN = ["unshare", "-rm", "sh", "-c", 'mount --bind /dev/null /proc/meminfo && exec "$@"', "sh"]


@pytest.mark.skipif(golden.DEVICE != "cpu" or subprocess.run([*HIDDEN, "true"], capture_output=True).returncode != 0,
                    reason="/proc/meminfo cannot be hidden here")
def test_memory_of_unknown_size_is_assumed_to_be_enough():
    command = [golden.SLUICE, "generate", MODEL, "--json", "--kv-cache-memory-bytes", "96MiB"]
    done = subprocess.run([*HIDDEN, *command], input=json.dumps(GOOD).encode(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_prompt_on_the_command_line():
    done = run(b"", "hello", "--max-tokens=3")
    assert done.returncode == 0 and done.stdout == run(b"hello", "--max-tokens", "3").stdout, done
    assert run(b"", b"\xff\xfe", "--max-tokens", "3").returncode in (0, 1)


def test_answers_do_not_wait_for_the_end_of_the_input():
    """A program that drives both pipes may send the next line only after it has read the previous answer."""
    command = [*golden.RUN, MODEL, "--max-model-len", "256", "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
        stuck = threading.Timer(60, p.kill)
        stuck.start()
        for line in [json.dumps(GOOD) + "\n", "\n{\n", json.dumps(GOOD) + "\n" + json.dumps({**GOOD, "n": 2})[:20]]:
            p.stdin.write(line.encode())
            p.stdin.flush()
            assert ("outputs" in json.loads(p.stdout.readline())) == ("max_tokens" in line)
        p.stdin.write(json.dumps({**GOOD, "n": 2})[20:].encode())  # the last line may lack its newline
        p.stdin.close()
        assert len(json.loads(p.stdout.readline())["outputs"]) == 2 and p.stdout.readline() == b""
        stuck.cancel()
    assert p.returncode == 0


def test_a_pool_fits_the_limit_of_the_address_space():
    """Without an option for its size the KV pool is limited to what RLIMIT_AS leaves beside the program's libraries."""
    libraries = re.findall(r"=> (/\S+)", subprocess.run(["ldd", golden.SLUICE], capture_output=True, text=True).stdout)
    most = (900 << 20) + sum(os.path.getsize(path) for path in libraries)

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    run = lambda *flags, **kw: subprocess.run(
        [*golden.RUN, os.path.join(golden.GOLDEN, "llama-3"), "--json", "--threads", "1", *flags], capture_output=True, text=True,
        input='{"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": true}\n', timeout=60, **kw)
    wide = ("--max-num-seqs", "16384")  # this many could use gigabytes
    done = run(*wide, preexec_fn=limit)
    assert done.returncode == 0 and "token_ids" in done.stdout, done.stderr
