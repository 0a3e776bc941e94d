# SPDX-License-Identifier: Apache-2.0
"""Like test_torture.py, for everything that is read at load: settings beside a model, templates, tokenizers, GGUF files, and grammars.
A file that could not be read is an error and never treated as missing, so a request gets its usual answer or a server error."""
import json
import os
import shutil
import subprocess
import sys

import pytest

import test_torture
from test_torture import BUILD, FOLDER, ROOT, Torture, numbers

sys.path.insert(0, os.path.join(ROOT, "test/model"))
import gguf_files  # noqa: E402

library = test_torture.library
pytestmark = test_torture.pytestmark

TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role | upper }}: {{ m.content | trim }}\n{% endfor %}a b"
CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": {"content": "<pad>"}, "chat_template": [
    {"name": "default", "template": "{{ messages[0].content }}"}, {"name": "tool_use", "template": "{{ tools }}"}],
    "added_tokens_decoder": {"0": {"content": "<pad>", "special": True}, "1": {"content": "<s>", "special": True}}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "n": {"type": "integer", "minimum": 3}}, "required": ["a"]}
LARK = 'start: "a" WORD+\nWORD: /[a-c]{1,3}/ | "d" ("e" | "f")'


def without_links(folder, names):
    return [n for n in names if os.path.islink(os.path.join(folder, n))]


def chat(**more):
    return {"messages": [{"role": "user", "content": " a b c "}], "max_tokens": 6, "seed": 1, **more}


BODIES = {
    "settings": [chat(), chat(temperature=0)],
    "grammars": [chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}),
                 chat(structured_outputs={"regex": "[ab]+(c|d{2,4})?x"}), chat(structured_outputs={"grammar": LARK}),
                 chat(structured_outputs={"choice": ["left", "right"]})],
    "gguf": [chat()],
}


def model_of(case, folder):
    if case == "gguf":
        path = os.path.join(folder, "model.gguf")
        gguf_files.convert(FOLDER, path, more=[("general.sampling.temp", gguf_files.F32, 0.5)])
        return path
    path = os.path.join(folder, "model")
    shutil.copytree(FOLDER, path, ignore=without_links)
    files = {"tokenizer_config.json": json.dumps(CONFIG), "chat_template.jinja": TEMPLATE,
             "special_tokens_map.json": json.dumps({"unk_token": "<pad>"}),
             "generation_config.json": json.dumps({"temperature": 0.4, "top_k": 20, "eos_token_id": [2], "max_new_tokens": 6})}
    with open(os.path.join(FOLDER, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    steps = [{"type": "Replace", "pattern": {"String": "~"}, "content": "-"}, {"type": "ByteLevel"}]  # several steps need more memory than one
    files["tokenizer.json"] = json.dumps({**tokenizer, "decoder": {"type": "Sequence", "decoders": steps}})
    for name, text in files.items():
        with open(os.path.join(path, name), "w") as f:
            f.write(text)
    return path


def answers_of(path):
    """By custom_id: the text, or the error."""
    answers = {}
    with open(path) as f:
        for line in f:
            a = json.loads(line)
            body = (a["response"] or {}).get("body", {})
            text = body["choices"][0]["message"]["content"] if "choices" in body else None
            answers[a["custom_id"]] = text, (a["response"] or {}).get("status_code", 500), body.get("error") or a.get("error")
    return answers


def run_batch(env, folder, model):
    """The exit code (None: it hangs), the messages, the answers."""
    out = os.path.join(folder, "out.jsonl")
    if os.path.exists(out):
        os.unlink(out)
    command = [os.path.join(BUILD, "sluice"), "run-batch", model, "-i", os.path.join(folder, "in.jsonl"), "-o", out,
               "--device", "cpu", "--threads", "1", "--kv-cache-memory-bytes", "1MiB", "--dtype", "float32"]
    try:
        p = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    except subprocess.TimeoutExpired:
        return None, "", {}
    return p.returncode, p.stderr.decode(errors="replace"), answers_of(out) if p.returncode == 0 else {}


def verdict_of(rc, said, got, expected):
    if rc is None:
        return "it hangs"
    if rc < 0:
        return "signal %d" % -rc
    if rc > 0:
        return "" if said.strip() else "it ended with %d without a word" % rc
    if set(got) != set(expected):
        return "answers to %s" % sorted(got)
    wrong = {k: v for k, v in got.items() if v[0] != expected[k][0] and (v[0] is not None or v[1] < 500)}
    return "answers: %s" % wrong if wrong else ""


def what_is_wrong(t, kind, number, folder, model, expected):
    rc, said, got = run_batch(t.failing(kind, number), folder, model)
    verdict = verdict_of(rc, said, got, expected)
    _, failed, left = t.report() if rc is not None and rc >= 0 else ({}, "", [])
    if left:
        verdict += " left: %s" % {t.place(a) for a in left[:5]}
    name, _, at = failed.partition(" ")
    return verdict and "%s %d (%s in %s): %s: %s" % (kind, number, name, t.place(at) if at else "?", verdict, said[-300:])


@pytest.mark.parametrize("kind", ["allocation", "system"])
@pytest.mark.parametrize("case", BODIES)
def test_an_unreadable_file_is_not_treated_as_missing(library, tmp_path, case, kind):
    folder = str(tmp_path)
    model = model_of(case, folder)
    with open(os.path.join(folder, "in.jsonl"), "w") as f:
        for i, body in enumerate(BODIES[case]):
            f.write(json.dumps({"custom_id": "r%d" % i, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    t = Torture(library, os.path.join(BUILD, "sluice"), folder, "libcjson")
    rc, said, expected = run_batch(t.failing(kind, 0), folder, model)
    counts, _, left = t.report()
    assert rc == 0 and len(expected) == len(BODIES[case]) and not left, (said, [t.place(a) for a in left[:5]])
    assert all(text is not None for text, _, _ in expected.values()), expected
    found = (what_is_wrong(t, kind, n, folder, model, expected) for n in numbers(counts[kind], 60))
    wrong = [w for w in found if w]
    assert not wrong, "%d of %d\n%s" % (len(wrong), counts[kind], "\n".join(wrong[:20]))
