# SPDX-License-Identifier: Apache-2.0
"""Errors of the command line before anything is loaded: commands, folders, the environment."""
import json
import os
import re
import socket
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SLUICE = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"), "sluice")
DEMO = os.path.join(ROOT, "models/demo")


def run(*args, **env):
    done = subprocess.run([SLUICE, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env={**os.environ, **env})
    return done.returncode, done.stdout, done.stderr


def test_an_unknown_command_names_the_nearest():
    rc, out, err = run("serv", DEMO)
    assert rc == 2 and out == "" and "unknown command 'serv'; did you mean 'serve'?" in err
    rc, out, err = run("zebra")
    assert rc == 2 and "unknown command 'zebra'\n" in err and "usage:" in err


@pytest.mark.parametrize("words", [["bench-engine", DEMO], ["quantize", DEMO, "out"], ["bench-ops", "--rows", "1"], ["pull", "a/b"]])
def test_help_wins_over_other_arguments(words):
    rc, out, err = run(*words, "--help")
    assert rc == 0 and out.startswith("usage: sluice %s " % words[0]) and err == ""


def test_help_is_a_command_too():
    assert run("help") == run("--help") and run("help")[0] == 0


def test_an_argument_too_many_is_named():
    rc, out, err = run("generate", DEMO, "once", "upon", "a")
    assert rc != 0 and out == "" and "unexpected argument 'upon'" in err and "quotes" in err


@pytest.mark.parametrize("words", [["tokenize"], ["grammar", "--json"], ["render"]])
def test_a_line_with_an_error_does_not_end_the_others(words):
    good = {"text": "a", "regex": "a", "strings": ["a"], "messages": [{"role": "user", "content": "a"}]}
    lines = [json.dumps(good), "[1]", "{", json.dumps(good) + " x", '{"x": [}', json.dumps(good)]
    done = subprocess.run([SLUICE, *words, DEMO], input="\n".join(lines), capture_output=True, text=True, timeout=60)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and [list(a) == ["error"] for a in answers] == [False, True, True, True, True, False]
    for answer, error in zip(answers[1:5], ["the line is not a JSON object", "the text ends too early at byte ",
                                            "there is text after the value at byte %d" % (len(lines[0]) + 1), "a value was expected at byte 7"]):
        assert answer["error"].startswith(error)


BROKEN = {"no config.json": {}, "ends too early": {"config.json": "{"},
          "model_type 'no-such-model' is not": {"config.json": json.dumps({"model_type": "no-such-model"})}}


@pytest.mark.parametrize("words", BROKEN)
def test_a_model_that_cannot_load_opens_no_address(words, tmp_path):
    for name, text in BROKEN[words].items():
        (tmp_path / name).write_text(text)
    rc, out, err = run("serve", str(tmp_path), "--port", "0", "--device", "cpu")
    assert rc == 1 and words in err and "listening" not in err


def test_a_missing_tokenizer_is_an_error_that_says_what_to_do(tmp_path):
    for name in os.listdir(DEMO):
        if not name.startswith("tokenizer"):
            os.symlink(os.path.join(DEMO, name), tmp_path / name)
    rc, out, err = run("serve", str(tmp_path), "--port", "0", "--device", "cpu")
    assert rc == 1 and "no tokenizer.json" in err and "--skip-tokenizer-init" in err and "listening" not in err
    rc, out, err = run("serve", DEMO, "--tokenizer", str(tmp_path), "--port", "0", "--device", "cpu")
    assert rc == 1 and "has no tokenizer.json" in err


def test_vllms_environment_is_used_or_logged_once():
    rc, out, err = run("serve", DEMO, "--print-config", VLLM_API_KEY="hidden", VLLM_USE_V1="1", VLLM_LOGGING_LEVEL="DEBUG")
    assert rc == 0 and "# api-key: set, not shown" in out
    lines = [l for l in err.splitlines() if "VLLM" in l]
    assert len(lines) == 1 and "warn" in lines[0] and "VLLM_USE_V1" in lines[0] and "VLLM_LOGGING_LEVEL" in lines[0]
    assert "VLLM_API_KEY" not in err and "hidden" not in out + err and "DEBUG" not in err
    rc, out, err = run("serve", DEMO, "--print-config")
    assert rc == 0 and err == ""


def test_flags_of_vllm_are_logged_or_refused():
    rc, out, err = run("serve", DEMO, "-O3", "--swap-space", "4", "--print-config", "--trust-remote-code")
    assert rc == 0 and len(err.splitlines()) == 3 and all("has no effect here: " in l for l in err.splitlines())
    rc, out, err = run("serve", DEMO, "--lora-target-modules", "q_proj")
    assert rc == 2 and err == "sluice: option lora-target-modules: 'q_proj' is not supported: adapters are used as a whole\n"


def test_hf_overrides_replace_members_of_config_json():
    def tokens(*options):
        rc, out, err = run("generate", DEMO, "Once upon a time", "--device", "cpu", "--max-tokens", "8", *options)
        return rc, out, err

    rc, plain, err = tokens()
    assert rc == 0
    assert tokens("--hf-overrides", "{}")[1] == plain
    rc, other, err = tokens("--rope-theta", "3")
    assert rc == 0 and other != plain, err
    assert tokens("--hf-overrides.rope_theta", "3")[1] == other
    rc, out, err = tokens("--hf-overrides", '{"max_position_embeddings": 3}')
    assert rc == 1 and "3" in err, err
    rc, out, err = tokens("--hf-overrides", '{"model_type": "no-such-model"}')
    assert rc == 1 and "model_type 'no-such-model' is not" in err
    rc, out, err = tokens("--hf-overrides", '{"quantization_config": {"quant_method": "fp8"}}')
    assert rc == 1 and "hf-overrides: 'quantization_config' is not supported" in err


def test_the_checkpoints_format_may_be_named(tmp_path):
    for name in os.listdir(DEMO):
        if name != "config.json":
            os.symlink(os.path.join(DEMO, name), tmp_path / name)
    with open(os.path.join(DEMO, "config.json")) as f:
        config = {**json.load(f), "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rc, out, err = run("generate", str(tmp_path), "a", "--device", "cpu", "--quantization", "fp8")
    assert rc == 1 and "'fp8' is not the format of this checkpoint (awq)" in err
    rc, out, err = run("generate", str(tmp_path), "a", "--device", "cpu", "-q", "awq_marlin", "--max-tokens", "1")
    assert "is not the format of this checkpoint" not in err
    rc, out, err = run("generate", DEMO, "a", "--device", "cpu", "-q", "awq")
    assert rc == 1 and "'awq' is not the format of this checkpoint (none)" in err


# ---- the first minute: each sentence says what to do next ----------------------------------------


@pytest.fixture
def models(tmp_path):
    """models/qwen-small, a model; models/qwen-large without config.json; a file."""
    for name in ("qwen-small", "qwen-large"):
        (tmp_path / "models" / name).mkdir(parents=True)
    for name in os.listdir(DEMO):
        os.symlink(os.path.join(DEMO, name), tmp_path / "models/qwen-small" / name)
    (tmp_path / "models/weights.gguf").write_text("")
    return tmp_path


@pytest.mark.parametrize("path, words", [
    ("models/qwen-smal", "did you mean '{}/models/qwen-small'?"), 
    ("models", "did you mean '{}/models/qwen-small'?"),
    ("models/qwen-large", "it has no config.json, so it is not a model folder"), ("models/weights.gguf", "is a file, but not a GGUF file; pass the folder"),
    ("", "it has no config.json"),
])
def test_a_wrong_path_suggests_the_nearest_model(models, path, words):
    rc, out, err = run("serve", str(models / path) + ("/" if path.endswith("/") else ""), "--port", "0", "--device", "cpu")
    assert rc == 1 and words.format(models) in err and "listening" not in err and err.count("\n") == 1, err


def test_a_folder_without_weights(tmp_path):
    def serve():
        return run("serve", str(tmp_path), "--port", "0", "--device", "cpu")

    for name in os.listdir(DEMO):
        if "safetensors" not in name:
            os.symlink(os.path.join(DEMO, name), tmp_path / name)
    rc, out, err = serve()
    assert rc == 1 and "no *.safetensors file; was a download cut short?" in err and "listening" not in err
    (tmp_path / "consolidated.00.pth").write_text("")
    rc, out, err = serve()
    assert rc == 1 and "consolidated.00.pth is in a format that is not supported: convert it" in err
    (tmp_path / "pytorch_model.bin").write_text("not a zip")
    rc, out, err = serve()
    assert rc == 1 and "pytorch_model.bin: not a file of torch.save, or cut short" in err and "listening" not in err
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    rc, out, err = serve()
    assert rc == 1 and "model-00001-of-00002.safetensors is missing, although the index names it" in err and "listening" not in err
    (tmp_path / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    rc, out, err = serve()
    assert rc == 1 and "a Git LFS pointer" in err and "git lfs pull" in err and "listening" not in err
    with open(os.path.join(DEMO, "model-00001-of-00002.safetensors"), "rb") as f:
        whole = f.read()
    for part in (whole[:5], whole[:1000], whole[:-1]):
        (tmp_path / "model-00001-of-00002.safetensors").write_bytes(part)
        rc, out, err = serve()
        assert rc == 1 and "short" in err and "listening" not in err and err.count("\n") == 1, err


def test_a_file_in_the_place_of_a_socket_is_kept(tmp_path):
    (tmp_path / "x").write_text("precious")
    rc, out, err = run("serve", DEMO, "--uds", str(tmp_path / "x"), "--device", "cpu")
    assert rc == 1 and "or it is a file of another kind" in err and (tmp_path / "x").read_text() == "precious"


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        rc, out, err = run("serve", DEMO, "--device", "cpu", "--port", str(port))
    assert rc == 1 and "uses port %d: stop it, or choose another port with --port N" % port in err and err.count("\n") == 1


def test_a_step_that_is_smaller_than_its_sequences_is_said_to_grow():
    rc, out, err = run("generate", DEMO, "hello", "--device", "cpu", "--max-tokens", "1", "--max-num-batched-tokens", "7", "--max-num-seqs", "9")
    assert rc == 0 and "max-num-batched-tokens 7 is raised to 10, one more than max-num-seqs" in err


@pytest.mark.parametrize("options, words", [
    (["--kv-cache-memory-bytes", "1MiB", "--max-model-len", "2000"], "give --max-model-len {}, or more memory with --kv-cache-memory-bytes (now 1048576)"),
    (["--kv-cache-memory-bytes", "100"], "kv-cache-memory-bytes is 100: give {} or more"),
    (["--gpu-memory-utilization", "0.000001"], "raise --gpu-memory-utilization, or make activations smaller with a lower --max-num-batched-tokens (now 2048)"),
    (["--num-gpu-blocks-override", "100000000"], "that are free: {} would"),
])
def test_memory_that_is_too_small(options, words):
    rc, out, err = run("generate", DEMO, "hello", "--device", "cpu", "--max-tokens", "1", *options)
    assert rc == 1
    found = re.search(re.escape(words).replace(re.escape("{}"), r"(\d+)"), err)
    assert found, err
    if found.groups() and "override" not in options[0]:  # the options that the message names suffice
        given = dict(zip(options[::2], options[1::2]))
        given["--max-model-len" if "--max-model-len" in options else options[0]] = found[1]
        rc, out, err = run("generate", DEMO, "hello", "--device", "cpu", "--max-tokens", "1", *sum(given.items(), ()))
        assert rc == 0, err
