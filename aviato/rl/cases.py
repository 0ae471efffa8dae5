"""The cases of a task, of three kinds: assertions, programs, calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

from aviato import defaults as checks
from aviato.rl import given, judges
from aviato.rl.given import wrong
from aviato.rl.judges import Checker, Judge, check_judge
from aviato.values.parameters import suggesting
from aviato.values.representation import short

LARGEST_EXPECTED_BYTES = 64 << 20
"""Of what one program is expected to print."""


class _Missing:
    """In place of what has to be given."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@suggesting
@dataclass(frozen=True, kw_only=True)
class TestCase:
    """One case: Python source that runs after the code, in the code's names, and raises if it is not satisfied.

    Attributes:
        source: such as `"assert double(2) == 4"`.
        name: for its outcome; None is `test_1` and so on.
        timeout_seconds: of this case alone; None is the task's `case_timeout_seconds`.
    """

    __test__ = False  # no test of pytest's

    source: str
    name: str | None = None
    timeout_seconds: float | None = None

    __repr__ = short

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            raise TypeError(f"source must be a str, not {type(self.source).__name__}")
        _check_common(self)


@suggesting
@dataclass(frozen=True)
class ProgramCase:
    """One run of the code as a program of its own: what it reads, and what it has to print.

    Attributes:
        stdin: what it reads; nothing by default.
        expected_stdout: what it has to print, up to 64 MiB. None: that is not looked at, or a checker or a callable looks at it
            by itself.
        files: path → content, written before this case; no path is that of the code itself.
        args: arguments of the program, 128 KiB in all.
        judge: compares what it printed, see `aviato.rl.judges`; `text` by default.
        returncode: with which it has to end, 0 to 255, 128 + n where signal n killed it; None is any.
        name: for its outcome; None is `test_1` and so on.
        timeout_seconds: of this case alone; None is the task's `case_timeout_seconds`.
        memory_limit_bytes: private writable memory of each of its processes; None is the sandbox's limit alone. With one, the
            stack of a program in C, C++ or Rust is not bounded to a shell's usual 8 MiB, as in contests.
    """

    __test__ = False

    stdin: str | bytes = ""
    expected_stdout: str | bytes | None = None
    _: KW_ONLY
    files: Mapping[str, bytes] = field(default_factory=dict)
    args: Sequence[str] = ()
    judge: Judge | Checker = judges.text
    returncode: int | None = 0
    name: str | None = None
    timeout_seconds: float | None = None
    memory_limit_bytes: int | None = None

    __repr__ = short

    def __post_init__(self) -> None:
        given.text_or_bytes("stdin", self.stdin)
        check_judge(self.judge)
        if self.expected_stdout is not None:
            size = len(judges.as_bytes(given.text_or_bytes("expected_stdout", self.expected_stdout)))
            if size > LARGEST_EXPECTED_BYTES:
                raise wrong("expected_stdout", f"expected_stdout may have {LARGEST_EXPECTED_BYTES >> 20} MiB")
        elif judges.is_ours(self.judge) and self.judge is not judges.text:
            message = "expected_stdout must be given: this judge compares with it. Leave judge= out if output does not matter"
            raise wrong("expected_stdout", message)
        object.__setattr__(self, "files", given.files(self.files))
        object.__setattr__(self, "args", given.arguments(self.args))
        given.returncode(self.returncode)
        _check_common(self)


@suggesting
@dataclass(frozen=True)
class CallCase:
    """One call of a function of the code: its arguments, and what it has to return. For Python.

    The function is found by its name among the names of the code; else it is a method of the code's class `Solution`, or of
    the class that a dotted name says, of which an object without arguments is made. Arguments and the returned value cross as
    data: None, bool, numbers, str, bytes, list, tuple, set, frozenset and dict, nested up to 94 deep.

    Attributes:
        function: its name.
        args: its arguments.
        expected: what it has to return; None has to be written too. For a callable of your own it may be anything.
        kwargs: its arguments by name.
        judge: compares what it returned, see `aviato.rl.judges`; `value()` by default.
        name: for its outcome; None is `test_1` and so on.
        timeout_seconds: of this case alone; None is the task's `case_timeout_seconds`.
        memory_limit_bytes: of the process of the code, the largest of its cases; None is the sandbox's limit alone.
    """

    __test__ = False

    function: str
    args: Sequence[Any] = ()
    expected: Any = MISSING
    _: KW_ONLY
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    judge: Judge | Checker = judges.BY_VALUE
    name: str | None = None
    timeout_seconds: float | None = None
    memory_limit_bytes: int | None = None
    packed: tuple[Any, Any] = field(init=False, repr=False, compare=False, default=(None, None))
    """`args` and `kwargs` as they cross."""

    __repr__ = short

    def __post_init__(self) -> None:
        parts = self.function.split(".") if isinstance(self.function, str) else []
        if not all(part.isidentifier() for part in parts) or not 1 <= len(parts) <= 2:
            raise wrong("function", f"function must be a name, or a class and its method, got {self.function!r}")
        if isinstance(self.args, (str, bytes, Mapping)) or not isinstance(self.args, Sequence):
            raise TypeError(f"args must be a list of arguments, not {type(self.args).__name__}: write [argument]")
        if not isinstance(self.kwargs, Mapping) or not all(isinstance(name, str) for name in self.kwargs):
            raise TypeError(f"kwargs must be a dict of names and arguments, got {type(self.kwargs).__name__}")
        object.__setattr__(self, "function", given.plain(self.function))
        object.__setattr__(self, "args", tuple(self.args))
        check_judge(self.judge)
        if isinstance(self.judge, Checker):
            raise wrong("judge", "a checker compares what programs print; for a call give a callable (case, actual)")
        if self.expected is MISSING:
            raise TypeError("expected is missing: write what the call has to return, None included")
        if judges.is_ours(self.judge):
            given.packed("expected", self.expected, numbers=self.judge is not judges.exact)
        crossing = (given.packed("args", list(self.args)), given.packed("kwargs", dict(self.kwargs)))
        object.__setattr__(self, "packed", crossing)
        _check_common(self)

    @classmethod
    def from_json_lines(cls, function: str, arguments: str, expected: str, **rest: Any) -> CallCase:
        """A case whose text has an argument a line, each as JSON, and whose expected value is JSON.

        Raises:
            TypeError: no text.
            AviatoValidationError: a line is no JSON.
        """
        for name, text in (("arguments", arguments), ("expected", expected)):
            if not isinstance(text, str):
                raise TypeError(f"{name} must be a str, not {type(text).__name__}")
        try:
            # Other line ends, such as U+2028, may stand in a text of JSON.
            values = [json.loads(line) for line in arguments.split("\n") if line.strip()]
            wanted = json.loads(expected)
        except (ValueError, RecursionError) as error:
            raise wrong("arguments", f"arguments and expected must be JSON, an argument a line: {error}") from None
        return cls(function, values, wanted, **rest)


Case: TypeAlias = TestCase | ProgramCase | CallCase


def cases_of(tests: Any) -> tuple[Case, ...]:
    """Cases, or sources of test cases, as cases.

    Raises:
        TypeError: something else.
    """
    if isinstance(tests, (str, bytes, TestCase, ProgramCase, CallCase)):
        raise TypeError("tests must be a list of cases, not one: write [case]")
    if isinstance(tests, (Mapping, Set)) or not isinstance(tests, Iterable):
        raise TypeError(f"tests must be a list of cases or of sources of tests, or () for none, not {type(tests).__name__}")
    found = tuple(TestCase(source=case) if isinstance(case, str) else case for case in tests)
    for case in found:
        if not isinstance(case, (TestCase, ProgramCase, CallCase)):
            raise TypeError(f"tests must be cases or sources, not {type(case).__name__}")
    return found


def _check_common(case: Case) -> None:
    if case.name is not None and not isinstance(case.name, str):
        raise TypeError(f"name must be a str, not {type(case.name).__name__}")
    if case.name is not None:
        object.__setattr__(case, "name", given.plain(case.name))
    if case.timeout_seconds is not None:
        checks.seconds("timeout_seconds", case.timeout_seconds)
    limit = getattr(case, "memory_limit_bytes", None)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise wrong("memory_limit_bytes", f"memory_limit_bytes must be 1 or more, got {limit!r}")
