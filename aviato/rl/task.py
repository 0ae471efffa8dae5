"""What is evaluated: code with cases, or a command."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from aviato import defaults as checks
from aviato.exceptions import AviatoValidationError
from aviato.grading.inside.packing import pack
from aviato.languages import ALIASES, RECIPES
from aviato.rl import judges
from aviato.rl.judges import Checker, Judge, check_judge
from aviato.rl.test_source import TestSource, look

if TYPE_CHECKING:
    import os

LARGEST_EXPECTED_BYTES = 64 << 20
"""Of what one program is expected to print."""
MODES = ("in_process", "separate")


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

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            raise TypeError(f"source must be a str, not {type(self.source).__name__}")
        _check_common(self)


@dataclass(frozen=True)
class ProgramCase:
    """One run of the code as a program of its own: what it reads, and what it has to print.

    Attributes:
        stdin: what it reads; nothing by default.
        expected_stdout: what it has to print, up to 64 MiB; None: that is not looked at.
        files: path → content, written before this case.
        args: arguments of the program.
        judge: compares what it printed, see `aviato.rl.judges`; `text` by default.
        returncode: with which it has to end; None is any.
        name: for its outcome; None is `test_1` and so on.
        timeout_seconds: of this case alone; None is the task's `case_timeout_seconds`.
        memory_limit_bytes: private writable memory of each of its processes; None is the sandbox's limit alone.
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

    def __post_init__(self) -> None:
        for name in ("stdin", "expected_stdout"):
            given = getattr(self, name)
            if not isinstance(given, (str, bytes)) and (name == "stdin" or given is not None):
                raise TypeError(f"{name} must be a str or bytes, not {type(given).__name__}")
        if self.expected_stdout is not None and len(judges.as_bytes(self.expected_stdout)) > LARGEST_EXPECTED_BYTES:
            raise _wrong("expected_stdout", f"expected_stdout may have {LARGEST_EXPECTED_BYTES >> 20} MiB")
        object.__setattr__(self, "args", checks.texts("args", self.args))
        check_judge(self.judge)
        _check_common(self)


@dataclass(frozen=True)
class CallCase:
    """One call of a function of the code: its arguments, and what it has to return. For Python.

    The function is found by its name among the names of the code; else it is a method of the code's class `Solution`, or of
    the class that a dotted name says, of which an object without arguments is made. Arguments and the returned value cross as
    data: None, bool, numbers, str, bytes, list, tuple, set, frozenset and dict.

    Attributes:
        function: its name.
        args: its arguments.
        expected: what it has to return.
        kwargs: its arguments by name.
        judge: compares what it returned, see `aviato.rl.judges`; `value()` by default.
        name: for its outcome; None is `test_1` and so on.
        timeout_seconds: of this case alone; None is the task's `case_timeout_seconds`.
        memory_limit_bytes: of the process of the code, the largest of its cases; None is the sandbox's limit alone.
    """

    __test__ = False

    function: str
    args: Sequence[Any] = ()
    expected: Any = None
    _: KW_ONLY
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    judge: Judge | Checker = judges.BY_VALUE
    name: str | None = None
    timeout_seconds: float | None = None
    memory_limit_bytes: int | None = None
    packed: tuple[Any, Any] = field(init=False, repr=False, compare=False, default=(None, None))
    """`args` and `kwargs` as they cross."""

    def __post_init__(self) -> None:
        parts = self.function.split(".") if isinstance(self.function, str) else []
        if not all(part.isidentifier() for part in parts) or not 1 <= len(parts) <= 2:
            raise _wrong("function", f"function must be a name, or a class and its method, got {self.function!r}")
        if isinstance(self.args, (str, bytes, Mapping)) or not isinstance(self.args, Sequence):
            raise TypeError(f"args must be a list of arguments, not {type(self.args).__name__}: write [argument]")
        object.__setattr__(self, "args", tuple(self.args))
        check_judge(self.judge)
        if isinstance(self.judge, Checker):
            raise _wrong("judge", "a checker compares what programs print; for a call give a callable (case, actual)")
        object.__setattr__(self, "packed", (_packed("args", list(self.args)), _packed("kwargs", dict(self.kwargs))))
        _check_common(self)

    @classmethod
    def from_json_lines(cls, function: str, arguments: str, expected: str, **rest: Any) -> CallCase:
        """A case whose text has an argument a line, each as JSON, and whose expected value is JSON.

        Raises:
            AviatoValidationError: a line is no JSON.
        """
        try:
            values = [json.loads(line) for line in arguments.splitlines() if line.strip()]
            wanted = json.loads(expected)
        except ValueError as error:
            raise _wrong("arguments", f"arguments and expected must be JSON, an argument a line: {error}") from None
        return cls(function, values, wanted, **rest)


Case: TypeAlias = TestCase | ProgramCase | CallCase


@dataclass(frozen=True, kw_only=True)
class Task:
    """One item to evaluate: code with cases, or a command.

    Attributes:
        code: source; None or blank is skipped. Without cases it passes as a program that ends with 0.
        tests: cases of one kind, or sources of test cases.
        command: in place of code and tests; a returncode of 0 passes.
        stdin: given to the command, or to the code as a program.
        expected_output: what the code as a program has to print: with `stdin` a short way to write one `ProgramCase`.
        files: path → content, written before; Python files among them can be imported.
        language: of the code, by the names of `aviato.languages.RECIPES`; all but Python take program cases alone.
        prelude: Python source, such as imports, that runs before the code, in its names; for calls, and for test cases in one
            process with it.
        timeout_seconds: of the whole item, counted from its start inside; None is that of `evaluate`.
        case_timeout_seconds: of each case.
        stop_at_first_failure: leave out the cases after one that ended badly: where only all of them together count.
        grading: of test cases. `"in_process"`: they run in the process of the code, after it. `"separate"`: they run in a
            sandbox of their own, where the code's names stand for calls into the code's sandbox; arguments and values cross as
            data. Program and call cases are separate by nature: what is expected is in no sandbox of the code.
        code_names: for `"separate"`: what the tests use and the code defines. It need not be stated where that is one name.
        fresh_grader: for `"separate"`: the tests have a grader's sandbox that no other tests have seen or will see. For tests
            that are not trusted with the verdicts of other tasks, such as those that a model wrote.
        packages: Python packages that code, tests and command can import, as `packages=` of `Sandbox`; None is those of
            `evaluate(packages=)`.
    """

    code: str | None = None
    tests: Sequence[Case | str] = ()
    command: Sequence[str] | None = None
    stdin: str | bytes | None = None
    expected_output: str | bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    language: str = "python"
    prelude: str = ""
    timeout_seconds: float | None = None
    case_timeout_seconds: float | None = None
    stop_at_first_failure: bool = False
    grading: str = "in_process"
    code_names: Sequence[str] = ()
    fresh_grader: bool = False
    packages: str | os.PathLike[str] | None = None
    looks: tuple[TestSource, ...] = field(init=False, repr=False, compare=False, default=())
    """What each test case can check."""

    def __post_init__(self) -> None:
        if isinstance(self.tests, (str, TestCase, ProgramCase, CallCase)):
            raise TypeError("tests must be a list of cases, not one: write [case]")
        cases = tuple(TestCase(source=case) if isinstance(case, str) else case for case in self.tests)
        for case in cases:
            if not isinstance(case, (TestCase, ProgramCase, CallCase)):
                raise TypeError(f"tests must be cases or sources, not {type(case).__name__}")
        object.__setattr__(self, "tests", cases)
        self._check_kind()
        self._check_language()
        object.__setattr__(self, "packages", checks.packages(self.packages))
        object.__setattr__(self, "code_names", checks.texts("code_names", self.code_names))
        self._check_tests()
        for name in ("timeout_seconds", "case_timeout_seconds"):
            if (value := getattr(self, name)) is not None:
                checks.seconds(name, value)
        if self.grading not in MODES:
            raise _wrong("grading", f"grading must be 'in_process' or 'separate', got {self.grading!r}")
        if self.grading == "separate" and self.kind != "call" and not (self.tests and self.kind == "program"):
            self._check_separable()

    @property
    def kind(self) -> str:
        """`command`, `test`, `call` or `program`: what decides about it."""
        if self.command is not None:
            return "command"
        if not self.tests or isinstance(self.tests[0], ProgramCase):
            return "program"
        return "call" if isinstance(self.tests[0], CallCase) else "test"

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases; of code without any, the one that runs it."""
        if self.tests or self.command is not None:
            return tuple(self.tests)  # type: ignore[arg-type]
        stdin = "" if self.stdin is None else self.stdin
        return (ProgramCase(stdin, self.expected_output, name="runs"),)

    @property
    def case_names(self) -> list[str]:
        """Their names."""
        return [case.name or f"test_{number}" for number, case in enumerate(self.cases, 1)]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return self.command is None and not (self.code or "").strip()

    def _check_kind(self) -> None:
        if self.command is not None:
            if self.code is not None or self.tests or self.expected_output is not None:
                raise _wrong("command", "a task has code and tests, or a command, not both")
            object.__setattr__(self, "command", command_words(self.command))
        elif self.code is not None and not isinstance(self.code, str):
            raise TypeError(f"code must be a str or None, not {type(self.code).__name__}")
        if len({type(case) for case in self.tests}) > 1:
            raise _wrong("tests", "the cases of a task are of one kind: TestCase, ProgramCase or CallCase")
        if self.tests and self.expected_output is not None:
            raise _wrong("expected_output", "a task has tests, or expected_output, not both")

    def _check_language(self) -> None:
        language = ALIASES.get(self.language.lower(), self.language.lower())
        if language not in RECIPES:
            raise _wrong("language", f"language must be one of {', '.join(sorted(RECIPES))}, got {self.language!r}")
        object.__setattr__(self, "language", language)
        if language != "python" and self.kind in ("test", "call"):
            raise _wrong("language", f"code in {language} takes program cases; test and call cases are for Python")
        if self.prelude and (self.kind not in ("test", "call") or self.grading == "separate"):
            raise _wrong("prelude", "prelude is for calls, and for test cases with grading='in_process'")
        file = "solution.py" if self.kind in ("test", "call") else RECIPES[language].file
        if self.command is None and file in self.files:
            raise _wrong("files", f"{file!r} is the file of the code itself")

    def _check_tests(self) -> None:
        """Refuse tests that can check nothing: the code would pass, whatever it is."""
        looks = []
        for case, name in zip(self.cases, self.case_names, strict=True):
            if isinstance(case, TestCase):
                found = looked_at(case.source, self.code_names)
                if found.kind == "nothing":
                    raise _wrong("tests", f"{name} can check nothing: {found.why_nothing}")
                looks.append(found)
        object.__setattr__(self, "looks", tuple(looks))

    def _check_separable(self) -> None:
        from aviato.rl.separation import code_names

        if self.kind == "program" and self.expected_output is not None:
            return
        if self.command is not None:
            raise _wrong("grading", "grading='separate' is for code with tests; a command decides by its returncode")
        code_names(self)


@functools.lru_cache(maxsize=4096)
def looked_at(source: str, code_names: tuple[str, ...]) -> TestSource:
    """What a test source can check; a training step has the same source many times."""
    return look(source, code_names=code_names)


def command_words(command: Any) -> tuple[str, ...]:
    """The words of a command, whatever a model wrote in them.

    Raises:
        TypeError: a bare string, or something that is not text.
        AviatoValidationError: there is no word.
    """
    if isinstance(command, (str, bytes)):
        raise TypeError(f"command must be a list of strings, not one string: write [{command!r}]")
    found = tuple(command)
    if not all(isinstance(word, str) for word in found):
        raise TypeError("command must be a list of strings")
    if not found:
        raise _wrong("command", "command must have a program")
    return found


def _packed(name: str, value: Any) -> Any:
    def refuse(item: Any) -> Any:
        raise _wrong(name, f"{name} holds a {type(item).__name__}; only data crosses: numbers, text, bytes, lists, sets, dicts")

    try:
        return pack(value, refuse)
    except ValueError as error:
        raise error if isinstance(error, AviatoValidationError) else _wrong(name, f"{name}: {error}") from None


def _check_common(case: Case) -> None:
    if case.name is not None and not isinstance(case.name, str):
        raise TypeError(f"name must be a str, not {type(case.name).__name__}")
    if case.timeout_seconds is not None:
        checks.seconds("timeout_seconds", case.timeout_seconds)
    limit = getattr(case, "memory_limit_bytes", None)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise _wrong("memory_limit_bytes", f"memory_limit_bytes must be 1 or more, got {limit!r}")


def _wrong(name: str, message: str) -> AviatoValidationError:
    return AviatoValidationError(message, field_violations={name: message})
