"""What is evaluated: code with cases, or a command."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aviato import defaults as checks
from aviato.languages import RECIPES
from aviato.rl import given
from aviato.rl.cases import CallCase, Case, ProgramCase, TestCase, cases_of
from aviato.rl.given import wrong
from aviato.rl.test_source import TestSource, look
from aviato.values.parameters import suggesting
from aviato.values.representation import short

if TYPE_CHECKING:
    import os

MODES = ("in_process", "separate")


@suggesting
@dataclass(frozen=True, kw_only=True)
class Task:
    """One item to evaluate: code with cases, or a command.

    Attributes:
        code: source; None or blank is skipped. Without cases it passes as a program that ends with 0.
        tests: cases of one kind, or sources of test cases; `()` is none, and None is refused: a row that lacks its tests is no
            row without tests.
        command: in place of code and tests; a returncode of 0 passes.
        stdin: given to the command, or to the code as a program without tests; each `ProgramCase` has its own.
        expected_output: what the code as a program has to print: with `stdin` a short way to write one `ProgramCase`.
        files: path → content, written before; Python files among them can be imported. No path is that of the code itself.
        language: of the code, by the names of `aviato.languages.RECIPES` or others that are used for them, in any case, such as
            `C++`; all but Python take program cases alone.
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

    __repr__ = short

    def __post_init__(self) -> None:
        object.__setattr__(self, "tests", cases_of(self.tests))
        object.__setattr__(self, "files", given.files(self.files))
        for name in ("stop_at_first_failure", "fresh_grader"):
            given.flag(name, getattr(self, name))
        self._check_kind()
        self._check_language()
        object.__setattr__(self, "packages", checks.packages(self.packages))
        object.__setattr__(self, "code_names", given.strings("code_names", self.code_names))
        self._check_tests()
        for name in ("timeout_seconds", "case_timeout_seconds"):
            if (value := getattr(self, name)) is not None:
                checks.seconds(name, value)
        if self.grading not in MODES:
            raise wrong("grading", f"grading must be 'in_process' or 'separate', got {self.grading!r}")
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

    def limit_of(self, case: Case) -> float | None:
        """Seconds of one case; None is no limit."""
        return checks.limit(case.timeout_seconds or self.case_timeout_seconds)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return self.command is None and not (self.code or "").strip()

    def _check_kind(self) -> None:
        for name in ("stdin", "expected_output"):
            if (value := getattr(self, name)) is not None:
                given.text_or_bytes(name, value)
        if self.command is not None:
            if self.code is not None or self.tests or self.expected_output is not None:
                raise wrong("command", "a task has code and tests, or a command, not both")
            object.__setattr__(self, "command", command_words(self.command))
        elif self.code is not None and not isinstance(self.code, str):
            raise TypeError(f"code must be a str or None, not {type(self.code).__name__}")
        if len({type(case) for case in self.tests}) > 1:
            raise wrong("tests", "the cases of a task are of one kind: TestCase, ProgramCase or CallCase")
        if self.tests and self.expected_output is not None:
            raise wrong("expected_output", "a task has tests, or expected_output, not both")
        if self.tests and self.stdin is not None:
            raise wrong("stdin", "stdin is for code without tests: give each ProgramCase its stdin; other cases read nothing")

    def _check_language(self) -> None:
        object.__setattr__(self, "language", given.language(self.language))
        if self.language != "python" and self.kind in ("test", "call"):
            raise wrong("language", f"code in {self.language} takes program cases; test and call cases are for Python")
        if not isinstance(self.prelude, str):
            raise TypeError(f"prelude must be a str, not {type(self.prelude).__name__}")
        if self.prelude and (self.kind not in ("test", "call") or self.grading == "separate"):
            raise wrong("prelude", "prelude is for calls, and for test cases with grading='in_process'")
        if self.command is None:
            own = given.files_of(RECIPES[self.language]) if self.kind == "program" else ("solution.py",)
            for files in (self.files, *(case.files for case in self.tests if isinstance(case, ProgramCase))):
                given.check_own(files, own, "the code")

    def _check_tests(self) -> None:
        """Refuse tests that can check nothing: the code would pass, whatever it is."""
        looks = []
        for case, name in zip(self.cases, self.case_names, strict=True):
            if isinstance(case, TestCase):
                found = looked_at(case.source, self.code_names)
                if found.kind == "nothing":
                    raise wrong("tests", f"{name} can check nothing: {found.why_nothing}")
                looks.append(found)
        object.__setattr__(self, "looks", tuple(looks))

    def _check_separable(self) -> None:
        from aviato.rl.code_names import code_names

        if self.kind == "program" and self.expected_output is not None:
            return
        if self.command is not None:
            raise wrong("grading", "grading='separate' is for code with tests; a command decides by its returncode")
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
        from aviato.values.suggestions import command_list

        raise TypeError(f"command must be a list of strings, not one string: write {command_list(command)}")
    if isinstance(command, (Mapping, Set)) or not isinstance(command, Iterable):
        raise TypeError(f"command must be a list of strings, not {type(command).__name__}")
    found = tuple(command)
    if not all(isinstance(word, str) for word in found):
        raise TypeError("command must be a list of strings")
    if not found:
        raise wrong("command", "command must have a program")
    return found
