# SPDX-License-Identifier: Apache-2.0
"""The demo model in other folder layouts: where the files are, and what they leave out."""

import json
import os
import subprocess
import urllib.request

import pytest

from test_demo_server import DEVICE, ROOT, SLUICE, Server, can_serve

pytestmark = pytest.mark.skipif(not can_serve(), reason="built without the server")
DEMO = os.path.join(ROOT, "models", "demo")
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
WEIGHTS = ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
           "model-00002-of-00002.safetensors", "mtp.safetensors"]
TEXT = ["tokenizer.json", "tokenizer_config.json"]


def folder_of(path, names):
    path.mkdir()
    for name in names:
        os.symlink(os.path.join(DEMO, name), path / name)
    return path


def chat(server, **more):
    body = json.dumps({"messages": QUESTION, "max_tokens": 60, "temperature": 0, **more})
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/chat/completions",
                                     body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]


def template():
    with open(os.path.join(DEMO, "chat_template.jinja")) as f:
        return f.read()


@pytest.fixture
def base_config(tmp_path):
    """A fine-tuned chat model with its base model's config: only the tokenizer names the end token."""
    folder = folder_of(tmp_path / "model", [n for n in WEIGHTS[1:] + TEXT])
    with open(os.path.join(DEMO, "config.json")) as f:
        config = json.load(f)
    config["eos_token_id"] = 4084
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template())
    return folder


def test_the_tokenizers_end_token_ends_a_chat(tmp_path, base_config):
    with Server(tmp_path / "log", model=base_config) as server:
        choice = chat(server)
    assert choice["finish_reason"] == "stop"
    assert "42" in choice["message"]["content"] and "<|im_" not in choice["message"]["content"]


def test_the_tokenizers_end_token_ends_a_line_of_generate(base_config):
    prompt = "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n"
    done = subprocess.run([SLUICE, "generate", base_config, "--device", DEVICE, "--json"],
                          input=json.dumps({"prompt": prompt, "max_tokens": 60}) + "\n",
                          capture_output=True, text=True, timeout=60)
    answer = json.loads(done.stdout)
    assert answer["outputs"][0]["finish_reason"] == "stop", answer


def test_the_template_may_be_in_the_tokenizers_folder(tmp_path):
    model = folder_of(tmp_path / "model", WEIGHTS + ["generation_config.json"])
    text = folder_of(tmp_path / "text", TEXT + ["chat_template.jinja"])
    with Server(tmp_path / "log", "--tokenizer", str(text), model=model) as server:
        assert "42" in chat(server)["message"]["content"]


def test_a_processors_template_is_used_for_tool_calls(tmp_path):
    model = folder_of(tmp_path / "model", WEIGHTS + TEXT + ["generation_config.json"])
    (model / "chat_template.json").write_text(json.dumps({"chat_template": template()}))
    logs = []
    for folder in (DEMO, model):
        with Server(tmp_path / "log", model=folder) as server:
            assert "42" in chat(server)["message"]["content"]
        logs.append([line for line in open(tmp_path / "log") if "tool calls" in line])
    said = [line.split("tool calls")[1].strip() for lines in logs for line in lines]
    assert len(said) == 2 and said[0] == said[1] and "none" not in said[0]
