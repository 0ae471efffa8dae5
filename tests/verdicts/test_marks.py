"""What is put into a source to see which checks are reached changes nothing else of it."""

from __future__ import annotations

import ast
import contextlib
import io
import traceback
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviato.rl.test_source import MARK, look

FIXED = [
    "for x in xs:\n\tassert f(x) == 4",
    "for x in xs: assert f(x) == 4; y = 1; assert y",
    "for x in xs:\r\n    assert f(x) == 4\r\n    assert f(x) == 4  # é\r\ny = 1\r\n",
    "for x in xs:\r    assert f(x) == 4\ry = 1",
    "\x0cfor x in xs:\n\x0c    assert f(x) == 4, 'é'\n",
    "# -*- coding: latin-1 -*-\nfor x in xs: s = 'é𝄞'; assert f(x) == 4, s",
    "for x in xs:\n    assert (f(x) ==\n        4), '''a\nb'''; z = 3",
    "for x in xs:\n    assert f(x) \\\n        == 4\n",
    "if xs: \\\n  assert f(2) == 4",
    "for x in xs:\n    if f(x) != 4: raise ValueError; \n",
    "for x in xs:\n    if (y := f(x)) != 4:\n        raise ValueError(f'{y!r:>{10}} {x}')",
    "for x in xs:\n    if y := f(x):\n        raise ValueError",
    "for x in xs:\n    for y in x, 2:\n        raise ValueError",
    "for x in xs:\n    for y in *xs, 2:\n        raise ValueError",
    "for x in xs:\n    match x, 2:\n        case _: raise ValueError",
    "for x in xs:\n    while (x): raise ValueError",
    "for x in xs:\n    with a.raises(ValueError) as e, open('b') as g:\n        f(-1)",
    "for x in xs:\n    with (a.raises(ValueError) as e):\n        f(-1)",
    "for x in xs:\n    with (\n        a.raises(ValueError)\n    ): f(-1)",
    "for x in xs:\n    try: f(-1); assert False\n    except ValueError: pass",
    "for x in xs:\n    try:\n        for y in x: f(y)\n        assert False\n    except ValueError: pass",
    "for x in xs:\n    try:\n        '''doc'''\n        assert f(x)\n    except ValueError: pass",
    "@g(1)\n@h\ndef check(x):\n    'doc'\n    assert f(x) == 4\ncheck(2)",
    "def check(x):\n    if x: return\n    assert f(x) == 4\ncheck(2)",
    "def check(x):\n    'doc'\n    if x: return\n    raise AssertionError\nfor x in xs: check(x)",
    "[check(x) for x in xs]",
    "f and check(f)",
    "(f) and (check)(f)",
    "check(f) if f else check(g)",
    "async def main():\n    async for x in xs:\n        assert await f(x) == 4\nimport asyncio\nasyncio.run(main())",
    "def check():\n    if (yield f): raise AssertionError\n    if (yield 3) == 4: raise AssertionError\nlist(check())",
    "class A:\n    def m(self):\n        global y\n        assert f(2) == 4\nA().m()",
    "for x in xs:\n    if x: assert x\n    elif f(x): assert f(x) == 4\n    else: assert f",
    "for s in xs: s += '\u2028\x85'; assert f(s) == '\u2028'; assert s",
    "if xs:\n    x = f'''{\n1}'''; assert f(x) == 4",
    "import unittest\nclass A(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(2),\n  4)\n"
    "if xs: unittest.main(\n  exit=False); y = 1",
]

ODD = {
    "accents": "s = 'é'; assert f(x) == 4, s; y = 'é'",
    "emoji": "s = '😀👩\u200d👧'; assert f(x) == 4, s; y = '😀'",
    "combining": "s = 'e\u0301'; assert f(x) == 4, s; y = 'e\u0301'",
    "identifiers": "é = ñ = 1; assert f(é) == 4, ñ; ü = é",
    "identifiers that Python writes another way": "ﬁ = 'é'; assert f(fi) == 4, ﬁ; y = ﬁ",
    "tabs": "s =\t'é';\tassert\tf(x) == 4,\ts\t;\ty = 1",
    "form feeds": "s = 'é\x0c';\x0cassert f(x) == 4\x0c; y = 1",
    "ends of lines that are none": "s = '\x0b\x1c\x1d\x1e\x85\u2028\u2029'; assert f(x) == 4, s; y = 1",
    "a line that goes on": "s = 'é'; assert \\\n  f(x) == 4, \\\n 'é'; y = 1",
    "several lines": "s = '''é\n\u2028é'''; assert f(x) == 4, '''é\né'''; y = 'é'",
    "formatted": "s = f'é{x:é>{4}}é'; assert f(x) == 4, f'é{s}é'; y = f'é'",
    "a call": "'é'; 'é' and check(x); y = 'é'",
    "raised": "é = f(x)\n    if 'é' == é: raise ValueError('é'); y = 1",
}
"""Statements in whose lines bytes and characters differ, or Python and `str.splitlines` disagree what a line is."""
AROUND = {
    "a loop": "for x in xs:\n    {}\n",
    "a branch": "é = '😀'\nif 'é' in xs:\n    {}\n",
    "a function": "def inner(x):\n    é = '😀'; {}\n'é'; z = 'é' if xs else inner(1); z\n",
}


class Strip(ast.NodeTransformer):
    """Takes the marks out of a tree again."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        return node.args[0] if isinstance(node.func, ast.Name) and node.func.id == MARK and node.args else node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        never = isinstance(node.values[0], ast.Constant) and node.values[0].value == 0
        return node.values[1] if never else node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, name, None), list):
                setattr(node, name, [one for one in statements if not _is_mark(one)])
        return super().generic_visit(node)


def _is_mark(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == MARK and not call.args


def check_marks(source: str) -> str:
    """The instrumented text, whose tree is that of the source, with each node on its line."""
    told = look(source)
    found = Strip().visit(ast.parse(told.instrumented))
    assert ast.dump(found) == ast.dump(ast.parse(source))
    lines = [[node.lineno for node in ast.walk(tree) if hasattr(node, "lineno")] for tree in (found, ast.parse(source))]
    assert lines[0] == lines[1]
    return told.instrumented


@pytest.mark.parametrize("source", FIXED)
def test_marks_change_nothing_else(source: str) -> None:
    text = check_marks(source)
    assert text != source and (MARK in text or "0 and (" in text)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", ODD)
def test_marks_stand_where_python_counts(kind: str, around: str, newline: str) -> None:
    source = AROUND[around].format(ODD[kind]).replace("\n", newline)
    text = look(source).instrumented
    assert look("\ufeff" + source).instrumented == text != source
    check_marks(source)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("kind", ODD)
def test_an_end_is_cut_off_where_python_counts(kind: str, newline: str) -> None:
    ending = "s = 'é'; sys.exit(0 if 'é' == f('é') \\\n  else 'é'); assert 'é'\n"
    source = f"import sys\nfor x in xs:\n    {ODD[kind]}\n{ending}".replace("\n", newline)
    *before, left, _ = ast.parse(source).body
    *kept, asserted = Strip().visit(ast.parse(look(source).instrumented)).body
    assert [ast.dump(node) for node in kept] == [ast.dump(node) for node in before]
    assert ast.dump(asserted.test.left) == ast.dump(left.value.args[0])


def test_a_source_that_checks_in_any_case_is_left_as_it_is() -> None:
    for source in ("assert f(2) == 4", "for x in xs: assert x\r\nassert f(2) == 4", "def test_f(): assert f(2) == 4"):
        assert look(source).instrumented is source


def test_the_mark_can_have_another_name() -> None:
    assert look("for x in xs: assert x", mark="_m").instrumented == "for x in xs: assert x; _m()"


def test_a_failing_assertion_is_shown_where_it_stands() -> None:
    """A mark comes after what can fail, so that the columns of a traceback are those of the source."""
    source = "for x in [1]:\n    if x: assert x == 2, 'no'\n"
    shown = []
    for text in (source, look(source).instrumented):
        try:
            exec(compile(text, "test_1", "exec"), {MARK: lambda value=None: value})
        except AssertionError as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            shown.append((frame.lineno, frame.colno, frame.end_colno))
    assert shown[0] == shown[1] and len(shown) == 2


# Programs of every shape

EXPRESSIONS = st.sampled_from(["n(1)", "n(0)", "x", "n(x)", "not n(1)", "n(1) or n(0)", "n(1) == 1", "'é' + s(x)", "(x, 1)[0]"])
FAILING = ["raise ValueError", "raise AssertionError('é')", "assert False", "raise KeyError(x)"]
SIMPLE = st.one_of(
    EXPRESSIONS.map("assert {}".format),
    EXPRESSIONS.map("assert {}, 'é'".format),
    EXPRESSIONS.map("x = {}".format),
    EXPRESSIONS.map("y({})".format),
    EXPRESSIONS.map("s({}) == 2".format),
    st.sampled_from([*FAILING, "pass", "n(3)", "check(x)", "check(1)", "y()", "'text'", "x = '''a\nb'''", "n(1) or check(2)"]),
)
HANDLERS = ["ValueError", "AssertionError", "KeyError", "Exception", "(ValueError, KeyError)", "IndexError"]


def _indent(block: str) -> str:
    return "\n".join("    " + line for line in block.split("\n"))


def _joined(statements: list[str]) -> str:
    return "\n".join(statements)


def _line(statements: list[str]) -> str:
    return "; ".join(statements)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    block = st.lists(inner, min_size=1, max_size=3).map(_joined).map(_indent)
    short = st.lists(SIMPLE.filter(lambda text: "\n" not in text), min_size=1, max_size=3).map(_line)
    return st.one_of(
        st.builds("if {}:\n{}".format, EXPRESSIONS, block),
        st.builds("if {}: {}".format, EXPRESSIONS, short),
        st.builds("if {}:\n{}\nelif {}: {}\nelse:\n{}".format, EXPRESSIONS, block, EXPRESSIONS, short, block),
        st.builds("for x in [{}][:n(1)]:\n{}".format, EXPRESSIONS, block),
        st.builds("for x in {}, 2: {}".format, EXPRESSIONS, short),
        # Its name is never given, and is no name that another statement uses.
        st.builds("for w in []:\n{}\nelse:\n{}".format, block, block),
        st.builds("while n({}):\n{}\n    break".format, st.integers(0, 1), block),
        st.builds("try:\n{}\nexcept {}:\n{}".format, block, st.sampled_from(HANDLERS), block),
        st.builds("try:\n{}\nexcept {} as e: {}\nelse: {}".format, block, st.sampled_from(HANDLERS), short, short),
        st.builds("try: {}\nfinally:\n{}".format, short, block),
        st.builds("with c(): {}".format, short),
        st.builds("with c() as z, c():\n{}".format, block),
        st.builds("match {}:\n    case 1: {}\n    case _:\n{}".format, EXPRESSIONS, short, block.map(_indent)),
    )


STATEMENTS = st.recursive(SIMPLE, _compound, max_leaves=6)
FUNCTION = st.builds(
    lambda body: f"def check(x):\n{_indent(_joined(body)).replace('check(', 'y(')}",  # which calls itself not without end
    st.lists(STATEMENTS, min_size=1, max_size=3),
)
PROGRAMS = st.builds(
    lambda function, body, newline: "\n".join([function, *body]).replace("\n", newline),
    FUNCTION,
    st.lists(STATEMENTS, min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n", "\r"]),
)


class Count(ast.NodeTransformer):
    """Counts the assertions that hold and depend on something: what an oracle calls checks."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        if isinstance(node.test, ast.Constant):
            return node
        counted = ast.parse("made(1)").body[0]
        return [node, ast.copy_location(ast.fix_missing_locations(counted), node)]


def run(tree: ast.AST | str) -> tuple[str, list[Any], int, int]:
    """How a program ends, what it called in which order, how many assertions held in it, and how many marks it made."""
    seen: list[Any] = []
    made: list[int] = []
    marks: list[int] = []

    def n(value: Any) -> Any:
        seen.append(value)
        return value

    def mark(value: Any = None) -> Any:
        marks.append(1)
        return value

    names = {"n": n, "y": lambda *values: seen.append(values), "s": str, "c": contextlib.nullcontext, "x": 1}
    names |= {MARK: mark, "made": made.append}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(tree, "test_1", "exec"), names)  # type: ignore[arg-type]
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)[1:]]
        return f"{type(error).__name__}: {error} {lines}", seen, len(made), len(marks)
    return "ends", seen, len(made), len(marks)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(PROGRAMS)
def test_a_program_with_marks_runs_as_without(source: str) -> None:
    text = check_marks(source)
    told = look(source)
    plain, marked = run(source), run(text)
    assert plain[:2] == marked[:2]
    if not told.counts_checks:
        assert text == source


ASSERTIONS = st.recursive(
    st.sampled_from(["assert n(1)", "assert n(x)", "x = n(2)", "check(1)", "pass", "assert True", "assert x, 'é'"]),
    _compound,
    max_leaves=5,
).filter(lambda text: not any(word in text for word in ("raise", "y(", "n(3)", "assert False", "or check")))
ASSERTING = st.builds(
    lambda function, body: "\n".join([function, *body]),
    st.builds(
        lambda body: f"def check(x):\n{_indent(_joined(body)).replace('check(', 'str(')}",
        st.lists(ASSERTIONS, min_size=1, max_size=2),
    ),
    st.lists(ASSERTIONS, min_size=1, max_size=3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(ASSERTING)
def test_a_program_that_ends_well_has_checked_what_it_is_said_to_check(source: str) -> None:
    """By an oracle that counts the assertions that a run makes."""
    told = look(source)
    ended, _, made, _ = run(ast.fix_missing_locations(Count().visit(ast.parse(source))))
    if ended != "ends":
        return
    swallows = "Exception" in source or "AssertionError" in source
    marks = run(told.instrumented)[3]
    if told.why_nothing.startswith("it uses nothing of the code"):
        assert "n(" not in source
    elif told.kind == "nothing":
        assert swallows or made == 0
    elif told.counts_checks:
        assert (marks > 0) == (made > 0) or (swallows and made > 0)
    else:
        assert made > 0
