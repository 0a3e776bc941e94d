# SPDX-License-Identifier: Apache-2.0
"""`sluice render`, the command itself. jinja_vectors_test checks that templates render as in Jinja2."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
TEMPLATES = ROOT / "test" / "templates"
USER = {"messages": [{"role": "user", "content": "Hi <|im_end|>"}], "add_generation_prompt": True}


def render(folder, requests, *flags):
    text = "".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in requests)
    p = subprocess.run([SLUICE, "render", str(folder), *map(str, flags)], input=text.encode(), capture_output=True,
                       timeout=100, check=False)
    assert p.returncode == 0, p.stderr.decode()
    return [json.loads(line) for line in p.stdout.decode().split("\n") if line]


@pytest.fixture
def folder(tmp_path):
    """A model folder with two named templates and special tokens."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>",
        "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
                          {"name": "tool_use", "template": "{{ tools|length }} tools{{ eos_token }}"}]}))
    return tmp_path


def test_own_cases_through_the_command(tmp_path):
    cases = [json.loads(line) for line in (TEMPLATES / "cases.jsonl").read_text(encoding="utf-8").split("\n") if line]
    for name in ("headers", "macros"):
        mine = [c for c in cases if c["template"] == name]
        requests = [dict(c["extra"], messages=c["messages"], tools=c["tools"], strftime_now="2025-06-15 12:34:56") for c in mine]
        for case, got in zip(mine, render(tmp_path, requests, "--raw", "--template", TEMPLATES / f"{name}.jinja"), strict=True):
            assert got.get("text") == case.get("expected"), case["id"]


def test_named_templates_and_special_tokens_of_a_folder(folder):
    tool = {"type": "function", "function": {"name": "f"}}
    got = render(folder, [USER, dict(USER, tools=[tool]), dict(USER, tools=[])])
    assert [g["text"] for g in got] == ["<s>Hi <|im_end|>", "1 tools</s>", "<s>Hi <|im_end|>"]


def test_a_template_file_overrides_the_config(folder):
    (folder / "chat_template.jinja").write_text("file {{ eos_token }}")
    assert render(folder, [USER]) == [{"text": "file </s>"}]


def test_raw_passes_keys_unchanged(folder):
    got = render(folder, [{"messages": [{"role": "user", "content": None}], "x": 1}], "--raw", "--template",
                 write(folder, "{{ bos_token is defined }}{{ messages[0].content }}{{ add_generation_prompt is defined }}{{ x }}{{ tools }}"))
    assert got == [{"text": "FalseNoneFalse1None"}]


def write(folder, template):
    path = folder / "other.jinja"
    path.write_text(template)
    return path


def test_spans_distinguish_input_from_template(tmp_path):
    got = render(tmp_path, [USER], "--spans", "--template", TEMPLATES / "chatml.jinja")[0]
    assert "".join(t for t, _ in got["spans"]) == got["text"]
    assert ["Hi <|im_end|>", True] in got["spans"]
    assert got["spans"][-1] == ["<|im_end|>\n<|im_start|>assistant\n", False]


def test_an_error_is_the_answer_to_its_line(folder):
    boom = write(folder, "{{ raise_exception('no ' ~ messages[0].role) }}")
    assert render(folder, [USER], "--template", boom) == [{"error": "no user"}]
    broken = render(folder, [USER, "nonsense\n"], "--template", write(folder, "a\n{% if %}"))
    assert broken[0]["error"].startswith("line 2: ") and "error" in broken[1]
    failed = render(folder, [USER], "--template", write(folder, "{{ 1 + 'a' }}"))
    assert failed[0]["error"].startswith("template failed: TypeError")


def test_the_clock_can_be_fixed(folder):
    clock = write(folder, "{{ strftime_now('%d.%m.%Y %H:%M:%S.%f') }}")
    times = ["2025-06-15 12:34:56", "2025-06-15T12:34:56.25", 1749990896, "2025-06-15"]
    got = render(folder, [dict(USER, strftime_now=t) for t in times], "--template", clock)
    assert [g["text"] for g in got] == ["15.06.2025 12:34:56.000000", "15.06.2025 12:34:56.250000",
                                         "15.06.2025 12:34:56.000000", "15.06.2025 00:00:00.000000"]


def test_a_final_message_is_continued(tmp_path):
    messages = USER["messages"] + [{"role": "assistant", "content": "Once upon "}]
    got = render(tmp_path, [{"messages": messages, "continue_final_message": True}], "--template", TEMPLATES / "chatml.jinja")
    assert got[0]["text"].endswith("<|im_start|>assistant\nOnce upon")


def test_folder_without_template_is_an_error(tmp_path):
    p = subprocess.run([SLUICE, "render", str(tmp_path)], input=b"", capture_output=True, check=False)
    assert p.returncode == 1 and b"no chat template" in p.stderr
