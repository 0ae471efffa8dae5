"""The arguments of a grade, checked before anything starts."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato import defaults as checks
from aviato.calls.exec_call import output_limit
from aviato.calls.file_arguments import file_content, file_path
from aviato.calls.forking import snapshot_meant
from aviato.exceptions import AviatoValidationError
from aviato.grading.changes import Changes
from aviato.grading.gathering import is_pattern
from aviato.grading.separable import check_separable
from aviato.grading.sizes import check_sizes
from aviato.grading.startup import LOADED_CODE, is_loaded_by_itself, is_of_the_system
from aviato.values.parsing import parsed
from aviato.values.text import is_unicode, shown

if TYPE_CHECKING:
    import os

    from aviato.results import Snapshot

LINK = b"aviato_solution"
MODES = ("separate", "in_process")
_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_SOURCES = (
    *(".py", ".sh", ".bash", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".lua", ".r", ".jl", ".awk", ".mk"),
    *(".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".go", ".rs", ".java", ".jar", ".class", ".kt", ".swift", ".scala", ".wasm"),
)
_PROGRAMS = (b"#!", b"\x7fELF")
_BUILDS = frozenset(("makefile", "gnumakefile", "dockerfile", "cmakelists.txt", "rakefile", "package.json"))
_COMMIT = re.compile(r"[A-Za-z0-9_][\w./~^@{}-]*")
_HARMLESS = frozenset(("-q", "-qq", "-v", "-vv", "-s", "-ra", "-rA", "--no-header"))


@dataclass(frozen=True, kw_only=True)
class GradeRequest:
    """A grade as it was asked for.

    Attributes:
        files: the grader's, path → content.
        command: of the grader.
        result_paths: what is copied from the policy's sandbox.
        patterns: as `result_paths`, but they leave it to the policy which files there are.
        changes: a directory of which all is copied that differs from what it was; None: there is none.
        base_snapshot: what the new sandboxes begin with; None: what the policy's sandbox did.
        allow_startup_files: whether files are copied that a grader's tools load by themselves.
        mode: `separate` or `in_process`.
        timeout_seconds: of the command; None is no limit.
        env: of the command.
        max_output_bytes: of each stream.
        kind: `pytest`, `unittest` or `script`, whose tests are told apart; None runs the command as it is.
        python: the interpreter of those.
        arguments: of those.
    """

    files: dict[str, bytes]
    command: list[str]
    result_paths: list[str]
    patterns: list[str]
    changes: Changes | None
    base_snapshot: str | None
    allow_startup_files: bool
    mode: str
    timeout_seconds: float | None
    env: dict[str, str]
    max_output_bytes: int
    kind: str | None
    python: str
    arguments: list[str]

    @property
    def uses_link(self) -> bool:
        """Whether the grader's files say that programs are to run beside the results."""
        return any(LINK in text for text in self.files.values())

    @property
    def left_open(self) -> list[str]:
        """Patterns of all files that the policy may have made or not."""
        return self.patterns + ([] if self.changes is None else [f"{self.changes.directory}/**"])

    def expected(self) -> list[tuple[str, str]]:
        """Tests that can be seen in the grader's files and that its command cannot leave out: file and name of each."""
        arguments = [part for part in self.arguments if part not in _HARMLESS and not part.startswith("--tb=")]
        named = [path for path in arguments if path in self.files]
        if self.kind not in ("pytest", "unittest") or len(named) != len(arguments):
            return []
        return [(path, name) for path in named or self.files if _is_test(path, named) for name in _tests(self.files[path])]


def grade_request(
    files: Mapping[str, bytes],
    command: Sequence[str | os.PathLike[str]],
    result_paths: Sequence[str],
    mode: str,
    timeout_seconds: float | None,
    env: Mapping[str, str] | None,
    max_output_bytes: int | None,
    allow_startup_files: bool,
    default_timeout_seconds: float,
    result_changes: str | None = None,
    base_commit: str | None = None,
    base_files: Mapping[str, bytes] | None = None,
    base_snapshot: str | Snapshot | None = None,
) -> GradeRequest:
    """Check the arguments of a grade.

    Raises:
        TypeError, AviatoValidationError: one that cannot be meant, or that would let the policy into the grader.
    """
    if not isinstance(files, Mapping):
        raise TypeError(f"files must be a dict of paths and contents, not {type(files).__name__}")
    own = {_plain(file_path(path)): file_content(content) for path, content in files.items()}
    given = [file_path(path) for path in checks.texts("result_paths", result_paths)]
    patterns = [_pattern(path) for path in given if path.endswith("/") or is_pattern(path)]
    results = [_plain(path) for path in given if not (path.endswith("/") or is_pattern(path))]
    arguments = checks.texts("command", command)
    if not arguments or not arguments[0]:
        raise _wrong("command", "command must be a program and its arguments")
    if mode not in MODES:
        raise _wrong("mode", f"mode must be 'separate' or 'in_process', got {mode!r}")
    for path in results:
        _check_result(path, mode, allow_startup_files)
        if path in own or results.count(path) > 1:
            raise _wrong("result_paths", f"{path!r} is named twice: among files and result_paths each path is given once")
    kind, python, rest = _kind(list(arguments))
    if mode == "in_process" and kind is None:
        message = (
            "mode 'in_process' follows each test, and so takes a command of the form python FILE, python -m pytest, pytest, or "
            f"python -m unittest; got {arguments[0]!r}. Any other command can grade in mode 'separate'"
        )
        raise _wrong("command", message)
    check_sizes(arguments if mode == "separate" and kind in (None, "script") else (), checks.environment(env or {}))
    if mode == "separate":
        check_separable(own, results)
    seconds = default_timeout_seconds if timeout_seconds is None else checks.seconds("timeout_seconds", timeout_seconds)
    return GradeRequest(
        files=own,
        command=list(arguments),
        result_paths=results,
        patterns=patterns,
        changes=_changes(result_changes, base_commit, base_files),
        base_snapshot=snapshot_meant(base_snapshot, "base_snapshot"),
        allow_startup_files=allow_startup_files,
        mode=mode,
        timeout_seconds=checks.limit(seconds),
        env=checks.environment(env or {}),
        max_output_bytes=output_limit(max_output_bytes),
        kind=None if mode == "separate" and kind == "script" else kind,
        python=python,
        arguments=rest,
    )


def is_code(path: str, content: bytes) -> bool:
    """Whether a result is a program rather than data: in mode `separate` the grader's sandbox has none of it."""
    name = path.rsplit("/", 1)[-1].lower()
    return name.endswith(_SOURCES) or name in _BUILDS or content.startswith(_PROGRAMS)


def same_sandbox(create: Mapping[str, Any]) -> dict[str, Any]:
    """The create request of a new sandbox of the same image, without what the policy could have had of the old one."""
    kept = (
        "image",
        "image_fallback",
        "packages",
        "working_dir",
        "tags",
        "mounted_files",
        "runway_ids",
        "tower_ids",
        "resources",
        "strict_limits",
    )
    made = {name: create[name] for name in kept if name in create}
    variables = create.get("environment_variables", {})
    made["environment_variables"] = {name: text for name, text in variables.items() if not _steers(name)}
    return made


def _steers(name: str) -> bool:
    """Whether a variable decides which code a program loads."""
    return name.startswith(("PYTHON", "LD_")) or name == "PATH"


def _plain(path: str) -> str:
    if not is_unicode(path):
        raise _wrong("path", f"path {shown(path)} holds text that is not Unicode")
    plain = posixpath.normpath(path)
    if plain in (".", "/") or plain.startswith("../") or plain == "..":
        raise _wrong("path", f"{path!r} is not the path of a file in the sandbox")
    return "/" + plain.lstrip("/") if plain.startswith("/") else plain


def _pattern(path: str) -> str:
    """A pattern as it is matched: a directory is all that is in it."""
    plain = _plain(path.rstrip("/") or "/") + ("/**" if path.endswith("/") else "")
    fixed = "/".join(part for part in plain.split("/")[: _first_open(plain)])
    if plain.startswith("/") and not fixed:
        raise _wrong("result_paths", f"{path!r} is all of the sandbox; name the directory that the policy worked in")
    if fixed:
        _check_place(fixed)
    return plain


def _first_open(pattern: str) -> int:
    return next(at for at, part in enumerate(pattern.split("/")) if is_pattern(part))


def _changes(directory: str | None, commit: str | None, base: Mapping[str, bytes] | None) -> Changes | None:
    if directory is None:
        if commit is not None or base is not None:
            raise _wrong("result_changes", "base_commit and base_files are of a directory: name it as result_changes")
        return None
    plain = _plain(file_path(directory))
    _check_place(plain)
    if commit is not None and (not isinstance(commit, str) or not _COMMIT.fullmatch(commit)):
        raise _wrong("base_commit", f"base_commit must be the name of a commit, got {commit!r}")
    if base is not None and not isinstance(base, Mapping):
        raise TypeError(f"base_files must be a dict of paths and contents, not {type(base).__name__}")
    return Changes(plain, commit, {_plain(file_path(path)): file_content(content) for path, content in (base or {}).items()})


def _check_place(path: str) -> None:
    if is_of_the_system(path):
        raise _wrong("result_paths", f"{path!r} is in a directory of the system; results are the policy's own files")


def _check_result(path: str, mode: str, allowed: bool) -> None:
    _check_place(path)
    if mode == "separate" and path.endswith(LOADED_CODE):
        message = f"{path!r} is code that a grader would run in its own process; in mode 'separate' code comes as .py files"
        raise _wrong("result_paths", message)
    if is_loaded_by_itself(path) and not allowed:
        message = (
            f"{path!r} would be loaded by the grader's own tools without being asked for; "
            "if the task is about such a file, pass allow_startup_files=True"
        )
        raise _wrong("result_paths", message)


def _kind(command: list[str]) -> tuple[str | None, str, list[str]]:
    """What a command is, its interpreter, and the arguments after that."""
    program, rest = command[0], command[1:]
    if program == "pytest":
        return "pytest", "python3", rest
    if _PYTHON.fullmatch(program) is None or not rest:
        return None, "", []
    if rest[:2] in (["-m", "pytest"], ["-m", "unittest"]):
        return rest[1], program, rest[2:]
    if not rest[0].startswith("-"):
        return "script", program, rest
    return None, "", []


def _is_test(path: str, named: list[str]) -> bool:
    name = path.rsplit("/", 1)[-1]
    return path.endswith(".py") and (path in named or name.startswith("test") or name.endswith("_test.py"))


def _tests(source: bytes) -> list[str]:
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError):
        return []
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node.name for node in tree.body if isinstance(node, functions)]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    found += [item.name for node in classes for item in node.body if isinstance(item, functions)]
    return [name for name in found if name.startswith("test")]


def _wrong(name: str, message: str) -> AviatoValidationError:
    return AviatoValidationError(message, field_violations={name: message})
