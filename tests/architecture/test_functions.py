"""No function of the product is longer than what fits on a screen."""

import ast
import re

import pytest
from test_includes import ROOT, tracked

LONGEST = 40  # lines: in C++ and Go with the signature, in Python without it and the docstring


def cpp_blocks(text):
    """(first line, lines) of what ends in a brace of its own, at the top or in a class."""
    lines = text.splitlines()
    for end, line in enumerate(lines):
        if line not in ("}", "  }"):
            continue
        indent = " " * line.index("}")
        starts = re.compile(rf"{indent}[^\s}}#]")
        begin = next((i for i in range(end - 1, -1, -1) if starts.match(lines[i])), end)
        yield lines[begin].strip(), end - begin + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, body[-1].end_lineno - body[0].lineno + 1 if body else 0


def too_long(path, text):
    functions = python_functions(text) if path.endswith(".py") else cpp_blocks(text)
    return [f"{path}: {name} has {count} lines" for name, count in functions if count > LONGEST]


def test_no_function_is_longer_than_a_screen():
    cpp = tracked(*(f"{folder}/*.{kind}" for folder in ("server", "common", "client") for kind in ("h", "cc")))
    go = [path for path in tracked("client/*.go") if not path.endswith("_test.go")]
    python = tracked("client/*.py", "deploy/*.py")
    assert len(cpp) > 100 and len(go) > 10 and len(python) > 30
    found = [line for path in cpp + go + python for line in too_long(path, (ROOT / path).read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def cpp(count, indent=""):
    body = "\n".join([f"{indent}  step();"] * (count - 3))
    return f"{indent}void Long(int first,\n{indent}          int second) {{\n{body}\n{indent}}}\n"


@pytest.mark.parametrize("path, make", [
    ("a.cc", cpp),
    ("a.h", lambda count: "class A {\n public:\n" + cpp(count, "  ") + "};\n"),
    ("a.go", lambda count: "func Long(first int) {\n" + "\tstep()\n" * (count - 2) + "}\n"),
    ("a.py", lambda count: 'def f(\n    a,\n):\n    """Says."""\n' + "    a += 1\n" * count),
])
def test_a_function_is_measured_to_the_line(path, make):
    assert too_long(path, make(LONGEST)) == []
    (found,) = too_long(path, make(LONGEST + 1))
    assert f"{LONGEST + 1} lines" in found
