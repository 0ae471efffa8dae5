"""Files that a policy chose to make, and that would hide a module of somebody else's which the grader imports."""

from __future__ import annotations

import ast
import json
import posixpath
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.grading.judging import run_command
from aviato.grading.separable import modules_of
from aviato.values.parsing import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.core.lifecycle import SandboxHandle
    from aviato.grading.arguments import GradeRequest
    from aviato.grading.gathering import Results

LOOK = """
import importlib.util, json, sys
names = json.load(sys.stdin)
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False
print("\\n" + json.dumps([[name for name in names if there(name)], sys.path]))
"""
LOOK_SECONDS = 60.0
LOOK_OUTPUT_BYTES = 1 << 20
ROOTS = frozenset(("src", "lib"))
"""Names of directories that settings of projects put where modules are found."""


async def leave_out_hiding(place: SandboxHandle, directory: str, request: GradeRequest, results: Results) -> frozenset[str]:
    """Take such files out of the results: what becomes of them is no matter of the grader's.

    Args:
        place: a new sandbox, where none of the results is yet.
        directory: in which its relative paths begin.
        request: what was asked for.
        results: of which those that are `open` are looked at.

    Returns:
        First parts of names that the grader imports, that the policy made files for, and that are there without them: in the
        sandbox, or among the grader's own files.

    Raises:
        SandboxUnavailableError: the new sandbox does not say.
    """
    asked = {name for source in request.files.values() for name in _imported(source)}
    open_paths = [path for path in results.open if path in results.contents]
    names = sorted(asked & {name.split(".")[0] for name in modules_of(open_paths)})
    if not names or request.allow_startup_files:
        return frozenset()
    command, given = [request.python or "python3", "-c", LOOK], json.dumps(names).encode()
    result = await run_command(place, command, given, request.env, LOOK_SECONDS, LOOK_OUTPUT_BYTES)
    if result.timed_out:
        message = f"a new sandbox has not said within {LOOK_SECONDS:g} s which modules are there"
        raise SandboxUnavailableError(message, sandbox_id=place.sandbox_id, reason="silent")
    # A package of the grader's may be one that the policy has files in.
    shared = {part for path in open_paths for part in path.split("/")[:-1]}
    own = {_module(path) for path in request.files if not (path.endswith("/__init__.py") and _module(path) in shared)}
    there, searched = {*names} & own, list[str]()
    if result.returncode == 0:
        installed, searched = json.loads(result.stdout.rstrip("\n").rsplit("\n", 1)[-1])
        there |= {*installed}
    roots = {posixpath.join(directory, each) for each in ("", *searched, *map(posixpath.dirname, request.files))}
    plain = {posixpath.normpath(root) for root in roots}
    for path in open_paths:
        top = _top(posixpath.normpath(posixpath.join(directory, path)))
        owner = posixpath.dirname(top)
        if _module(path) in there and (owner in plain or posixpath.basename(owner) in ROOTS):
            _leave_out(results, directory, top)
    return frozenset(there)


def _leave_out(results: Results, directory: str, top: str) -> None:
    for path in [*results.contents]:
        whole = posixpath.normpath(posixpath.join(directory, path))
        if whole == top or whole.startswith(f"{top}/"):
            del results.contents[path]
            results.left_out.append(path)


def _module(path: str) -> str | None:
    """The last part of the name that a file is imported by."""
    if not path.endswith(".py"):
        return None
    return posixpath.basename(_top(path)).removesuffix(".py")


def _top(path: str) -> str:
    return posixpath.dirname(path) if path.endswith("/__init__.py") else path


def _imported(source: bytes) -> Iterator[str]:
    """First parts of the names of modules that a file imports."""
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
