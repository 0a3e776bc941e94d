# SPDX-License-Identifier: Apache-2.0
"""Prints the table vllm_serve.txt: the flags of vLLM's `serve` and the values they may have, read from
the source of a vLLM package without running it.

    pip download vllm==VERSION --no-deps && unzip -q vllm-*.whl -d DIR
    python3 vllm_serve_table.py DIR/vllm >vllm_serve.txt

A line is: names joined by commas; flag (--x and --no-x), alone (--x), maybe (a value or none), words (several) or value;
the values that the type lists, joined by "|", or "-"; the default, if the source has it as a constant, or "-".
"""
import ast
import os
import sys

BOOLEAN, ALONE, MAYBE, WORDS, VALUE = "flag", "alone", "maybe", "words", "value"


class Package:
    """All classes with annotated fields and all names of types, by their names."""

    def __init__(self, root):
        self.classes, self.types, self.trees = {}, {}, {}
        for folder, _, files in os.walk(root):
            for name in sorted(files):
                path = os.path.join(folder, name)
                if name.endswith(".py") and os.path.getsize(path) < 1 << 20:
                    with open(path, encoding="utf-8") as f:
                        self.read(os.path.relpath(path, root), ast.parse(f.read()))

    def read(self, path, tree):
        self.trees[path] = tree
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
        for node in tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.types.setdefault(node.targets[0].id, node.value)
            if isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
                self.types.setdefault(node.target.id, node.value)

    def fields(self, name):
        """The annotations and defaults of a class and its bases, in their order."""
        node, found = self.classes[name], {}
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                found.update(self.fields(base.id))
        for item in node.body:
            if isinstance(item, ast.AnnAssign):
                found[item.target.id] = item.annotation, default_of(item.value)
        return found

    def words(self, node):
        """The words of a Literal[...], which may have a name of its own; None if the type is not a Literal."""
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            inner = [self.words(i) for i in items]
            return [w for i, v in zip(items, inner) for w in (v or ([str(i.value)] if isinstance(i, ast.Constant) else []))]
        if isinstance(node, ast.Name) and node.id in self.types:
            return self.words(self.types[node.id])
        return None

    def parts(self, node):
        """The members of a union, which may have a name of its own."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.parts(node.left) + self.parts(node.right)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in ("Annotated", "SkipValidation"):
            return self.parts(node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice)
        if isinstance(node, ast.Name) and isinstance(self.types.get(node.id), (ast.BinOp, ast.Subscript)) and self.words(node) is None:
            return self.parts(self.types[node.id])
        return [node]

    def takes(self, annotation):
        parts = self.parts(annotation)
        names = {p.id if isinstance(p, ast.Name) else getattr(getattr(p, "value", None), "id", None) for p in parts}
        words = [w for p in parts for w in self.words(p) or []]
        if any(n in self.classes and any(isinstance(i, ast.AnnAssign) for i in self.classes[n].body) for n in names if n):
            return VALUE, []
        if "bool" in names:
            return (MAYBE if "str" in names else BOOLEAN), []
        if words:
            return VALUE, words
        return (WORDS if names & {"list", "tuple", "set", "Sequence"} else VALUE), []


def default_of(node):
    """The constant of `x: T = constant` and of `x: T = Field(default=constant, ...)`, as on a command line, or None."""
    if isinstance(node, ast.Call):
        node = {k.arg: k.value for k in node.keywords}.get("default")
    value = node.value if isinstance(node, ast.Constant) else None
    return str(value) if value not in (None, "") and " " not in str(value) else None


def dict_of(node):
    """x_kwargs["field"], also inside of {**x_kwargs["field"], ...}: (x_kwargs, field)."""
    for n in ast.walk(node):
        if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and isinstance(n.slice, ast.Constant):
            return n.value.id, n.slice.value
    return None


def flags_of(package, function):
    """The flags that a function adds to a parser."""
    sources = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "get_kwargs":
            sources[node.targets[0].id] = package.fields(node.value.args[0].id)
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
            continue
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
        if not names:
            continue
        takes, words, default = VALUE, [], None
        given = {k.arg: k.value for k in node.keywords}
        for keyword in node.keywords:
            found = dict_of(keyword.value) if keyword.arg is None else None
            if found and found[0] in sources:
                annotation, default = sources[found[0]][found[1]]
                takes, words = package.takes(annotation)
        default = default_of(given["default"]) if "default" in given else default
        action = ast.unparse(given["action"]) if "action" in given else ""
        if "BooleanOptionalAction" in action:
            takes = BOOLEAN
        elif "store_true" in action:
            takes = ALONE
        if isinstance(given.get("choices"), ast.List):
            words = [c.value for c in given["choices"].elts]
        yield names, takes, words, default


def main(root):
    package = Package(root)
    table = {}

    def add(names, takes, words, default):
        key = max((n.lstrip("-") for n in names), key=len)
        table[key] = (sorted({n.lstrip("-").replace("_", "-") for n in names}, key=lambda n: (n != key, n)), takes, words, default)

    cli = package.trees["entrypoints/common/cli_args.py"]
    engine = package.trees["engine/arg_utils.py"]
    for tree, wanted in ((cli, "make_arg_parser"), (engine, "add_cli_args")):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == wanted:
                for flag in flags_of(package, node):
                    add(*flag)
    one_value = {"allowed_origins", "allowed_methods", "allowed_headers", "middleware"}  # lists that vLLM itself converts to single values
    for name, (annotation, default) in package.fields("FrontendArgs").items():
        takes, words = package.takes(annotation)
        add([name.replace("_", "-")], VALUE if name in one_value else takes, words, default)
    for key in sorted(table):
        names, takes, words, default = table[key]
        print(",".join(names), takes, "|".join(words) or "-", default or "-")


if __name__ == "__main__":
    main(sys.argv[1])
