"""A grade, step by step: end what runs, copy what is named, grade elsewhere, read the verdict."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxFileError
from aviato.grading.arguments import is_code, same_sandbox
from aviato.grading.blame import check_crossing, check_grader, doubtful
from aviato.grading.inside import program
from aviato.grading.judging import judge
from aviato.grading.link import check_linkable, linked
from aviato.grading.places import directory_of, new_sandboxes
from aviato.grading.sizes import check_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.core.lifecycle import SandboxHandle
    from aviato.exceptions import AviatoError
    from aviato.grading.arguments import GradeRequest
    from aviato.results import GradeResult

RESULT_BYTES = 256 << 20
"""All results of one grade together."""

STAND_IN = '''"""Stands for the solution, which runs in another sandbox: what is called here runs there, and data comes back."""


if __name__ == "__main__":
    raise SystemExit({path!r} + ": this stands for the solution, which is in another sandbox; run it by aviato_solution.run()")


def __getattr__(name):
    import importlib.util, os, sys
    if name.startswith("_") or os.path.exists(os.path.join(os.path.dirname(__file__), name)):
        raise AttributeError(name)
    if os.path.exists(os.path.join(os.path.dirname(__file__), name + ".py")) and __file__.endswith("__init__.py"):
        raise AttributeError(name)
    link = sys.modules.get("aviato_solution")
    if link is None:
        spec = importlib.util.spec_from_file_location("aviato_solution", {link!r})
        link = sys.modules["aviato_solution"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(link)
    return link.Remote({path!r}, name)
'''
LINK_MODULE = "aviato_solution.py"


async def grade(handle: SandboxHandle, create: Mapping[str, Any] | None, request: GradeRequest) -> GradeResult:
    """Grade what a sandbox holds.

    Args:
        handle: the policy's sandbox.
        create: how it was made; None if this process does not know, then only its image is taken over.
        request: what was asked for.

    Raises:
        SandboxFileError: a result is missing, too large, or no regular file.
        SandboxExecutionError: the grader cannot run, as it is found where no code of the policy is: `grader_failed`.
        AviatoError: the infrastructure failed.
    """
    info = await handle.wait_running()
    await handle.client.cancel_all(handle.sandbox_id)
    results = await _results(handle, request.result_paths)
    known: dict[str, Any] = same_sandbox(create) if create is not None else {"image": info.image, "tags": info.tags}
    check_sizes(request.command if request.kind is None else (), {**known.get("environment_variables", {}), **request.env})
    is_linked = request.mode == "separate" and (
        request.uses_link or any(is_code(path, content) for path, (content, _) in results.items())
    )
    if is_linked:
        check_linkable(info)
    async with AsyncExitStack() as stack:
        places = await stack.enter_async_context(new_sandboxes(handle, known, 2 if is_linked else 1))
        grader = places[0]
        directory, *_ = await asyncio.gather(*map(directory_of, places))
        broken: asyncio.Future[AviatoError] | None = None
        if is_linked:
            solution = places[1]
            await _write(solution, results)
            broken = await stack.enter_async_context(linked(grader, solution, directory))
        await _write(grader, _grader_files(request, results, directory, is_linked))
        judgement = await judge(grader, request, list(results))
        if is_linked and not judgement.graded.passed:
            await check_crossing(grader, handle.sandbox_id, judgement)
        if broken is not None and broken.done():
            raise broken.result()
    if doubtful(request, judgement):
        await check_grader(handle, known, request, list(results), judgement)
    return judgement.graded


async def _results(handle: SandboxHandle, paths: list[str]) -> dict[str, tuple[bytes, int]]:
    """Content and permission bits of each result."""
    from aviato.core import files

    found: dict[str, tuple[bytes, int]] = {}
    left = RESULT_BYTES
    for path in paths:
        info = await files.stat(handle, path)
        if info.type != "file":
            why = {"directory": "is a directory", "symlink": "is a link"}.get(info.type, "is no regular file")
            raise _no_result(handle, path, f"{path!r} {why}; a result is a regular file", "not_a_regular_file")
        _check_size(handle, path, info.size_bytes, left)
        content = await files.read_file(handle, path)
        _check_size(handle, path, len(content), left)
        left -= len(content)
        found[path] = (content, info.mode & 0o777)
    return found


def _check_size(handle: SandboxHandle, path: str, size: int, left: int) -> None:
    if size > left:
        message = f"{path!r} has {size} bytes; the results of one grade may have {RESULT_BYTES >> 20} MiB together"
        raise _no_result(handle, path, message, "too_large")


def _no_result(handle: SandboxHandle, path: str, message: str, reason: str) -> SandboxFileError:
    return SandboxFileError(message, filepath=path, sandbox_id=handle.sandbox_id, reason=reason)


def _grader_files(
    request: GradeRequest, results: dict[str, tuple[bytes, int]], directory: str, is_linked: bool
) -> dict[str, tuple[bytes, int | None]]:
    """What lies in the grader's sandbox: in mode `separate`, of code only what stands for it."""
    found: dict[str, tuple[bytes, int | None]] = {}
    for path, (content, mode) in results.items():
        if request.mode == "in_process":
            found[path] = (content, mode)
        elif path.endswith(".py"):
            found[path] = (STAND_IN.format(link=f"{directory}/{LINK_MODULE}", path=path).encode(), 0o644)
        elif not is_code(path, content):
            found[path] = (content, 0o644)
    if is_linked:
        found[LINK_MODULE] = (program("packing", "crossing", "standin").encode(), 0o644)
    found.update((path, (content, None)) for path, content in request.files.items())
    return found


async def _write(
    handle: SandboxHandle, contents: Mapping[str, tuple[bytes, int | None]] | dict[str, tuple[bytes, int]]
) -> None:
    from aviato.core import files

    for path, (content, mode) in contents.items():
        await files.write_file(handle, path, content, mode=mode)
