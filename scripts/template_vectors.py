#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Test vectors for the template interpreter, from Jinja2 configured as in transformers.

    scripts/template_vectors.py make               writes test/templates/{snippets,cases}.jsonl
    scripts/template_vectors.py random N SEED      prints N random snippets with Jinja2's results

`random` is for differential testing: point SLUICE_SNIPPETS at its output and run
build/release/test/server/chat/jinja_vectors_test. Needs Jinja2 3.1.6.
"""
import datetime
import json
import pathlib
import random
import re
import sys

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLOCK = datetime.datetime(2025, 6, 15, 12, 34, 56)


class Generation(jinja2.ext.Extension):
    """{% generation %}: renders its body, in its own scope."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("run"), [], [], body).set_lineno(line)

    def run(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = CLOCK.strftime
    return env


ENV = environment()


def outcome(template, variables):
    """{"expected": text} or {"error": {type, message}}."""
    try:
        text = ENV.from_string(template).render(**variables)
        text.encode("utf-8")
        return {"expected": text}
    except RecursionError:
        return None
    except Exception as e:  # pylint: disable=broad-except
        return {"error": {"type": type(e).__name__, "message": str(e)}}


# ---- random templates ----

VARS = {
    "s": "Hello, Wörld", "t": "  a b\tc \n", "e": "", "u": "naïve ẞß ΑΣ ǆ \u00a0x\u2028😀 it's", "h": "<b>&\"q\"'</b>",
    "i": 7, "z": 0, "neg": -3, "big": 123456789012345678901234567890, "f": 2.5, "g": 1e22, "tiny": 1e-7, "yes": True,
    "no": False, "none_": None, "l": [3, 1, 2], "w": ["b", "A", "c", "B"], "m": [1, "a", None, True, 2.0, [1], {"k": 1}],
    "d": {"b": 1, "a": 2, "C": 0, "items": "data", "1": "one"}, "n": {"x": {"y": [10, {"z": "deep"}]}, "k": []},
    "o": [{"n": "x", "v": 2, "t": True}, {"n": "Y", "v": 1, "t": False}, {"n": "x", "v": 3, "t": True}],
    "messages": [{"role": "system", "content": "Be <kind>."}, {"role": "user", "content": "Hi\n there "},
                 {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
                 {"role": "tool", "content": "42"}],
}
STRINGS = ["s", "t", "e", "u", "h", "'abc'", "'a,b,,c'", "'%s-%s'", "'{} {}'", "\"it's\"", "'\\n x\\t'", "'x' 'y'", "'ß'", "''",
           "'a b  c'", "'Title Case words'", "'12'", "'0x1f'", "' 3.5 '", "'a\\u00e9\\x41'", "messages[1].content", "'<|im_end|>'"]
NUMBERS = ["i", "z", "neg", "f", "0", "1", "2", "3", "10", "1.5", "0.1", "big", "g", "tiny", "yes", "l|length", "loop.index", "-1", "1e3"]
LISTS = ["l", "w", "m", "o", "[1, 2]", "[]", "['a', 'b']", "(1, 'x')", "range(3)", "range(5, 0, -2)", "d.items()", "d.keys()",
         "d.values()", "messages", "n.x.y", "[[1, 2], [3]]", "s.split()", "l[::-1]", "o|map(attribute='n')", "w|select('string')", "d|items",
         "[none, 1]", "[0, false, '', 'x']", "d|dictsort", "'abc'|list"]
DICTS = ["d", "n", "{}", "{'a': 1, 'b': [1, 'x']}", "o[0]", "messages[0]", "{1: 'a', none: 2, true: 3}", "dict(a=1, b=2)", "n.x"]
ANY = ["none", "undef", "none_", "yes", "no", "d.missing", "n.x.y[1].z", "namespace(a=1).a", "m[6].k", "undef.x", "cycler('a','b').next()"]
STR_FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "string", "list", "reverse", "first", "last", "int", "float",
               "e", "safe", "wordcount", "replace('a', 'X')", "replace('', '-')", "replace('b', '', 1)", "trim('aH ')", "indent", "indent(2)",
               "indent(2, true)", "indent(width='> ', blank=true)", "truncate(5)", "truncate(5, true, '!', 0)", "center(20)", "default('d')",
               "tojson", "int(5)", "int(0, 16)", "format('p', 1)", "urlencode", "striptags", "join('-')", "sort", "unique|list", "forceescape",
               "batch(2)|list", "select|list", "map('upper')|join", "string|length", "count", "upper|lower", "escape", "urlize", "max", "min",
               "tojson(ensure_ascii=true)", "sort(reverse=true)|join", "d('z', true)", "items|list", "groupby(0)", "slice(2)|list", "abs",
               "attr('upper')", "round", "xmlattr", "dictsort", "sum"]
STR_METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip('a ')", "split()",
               "split(',')", "split(' ', 1)", "rsplit(' ', 1)", "split(none, 1)", "rsplit(none, 1)", "splitlines()", "splitlines(true)",
               "startswith('a')", "endswith(('c', 'd'))", "startswith('l', 2)", "find('b')", "rfind('l')", "index('zz')", "count('l')",
               "replace('l', 'L')", "replace('', '.', 2)", "partition(',')", "rpartition(' ')", "join(['x', 'y'])", "join(w)", "zfill(8)",
               "ljust(8, '.')", "rjust(8)", "center(9, '*')", "format(1, 2)", "format('a', 'b', c=3)", "isdigit()", "isalpha()", "isalnum()",
               "isspace()", "isupper()", "islower()", "istitle()", "isnumeric()", "isdecimal()", "isidentifier()", "isascii()", "isprintable()",
               "casefold()", "expandtabs(4)", "removeprefix('a')", "removesuffix('c')", "encode()", "nope()", "title().split()", "__len__()",
               "format_map({'a': 1})", "count('')", "find('', 3)", "startswith('')", "index('b')"]
NUM_FILTERS = ["abs", "round", "round(1)", "round(1, 'floor')", "round(0, 'ceil')", "int", "float", "string", "tojson", "default(1)", "filesizeformat",
               "length", "list", "e", "trim", "upper", "format", "round(-1)", "filesizeformat(true)", "first", "join"]
LIST_FILTERS = ["length", "first", "last", "list", "join", "join(', ')", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "unique|list",
                "reverse|list", "map('string')|list", "map('upper')|join(' ')", "select|list", "reject|list", "select('string')|list",
                "select('number')|list", "reject('none')|list", "select('gt', 1)|list", "map(attribute='n')|list", "map(attribute='v')|sum",
                "selectattr('t')|list", "selectattr('n', 'equalto', 'x')|list", "rejectattr('v', 'gt', 1)|list", "selectattr('v', 'defined')|list",
                "sum(attribute='v')", "max", "min", "max(attribute='v')", "min(attribute='v')", "sum", "batch(2)|list", "batch(2, 'f')|list",
                "slice(2)|list", "slice(2, 'f')|list", "groupby('n')", "groupby('n')|map(attribute='grouper')|list", "sort(attribute='v')",
                "sort(attribute='n,v')|map(attribute='v')|list", "tojson", "tojson(indent=2)", "string", "map('tojson')|join(',')",
                "tojson(separators=(',', ':'))", "map('int')|list", "map('default', 'x')|list", "map('trim')|list", "join(',', attribute='n')",
                "count", "items|list", "default([])", "map('length')|list", "unique(attribute='n')|list", "sort(attribute='missing')",
                "map(attribute='n.x')|list", "select('in', [1, 'x'])|list", "selectattr('n', 'in', ['x'])|map(attribute='v')|list|tojson",
                "map(attribute='zz', default='q')|list", "dictsort", "reject('odd')|list", "select('divisibleby', 2)|list", "e", "wordcount"]
DICT_FILTERS = ["items|list", "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "tojson", "tojson(indent=1)", "length",
                "list", "string", "tojson(sort_keys=true)", "first", "join", "xmlattr", "urlencode", "default(1)", "last", "reverse|list", "map('upper')|list",
                "tojson(indent=0)", "tojson(indent='\t', separators=(';', ' = '))", "sort", "max", "unique|list", "select|list", "count"]
DICT_METHODS = ["get('a')", "get('zz', 5)", "items()|list", "keys()|list", "values()|list", "get('zz')", "copy()", "items", "update({'q': 1})", "pop('a')",
                "get('a', default=1)", "keys()", "values()", "items()", "get([])", "clear()", "nope()", "setdefault('a', 1)"]
LIST_METHODS = ["index(1)", "count(1)", "copy()", "append(1)", "pop()", "index('x')", "reverse()", "sort()", "index(2, 1)", "extend([])", "nope()"]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "boolean", "true", "false", "integer", "float", "odd",
         "even", "lower", "upper", "callable", "escaped", "divisibleby(3)", "divisibleby 2", "eq 1", "in [1, 'abc']", "in(l)", "sameas none", "ne 2",
         "gt 1", "lt(5)", "ge 1", "le 2", "equalto('x')", "not defined", "not none", "not string", "not mapping", "filter", "test", "== 1"]


class Maker:
    """Random templates, most of them valid."""

    def __init__(self, rng):
        self.r = rng
        self.names = 0

    def any(self, n):
        return self.r.choice([self.string, self.string, self.number, self.list, self.dict, self.boolean, self.other])(n)

    def other(self, n):
        return self.r.choice(ANY)

    def string(self, n):
        r = self.r
        k = r.randrange(10) if n > 0 else 0
        if k < 2:
            return r.choice(STRINGS)
        if k < 4:
            return f"{self.operand(self.string, n)}|{r.choice(STR_FILTERS)}"
        if k < 6:
            return f"{self.operand(self.string, n)}.{r.choice(STR_METHODS)}"
        if k == 6:
            return f"({self.string(n - 1)} {r.choice('+~~%')} {self.any(n - 1)})"
        if k == 7:
            return f"{self.operand(self.string, n)}[{self.subscript(n)}]"
        if k == 8:
            return f"({self.any(n - 1)}|string)"
        return f"('{r.choice(['%s', '%r', '%d', '%5.1f', '%-6s|', '%05d', '%x', '%s %s', '%(a)s', '%+d', '%.2e', '%g', '%c'])}' % {self.any(n - 1)})"

    def operand(self, make, n):
        text = make(n - 1)
        simple = text.replace("_", "").isalnum() and not text[0].isdigit()
        return text if simple or text[0] in "'([" and text[-1] in "')]" and text.count(text[0]) == 1 else f"({text})"

    def subscript(self, n):
        r = self.r
        k = r.randrange(8)
        if k < 3:
            return str(r.randrange(-3, 4))
        if k < 6:
            part = lambda: r.choice(["", "", "0", "1", "2", "-1", "-2", "10", "-10", "none"])  # noqa: E731
            return f"{part()}:{part()}" + (f":{r.choice(['', '1', '2', '-1', '-2', '0'])}" if r.random() < .4 else "")
        return self.any(n - 1) if n > 0 else "0"

    def number(self, n):
        r = self.r
        k = r.randrange(8) if n > 0 else 0
        if k < 2:
            return r.choice(NUMBERS)
        if k < 5:
            op = r.choice(["+", "-", "*", "/", "//", "%", "**"])
            right = r.choice(["2", "3", "-1", "0.5"]) if op == "**" else self.number(n - 1)
            return f"({self.number(n - 1)} {op} {right})"
        if k == 5:
            return f"({self.number(n - 1)})|{r.choice(NUM_FILTERS)}"
        if k == 6:
            return f"-{self.operand(self.number, n)}"
        return f"({self.any(n - 1)})|{r.choice(['length', 'int', 'float', 'count', 'abs', 'round'])}"

    def list(self, n):
        r = self.r
        k = r.randrange(8) if n > 0 else 0
        if k < 2:
            return r.choice(LISTS)
        if k < 5:
            return f"({self.list(n - 1)})|{r.choice(LIST_FILTERS)}"
        if k == 5:
            return f"[{', '.join(self.any(n - 1) for _ in range(r.randrange(4)))}]"
        if k == 6:
            return f"({self.list(n - 1)})[{self.subscript(n)}]"
        return f"({self.list(n - 1)}).{r.choice(LIST_METHODS)}" if r.random() < .4 else f"({self.list(n - 1)} + {self.list(n - 1)})"

    def dict(self, n):
        r = self.r
        k = r.randrange(6) if n > 0 else 0
        if k < 2:
            return r.choice(DICTS)
        if k == 2:
            return f"({self.dict(n - 1)})|{r.choice(DICT_FILTERS)}"
        if k == 3:
            return f"({self.dict(n - 1)}).{r.choice(DICT_METHODS)}"
        if k == 4:
            pairs = (f"{r.choice([self.string, self.number, self.any])(0)}: {self.any(n - 1)}" for _ in range(r.randrange(3)))
            return "{" + ", ".join(pairs) + "}"
        return f"({self.dict(n - 1)}){r.choice(['.a', '.x', '.items', '.b', '.k', '.get'])}"

    def boolean(self, n):
        r = self.r
        k = r.randrange(7) if n > 0 else 0
        if k == 0:
            return r.choice(["yes", "no", "true", "false", "d.a", "e", "l", "none"])
        if k == 1:
            return f"({self.any(n - 1)} {r.choice(['==', '!=', '<', '<=', '>', '>='])} {self.any(n - 1)})"
        if k == 2:
            return f"({self.any(n - 1)} {r.choice(['in', 'not in'])} {r.choice([self.list, self.string, self.dict])(n - 1)})"
        if k == 3:
            return f"({self.any(n - 1)} is {r.choice(TESTS)})"
        if k == 4:
            return f"({self.any(n - 1)} {r.choice(['and', 'or'])} {self.any(n - 1)})"
        if k == 5:
            return f"(not {self.boolean(n - 1)})"
        return f"({self.any(n - 1)} if {self.boolean(n - 1)} else {self.any(n - 1)})" if r.random() < .8 else f"({self.any(n - 1)} if {self.boolean(n - 1)})"

    def name(self):
        self.names += 1
        return self.r.choice(["v", "x", "y", "acc", f"v{self.names % 3}"])

    def open(self):
        return self.r.choice(["{% ", "{%- ", "{% ", "{%", "{%+ "])

    def close(self):
        return self.r.choice([" %}", " -%}", " %}", "%}", " +%}"])

    def tag(self, text):
        return self.open() + text + self.close()

    def text(self):
        return self.r.choice(["\n", " ", "x", "a\n  b", "  ", "\n\n", "<|t|>\n", "{# c #}", "  {#- c -#} ", "}", "\ty\n"])

    def statement(self, n):
        r = self.r
        k = r.randrange(14) if n > 0 else r.randrange(4)
        if k < 2:
            return self.text()
        if k < 5:
            return r.choice(["{{ %s }}", "{{- %s -}}", "{{%s}}"]) % (" " + self.any(2) + " ")
        if k == 5:
            return self.tag(f"set {self.name()} = {self.any(2)}")
        if k == 6:
            other = self.tag(f"elif {self.boolean(1)}") + self.body(n - 1) if r.random() < .3 else ""
            other += self.tag("else") + self.body(n - 1) if r.random() < .5 else ""
            return self.tag(f"if {self.boolean(2)}") + self.body(n - 1) + other + self.tag("endif")
        if k in (7, 8):
            target, over = ("k, v", r.choice(["d.items()", "d|items", "d|dictsort", "[(1, 2)]"])) if r.random() < .3 else (r.choice(["x", "v"]), self.list(1))
            test = f" if {self.boolean(1)}" if r.random() < .25 else ""
            extra = r.choice(["", "", "{{ loop.index }}", "{{ loop.last }}", "{% if loop.first %}F{% endif %}", "{{ loop.previtem is defined }}",
                              "{{ loop.nextitem }}", "{% if loop.index0 == 1 %}{% break %}{% endif %}", "{% if loop.index == 1 %}{% continue %}{% endif %}",
                              "{{ loop.length }}{{ loop.revindex }}", "{{ loop.cycle('o', 'e') }}", "{{ loop.changed(x) }}"])
            other = self.tag("else") + self.body(n - 1) if r.random() < .3 else ""
            return self.tag(f"for {target} in {over}{test}") + extra + self.body(n - 1) + other + self.tag("endfor")
        if k == 9:
            return self.tag("set ns = namespace(a=1, acc='')") + self.tag("for q in [1, 2]") + self.tag(f"set ns.a = {r.choice(['ns.a + q', self.any(1)])}") + \
                self.tag("endfor") + "{{ ns.a }}"
        if k == 10:
            return self.tag(f"macro f({r.choice(['a', 'a, b=2', 'a=1, b=a', 'a, b=none', ''])})") + self.body(n - 1) + r.choice(["{{ a }}", "{{ varargs }}", "{{ b }}", "{{ kwargs }}", ""]) + \
                self.tag("endmacro") + r.choice(["{{ f(1) }}", "{{ f(1, 2) }}", "{{ f() }}", "{{ f(a=3) }}", "{{ f(1, b=s) }}", "{{ f(1)|upper }}", "{{ f(*[1, 2]) }}", "{{ f(**{'a': 5}) }}"])
        if k == 11:
            return self.tag(f"set {self.name()}{r.choice(['', ' | upper', ' | trim | length'])}") + self.body(n - 1) + self.tag("endset")
        if k == 12:
            return r.choice([self.tag(f"filter {r.choice(['upper', 'trim', 'indent(2)', 'replace(1, 2)'])}") + self.body(n - 1) + self.tag("endfilter"),
                             self.tag("generation") + self.body(n - 1) + self.tag("endgeneration"),
                             self.tag(f"with x = {self.any(1)}, y = x") + self.body(n - 1) + self.tag("endwith"),
                             self.tag("macro c(q)") + "<{{ q }}{{ caller(q) }}>" + self.tag("endmacro") + self.tag("call(z) c(4)") + "{{ z }}" + self.body(n - 1) + self.tag("endcall")])
        return "{% raw %}{{ x }}" + self.text() + "{% endraw %}"

    def body(self, n):
        return "".join(self.statement(n) for _ in range(self.r.randrange(1, 4)))

    def template(self):
        if self.r.random() < .5:
            return "{{ " + self.any(3) + " }}"
        return self.body(3)


UNSTABLE = (" at 0x", "<generator", "reverseiterator", "<built-in", "<function", "<bound method", "object at", "<jinja2", "<class",
            "BlockReference", "<method", "<property", "<map", "_iterator")


def used(template):
    """The variables that the template mentions."""
    words = set(re.findall(r"\w+", template))
    return {k: v for k, v in VARS.items() if k in words}


def random_snippets(count, seed):
    maker = Maker(random.Random(seed))
    made = 0
    while made < count:
        template = maker.template()
        o = outcome(template, VARS)
        text = o.get("expected", "") if o else ""
        if o is None or "j)" in text or any(u in text for u in UNSTABLE) or len(text) > 20000:
            continue
        made += 1
        yield {"id": f"random/{seed}/{made}", "template": template, "vars": used(template), **o}


# ---- our own vectors ----

def hand_written():
    """test/templates/snippets.txt: one snippet per line, as a JSON string."""
    for i, line in enumerate((ROOT / "test/templates/snippets.txt").read_text(encoding="utf-8").splitlines()):
        if line:
            template = json.loads(line)
            yield {"id": f"own/{i + 1}", "template": template, "vars": used(template), **outcome(template, VARS)}


def conversations():
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather in a \"city\"", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Größe & <name>"}, "days": {"type": "integer"}},
        "required": ["city"]}}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {
        "name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "x": None, "f": 1.0}}}]}
    yield "user", [{"role": "user", "content": "Hello"}], None, {}
    yield "system", [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi 😀\n"}], None, {}
    yield "turns", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "<|im_end|>"}], None, {}
    yield "no_prompt", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], None, {"add_generation_prompt": False}
    yield "think", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
                    {"role": "user", "content": "c"}], None, {"enable_thinking": False}
    yield "reasoning", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "why"}], None, {}
    yield "tools", [{"role": "user", "content": "Weather?"}], [tool], {}
    yield "call", [{"role": "user", "content": "Weather?"}, call, {"role": "tool", "tool_call_id": "call_1", "name": "get_weather",
                                                                     "content": "{\"t\": 7}"}], [tool, tool], {}
    yield "null", [{"role": "user", "content": "q"}, dict(call, content=None)], [tool], {}
    yield "parts", [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}], None, {}
    yield "bad_role", [{"role": "nobody", "content": "q"}], None, {}
    yield "empty", [], None, {}


def make():
    folder = ROOT / "test/templates"
    snippets = list(hand_written()) + list(random_snippets(400, 1))
    write(folder / "snippets.jsonl", snippets)
    cases = []
    for path in sorted(folder.glob("*.jinja")):
        for name, messages, tools, extra in conversations():
            extra = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **extra}
            cases.append({"id": f"{path.stem}/{name}", "template": path.stem, "messages": messages, "tools": tools, "extra": extra,
                          **outcome(path.read_text(encoding="utf-8"), {"messages": messages, "tools": tools, "documents": None, **extra})})
    write(folder / "cases.jsonl", cases)


def write(path, rows):
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    path.write_text(text, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(rows)} ({sum('error' in r for r in rows)} errors)")


def main():
    if sys.argv[1:2] == ["random"]:
        for row in random_snippets(int(sys.argv[2]), int(sys.argv[3])):
            print(json.dumps(row))
    elif sys.argv[1:] == ["make"]:
        make()
    else:
        sys.exit(__doc__)


main()
