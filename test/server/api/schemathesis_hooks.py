# SPDX-License-Identifier: Apache-2.0
"""What Schemathesis leaves out of bodies, for test_schemathesis.py and scripts/check_schemathesis: members that hold texts of
other languages (grammars, patterns, JSON schemas), of which the document cannot say which are valid, lengths whose limit depends on
the prompt, and the window of penalties, whose rule is one more than Schemathesis can combine; they have tests of their own."""

import schemathesis

LANGUAGES = ["ebnf", "format", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "guided_whitespace_pattern", "json_schema",
             "output_config", "output_format", "regex", "response_format", "structural_tag", "structured_outputs", "text"]
LENGTHS = ["min_tokens", "min_new_tokens"]
WINDOW = ["repeat_last_n", "penalize_nl"]


@schemathesis.hook
def before_load_schema(context, raw_schema):
    for body in raw_schema["components"]["schemas"].values():
        for key in LANGUAGES + LENGTHS + WINDOW:
            body.get("properties", {}).pop(key, None)
        if "allOf" in body:
            body["allOf"] = [rule for rule in body["allOf"] if not any(key in str(rule) for key in WINDOW)]
