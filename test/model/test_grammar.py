# SPDX-License-Identifier: Apache-2.0
"""`sluice grammar`: texts against schemas and grammars, and the tokens that may come next, without a server."""
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
DEMO = ROOT / "models" / "demo"


def run(lines, *options):
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = subprocess.run([SLUICE, "grammar", *options], input=text.encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def answers(lines, *options):
    return [json.loads(line) for line in run(lines, "--json", *options).splitlines()]


def test_each_kind_of_grammar_checks_its_texts():
    got = answers([
        {"schema": {"type": "integer", "minimum": 3}, "strings": ["3", "2", "12", "1.5"]},
        {"schema": '{"const": "a"}', "strings": ['"a"', '"b"']},
        {"schema": True, "strings": ["[1, {}]"]},
        {"regex": "a+b", "strings": ["aab", "b"]},
        {"gbnf": 'root ::= "(" root? ")"', "strings": ["(())", "("]},
        {"lark": 'start: "x"+', "strings": []},
    ])
    assert [line["accepted"] for line in got] == [[True, False, True, False], [True, False], [True], [True, False],
                                                  [True, False], []]


def test_invalid_grammars_are_answered_with_an_error():
    got = answers([{"schema": {"properties": {"a": {"type": "strng"}}}, "strings": ["1"]}, {"strings": []}, "no JSON",
                   {"regex": "a", "strings": ["a"]}, {"regex": "a", "gbnf": "x"}, {"regex": "a", "prefix": ""}])
    assert "#/properties/a" in got[0]["error"]
    assert all("error" in line for i, line in enumerate(got) if i != 3)
    assert got[3] == {"accepted": [True]}


def test_options_of_a_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    texts = ['{"a": 1}', '{"a":1}', '{"a":1,"b":2}']
    got = answers([{"schema": schema, "strings": texts}, {"schema": schema, "strings": texts, "open_objects": True},
                   {"schema": schema, "strings": texts, "disable_any_whitespace": True},
                   {"schema": schema, "strings": texts, "whitespace_pattern": " "}])
    assert [line["accepted"] for line in got] == [[True, True, False], [True, True, True], [False, True, False],
                                                  [False, False, False]]


def test_tokens_that_may_follow_a_prefix():
    got = answers([{"regex": "[0-9]{2}", "prefix": "4"}, {"regex": "[0-9]{2}", "prefix_hex": "3432"},
                   {"regex": "[0-9]{2}", "prefix": "x"}], str(DEMO))
    assert len(got[0]["allowed"]) == 10 and not got[0]["may_end"]
    assert len(got[1]["allowed"]) == 1 and got[1]["may_end"]
    assert "error" in got[2]


def test_a_report_for_people():
    text = run([{"regex": "ab", "strings": ["ab", "a", "ax"], "prefix": "a"}, {"regex": "(", "strings": []}], str(DEMO))
    assert 'accepted  "ab"' in text and "more must follow" in text and "no match from byte 1" in text
    assert "may follow" in text and "refused: " in text
