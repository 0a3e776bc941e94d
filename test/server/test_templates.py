"""Chat templates through `sluice render`: our own vectors (test/templates, made by Jinja2) and, where they are
present, the vectors of ../shared/data."""
import collections
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
SHARED = pathlib.Path(os.environ.get("SLUICE_SHARED", ROOT / ".." / "shared")) / "data"
CLOCK = "2025-06-15 12:34:56"

needs_shared = pytest.mark.skipif(not (SHARED / "template_cases.jsonl").exists(), reason="no ../shared")


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def render(folder, template, requests, *flags):
    text = "\n".join(json.dumps(r) for r in requests) + "\n"
    p = subprocess.run([SLUICE, "render", str(folder), "--template", str(template), *flags], input=text.encode(),
                       capture_output=True, timeout=100, check=False)
    assert p.returncode == 0, p.stderr.decode()
    out = [json.loads(line) for line in p.stdout.decode().split("\n") if line]
    assert len(out) == len(requests)
    return out


def difference(case, got):
    """Why `got` is not what the case expects, or None."""
    if "expected" in case:
        return None if got.get("text") == case["expected"] else f"want {case['expected']!r}, got {got!r}"
    if "error" not in got:
        return f"should fail ({case['error']['type']}), got {got!r}"
    if case["error"]["type"] == "TemplateError" and got["error"] != case["error"]["message"]:
        return f"want the error {case['error']['message']!r}, got {got!r}"
    return None


def check(cases, got):
    bad = [f"{c['id']}: {d[:600]}" for c, g in zip(cases, got) if (d := difference(c, g))]
    assert not bad, f"{len(bad)} of {len(cases)} differ:\n" + "\n".join(bad[:5])


def check_cases(cases, folder, tmp_path):
    by_template = collections.defaultdict(list)
    for c in cases:
        by_template[c["template"]].append(c)
    for name, group in by_template.items():
        requests = [dict(c["extra"], messages=c["messages"], tools=c["tools"], strftime_now=CLOCK) for c in group]
        check(group, render(tmp_path, folder / f"{name}.jinja", requests, "--raw"))


def check_snippets(snippets, tmp_path):
    path = tmp_path / "snippet.jinja"
    got = []
    for s in snippets:
        path.write_bytes(s["template"].encode("utf-8"))
        got += render(tmp_path, path, [dict(s["vars"], strftime_now=CLOCK)], "--raw")
    check(snippets, got)


@needs_shared
def test_shared_template_cases(tmp_path):
    check_cases(lines(SHARED / "template_cases.jsonl"), SHARED / "templates", tmp_path)


@needs_shared
def test_shared_snippets(tmp_path):
    check_snippets(lines(SHARED / "jinja_snippets.jsonl"), tmp_path)
