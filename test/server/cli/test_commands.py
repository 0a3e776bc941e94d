"""What the command line says before anything is loaded: commands, folders, the environment."""
import json
import os
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
    rc, out, err = run("quantum")
    assert rc == 2 and "unknown command 'quantum'\n" in err and "usage:" in err


BROKEN = {"no config.json": {}, "ends too early": {"config.json": "{"},
          "model_type 'no-such-model' is not": {"config.json": json.dumps({"model_type": "no-such-model"})}}


@pytest.mark.parametrize("words", BROKEN)
def test_no_address_is_told_of_a_model_that_cannot_load(words, tmp_path):
    for name, text in BROKEN[words].items():
        (tmp_path / name).write_text(text)
    rc, out, err = run("serve", str(tmp_path), "--port", "0", "--device", "cpu")
    assert rc == 1 and words in err and "listening" not in err


def test_a_missing_tokenizer_is_an_error_that_says_how_to_go_on(tmp_path):
    for name in os.listdir(DEMO):
        if not name.startswith("tokenizer"):
            os.symlink(os.path.join(DEMO, name), tmp_path / name)
    rc, out, err = run("serve", str(tmp_path), "--port", "0", "--device", "cpu")
    assert rc == 1 and "no tokenizer.json" in err and "--skip-tokenizer-init" in err and "listening" not in err
    rc, out, err = run("serve", DEMO, "--tokenizer", str(tmp_path), "--port", "0", "--device", "cpu")
    assert rc == 1 and "tokenizer: no tokenizer.json" in err


def test_vllms_environment_is_taken_or_named_once():
    rc, out, err = run("serve", DEMO, "--print-config", VLLM_API_KEY="hidden", VLLM_USE_V1="1", VLLM_LOGGING_LEVEL="DEBUG")
    assert rc == 0 and "# api-key: set, not shown" in out
    lines = [l for l in err.splitlines() if "VLLM" in l]
    assert len(lines) == 1 and "warn" in lines[0] and "VLLM_USE_V1" in lines[0] and "VLLM_LOGGING_LEVEL" in lines[0]
    assert "VLLM_API_KEY" not in err and "hidden" not in out + err and "DEBUG" not in err
    rc, out, err = run("serve", DEMO, "--print-config")
    assert rc == 0 and err == ""


def test_flags_of_vllm_are_noted_or_refused():
    rc, out, err = run("serve", DEMO, "-O3", "--swap-space", "4", "--print-config", "--trust-remote-code")
    assert rc == 0 and len(err.splitlines()) == 3 and all("has no effect here: " in l for l in err.splitlines())
    rc, out, err = run("serve", DEMO, "--enable-lora")
    assert rc == 2 and err == "sluice: option enable-lora: 'true' is not supported: adapters are not supported\n"
