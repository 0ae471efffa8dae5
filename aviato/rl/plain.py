"""Test cases that only compare what calls of the code return: the code's sandbox gives the values, and they are compared here.

Such as `assert f(2) == 4`, also in functions that a runner collects. As for call cases, no grader's sandbox is needed for them.
What is run here of a test is compiled from those nodes of its syntax tree that are listed below, and sees data of exact
built-in types, as much of it as `LARGEST_ANSWER_BYTES`.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import functools
import json
import re
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.grading.inside.kinds import taken
from aviato.grading.inside.packing import AGAIN, unpack
from aviato.grading.inside.raised import SolutionFailed, error_of, shown
from aviato.rl.calls_ahead import NotKnown, call_in, is_call
from aviato.rl.grading import case_of
from aviato.rl.unfolding import assertions

if TYPE_CHECKING:
    from types import CodeType

    from aviato.grading.link import Solution
    from aviato.rl.outcome import CaseOutcome

LARGEST_ANSWER_BYTES = 16 << 10
MOST_STRAY_ANSWERS = 256
"""Of those that answer nothing which was asked."""
HEAD_BYTES = 32
_FUNCTIONS: dict[str, Any] = {"abs": abs, "bool": bool, "len": len, "sorted": sorted, "set": set, "list": list, "tuple": tuple}
_GIVEN = "_aviato_{}"
_EXCEPTIONS = {
    name: found for name, found in vars(builtins).items() if isinstance(found, type) and issubclass(found, Exception)
}
_NAMES: dict[str, Any] = {**_FUNCTIONS, **_EXCEPTIONS, "_aviato_text": str}
_PATTERN = re.compile(r"[\\.^$*+?{}\[\]|()]")
"""What makes a text a pattern."""
FILE = "<a test case>"
NOBODY = "the solution's process is gone"
GONE = f"SolutionFailed: {NOBODY}"
"""Message of a case that had no answer, since there was nobody to give it."""


class Statement(NamedTuple):
    """An assertion: its calls, what asserts something of their values, and the collected test in which it stands."""

    calls: tuple[bytes, ...]
    code: CodeType
    test: str


class NeedsGrader(Exception):
    """An answer is not compared here: it is too large, or it is an object of the code that stays with it."""


@functools.lru_cache(maxsize=4096)
def plain_cases(sources: tuple[str, ...], names: tuple[str, ...]) -> tuple[tuple[Statement, ...], ...] | None:
    """The statements of each case; None if one of the cases does anything but such comparisons.

    Args:
        sources: of the cases.
        names: of the code.
    """
    try:
        return tuple(_case(source, names) for source in sources)
    except (NotKnown, SyntaxError, ValueError, TypeError, RecursionError, OverflowError):
        return None


def _case(source: str, names: tuple[str, ...]) -> tuple[Statement, ...]:
    found = []
    for node, test in assertions(source, names):
        calls = _Calls(names)
        put = _raising(node, calls) if isinstance(node, ast.With) else node
        if isinstance(put, ast.Assert):
            put.test = calls.visit(put.test)
        module = ast.fix_missing_locations(ast.Module([put], []))
        found.append(Statement(tuple(calls.found), compile(module, FILE, "exec", dont_inherit=True), test))
    if not any(statement.calls for statement in found):
        raise NotKnown
    return tuple(found)


def _raising(node: ast.With, calls: _Calls) -> ast.stmt:
    """`with pytest.raises(ValueError): f(-1)`, without pytest."""
    match node:
        case ast.With(
            items=[
                ast.withitem(
                    context_expr=ast.Call(
                        func=ast.Attribute(value=ast.Name(id="pytest"), attr="raises"), args=[kinds], keywords=keywords
                    ),
                    optional_vars=None,
                )
            ],
            body=[ast.Expr(value=ast.Call() as call)],
        ) if is_call(call, calls.names):
            pass
        case _:
            raise NotKnown
    for kind in kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]:
        if not isinstance(kind, ast.Name) or kind.id not in _EXCEPTIONS or kind.id in calls.names:
            raise NotKnown
    told: list[ast.stmt] = [ast.Pass()]
    for keyword in keywords:
        text = ast.literal_eval(keyword.value)
        if keyword.arg != "match" or type(text) is not str or _PATTERN.search(text):
            raise NotKnown
        said = ast.Call(ast.Name("_aviato_text", ast.Load()), [ast.Name("_aviato_error", ast.Load())], [])
        told = [ast.Assert(ast.Compare(ast.Constant(text), [ast.In()], [said]), ast.Constant(f"its text has no {text!r}"))]
    nothing = ast.Constant(f"DID NOT RAISE {ast.unparse(kinds)}")
    handler = ast.ExceptHandler(kinds, "_aviato_error", told)
    return ast.copy_location(
        ast.Try([ast.Expr(calls.visit(call))], [handler], [ast.Assert(ast.Constant(False), nothing)], []), node
    )


class _Calls(ast.NodeTransformer):
    """Puts names of given values in the place of calls, in the order of evaluation."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.found: list[bytes] = []
        self.names = names

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            node.left, node.comparators = self.visit(node.left), [self.visit(node.comparators[0])]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            node.operand = self.visit(node.operand)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)) and _is_number(node.right):
            node.left = self.visit(node.left)
        elif is_call(node, self.names):
            given = ast.Call(ast.Name(_GIVEN.format(len(self.found)), ast.Load()), [], [])
            self.found.append(call_in(node))
            return ast.copy_location(given, node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in self.names:
            if node.func.id not in _FUNCTIONS or len(node.args) != 1 or node.keywords:
                raise NotKnown
            node.args = [self.visit(node.args[0])]
        elif isinstance(node, ast.expr):
            ast.literal_eval(node)
        else:
            raise NotKnown
        return node


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


class Answers:
    """What a solution says, whoever it is that says it: cut by lengths, and given out in order.

    Args:
        solution: who is asked; its first process has the calls of all cases already.
        asked: how many these are.
        most_bytes: of an answer that is kept.
    """

    def __init__(self, solution: Solution, asked: int, most_bytes: int = LARGEST_ANSWER_BYTES) -> None:
        self._solution = solution
        self._number = 1
        self._asked = asked
        """What its process has not answered yet."""
        self._owed = 0
        """What earlier ones have not: some of that may be on its way."""
        self._found: list[bytes] = []
        self._data = b""
        self._stray = 0
        self._over = False
        self._too_large = False
        self._most_bytes = most_bytes
        self._changed = asyncio.Event()
        solution.linked_by(self)

    def say(self, kind: bytes, body: bytes = b"") -> None:
        """Hear something, or that nothing more comes."""
        self._changed.set()
        if kind == b"l":
            self._over = True
        if self._over or self._too_large:
            return  # Who breaks the rules is not listened to any more.
        self._data += body
        while not self._over and (end := self._data.find(b"\n", 0, HEAD_BYTES)) >= 0:
            words = self._data[:end].split(b" ")
            if len(words) != 2 or not all(word.isdigit() for word in words):
                self._over = True
                return
            number, size = map(int, words)
            self._too_large = self._too_large or size > self._most_bytes
            if self._too_large or len(self._data) < end + 1 + size:
                return
            self._take(number, self._data[end + 1 : end + 1 + size])
            self._data = self._data[end + 1 + size :]
        self._over = self._over or (len(self._data) >= HEAD_BYTES and b"\n" not in self._data[:HEAD_BYTES])

    def _take(self, number: int, message: bytes) -> None:
        if number == self._number and self._asked:
            self._asked -= 1
            self._found.append(message)
            return
        if number < self._number and self._owed:
            self._owed -= 1
            return
        self._stray += 1
        self._over = self._over or self._stray > MOST_STRAY_ANSWERS

    async def room(self) -> None:
        """There is some: what is too large is not kept."""

    def ask_anew(self, calls: list[bytes]) -> None:
        """Have another process of the solution, which is asked these."""
        self._solution.calls.put(b"%d 0\n" % self._number)
        self._number += 1
        self._owed, self._asked = self._owed + self._asked, len(calls)
        self._found.clear()
        for call in calls:
            self._solution.calls.put(b"%d %d\n%b" % (self._number, len(call), call))

    async def next(self) -> bytes | None:
        """The next answer; None: none comes any more.

        Raises:
            NeedsGrader: it is.
        """
        while not (self._found or self._over or self._too_large):
            self._changed.clear()
            await self._changed.wait()
        if self._too_large:
            raise NeedsGrader
        return self._found.pop(0) if self._found else None


async def compared(
    answers: Answers, cases: tuple[tuple[Statement, ...], ...], names: list[str], *, no_grader: bool = False
) -> list[CaseOutcome]:
    """The outcomes of cases; after one that failed the others have another process of the code.

    Args:
        answers: of the code.
        cases: what is asserted of them.
        names: of the cases.
        no_grader: there is none: what only one could compare is no value.

    Raises:
        NeedsGrader: an answer is not compared here, so that all of them are to be run elsewhere.
    """
    loop = asyncio.get_running_loop()
    found: list[CaseOutcome] = []
    for at, (case, name) in enumerate(zip(cases, names, strict=True)):
        begin = loop.time()
        error: BaseException | None = None
        for statement in case:
            given = {_GIVEN.format(number): _value(await answers.next(), no_grader) for number in range(len(statement.calls))}
            error = _run(statement.code, given)
            if error is not None:
                break
        found.append(_outcome(name, error, loop.time() - begin, statement.test))
        if error is not None:
            answers.ask_anew([call for later in cases[at + 1 :] for each in later for call in each.calls])
    return found


def _run(code: CodeType, given: dict[str, Any]) -> BaseException | None:
    try:
        exec(code, {"__builtins__": dict(_NAMES), **given})
    except (Exception, SolutionFailed) as error:
        return error
    return None


def _value(answer: bytes | None, no_grader: bool) -> Any:
    """What gives the value of an answer, or raises what came.

    Raises:
        NeedsGrader: it is an object that is asked itself what it is.
    """
    value: Any = None
    error: BaseException | None = None
    if answer is None:
        error = SolutionFailed(NOBODY)
    else:
        try:
            if answer == AGAIN:
                raise NeedsGrader
            told = json.loads(answer.decode("ascii"))
            error = None if told.get("error") is None else error_of(told["error"], {})
            value = None if error is not None else unpack(told["value"], _special)
        except NeedsGrader:
            if not no_grader:
                raise
            error = SolutionFailed("the code gave an object where the test has a value")
        except Exception as wrong:
            error = SolutionFailed(f"what came from the solution is no data: {shown(str(wrong))}")
    if isinstance(error, SystemExit):
        error = SolutionFailed(f"SystemExit: {shown(str(error))}")

    def give() -> Any:
        if error is not None:
            raise error
        return value

    return give


def _special(form: list[Any]) -> Any:
    """What is not of the plainest kinds."""
    if form[0] == "k" and form[1] != "numpy.ndarray":
        return taken(form, _special)
    if form[0] == "h" and form[2][-2] is not None:
        return unpack(form[2][-1], _special)
    raise NeedsGrader


def _outcome(name: str, error: BaseException | None, seconds: float, test: str) -> CaseOutcome:
    if error is None:
        return case_of(name, "passed", duration_seconds=seconds)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    where = f'Traceback (most recent call last):\n  File "{name}", line {lines[0]}, in {test or "<module>"}\n'
    if test and isinstance(error, Exception):
        text = str(error) or "assertion failed"
        error = AssertionError(f"{test}: {text if isinstance(error, AssertionError) else f'{type(error).__name__}: {error}'}")
    text = shown(str(error).split("\n")[0])
    kind = type(error).__name__
    is_assertion = isinstance(error, AssertionError)
    message = (text or "assertion failed") if is_assertion else f"{kind}: {text}"
    story = f"{where}{kind}: {text}\n" if text else f"{where}{kind}\n"
    reason = "assertion" if is_assertion else "exception"
    return case_of(name, reason, message, traceback=story, duration_seconds=seconds)
