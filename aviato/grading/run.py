"""A grade, step by step: end what runs, copy what is named, grade elsewhere, read the verdict."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato.grading.arguments import is_code, same_sandbox
from aviato.grading.blame import check_crossing, check_grader, doubtful
from aviato.grading.changes import apply, changed_results, prepare
from aviato.grading.gathering import leave_out_of_the_system, leave_out_through_links, named_results
from aviato.grading.hiding import leave_out_hiding
from aviato.grading.inside import stand_ins
from aviato.grading.judging import judge
from aviato.grading.link import check_linkable, linked
from aviato.grading.new_sandboxes import directory_of, new_sandboxes, nobody_there
from aviato.grading.own_process import seeded_in
from aviato.grading.separable import changing_in, check_separable, classes_in, modules_of
from aviato.grading.sizes import check_sizes
from aviato.grading.startup import FRAMEWORKS, NOSE

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from aviato.core.lifecycle import SandboxHandle
    from aviato.exceptions import AviatoError
    from aviato.grading.arguments import GradeRequest
    from aviato.grading.changes import Changes
    from aviato.grading.gathering import Results
    from aviato.grading.judging import Judgement
    from aviato.results import GradeResult

STAND_IN = '''"""Stands for the solution, which runs in another sandbox: what is called here runs there, and data comes back."""


if __name__ == "__main__":
    raise SystemExit({path!r} + ": this stands for the solution, which is in another sandbox; run it by aviato_solution.run()")


def __getattr__(name):
    import importlib.util, os, sys
    if name.startswith("_") or name in {frameworks!r} or os.path.exists(os.path.join(os.path.dirname(__file__), name)):
        raise AttributeError(name)
    if os.path.exists(os.path.join(os.path.dirname(__file__), name + ".py")) and __file__.endswith("__init__.py"):
        raise AttributeError(name)
    link = sys.modules.get("aviato_solution")
    if link is None:
        spec = importlib.util.spec_from_file_location("aviato_solution", {link!r})
        link = sys.modules["aviato_solution"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(link)
    return link.stand_in({path!r}, name)
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
    await handle.wait_running()
    info = await handle.refresh()  # Another process may have reset it.
    await handle.client.cancel_all(handle.sandbox_id)
    results = await named_results(handle, request)
    known: dict[str, Any] = same_sandbox(create) if create is not None else {"image": info.image, "tags": info.tags}
    if (base := request.base_snapshot or info.image_id) is not None:
        known["image"] = base  # What the policy found there is what the grader is to find, whatever a name means by now.
    check_sizes(request.command if request.kind is None else (), {**known.get("environment_variables", {}), **request.env})
    is_linked = _is_linked(request, results)
    if is_linked:
        check_linkable(info)
    async with AsyncExitStack() as stack:
        places = await stack.enter_async_context(new_sandboxes(handle, known, 2 if is_linked else 1))
        with nobody_there():
            directory, *_ = await asyncio.gather(*map(directory_of, places))
        if request.changes is not None:
            await _note_changes(handle, places, request, request.changes, results)
        leave_out_of_the_system(results, directory)
        with nobody_there():
            await leave_out_through_links(places[0], results)
        installed = await leave_out_hiding(places[0], directory, request, results)
        if request.mode == "separate":
            check_separable(request.files, results.contents, installed)
        judgement = await _graded(handle, places, directory, request, results)
    if doubtful(request, judgement):
        await check_grader(handle, known, request, list(results.contents), judgement)
    return replace(judgement.graded, left_out=tuple(results.left_out))


async def _note_changes(
    handle: SandboxHandle, places: list[SandboxHandle], request: GradeRequest, changes: Changes, results: Results
) -> None:
    """Find what the policy changed, and delete in the new sandboxes what it deleted."""
    await asyncio.gather(*(prepare(place, changes) for place in places))
    await changed_results(handle, places[0], request, changes, results)
    await asyncio.gather(*(apply(place, results) for place in places))


async def _graded(
    handle: SandboxHandle, places: list[SandboxHandle], directory: str, request: GradeRequest, results: Results
) -> Judgement:
    """The verdict of the new sandboxes: the grader's, and with two of them the solution's."""
    grader, *solutions = places
    async with AsyncExitStack() as stack:
        broken: asyncio.Future[AviatoError] | None = None
        for solution in solutions:
            await _write(solution, results.contents)
            broken = await stack.enter_async_context(linked(grader, solution, directory))
        await _write(grader, _grader_files(request, results.contents, directory, bool(solutions)))
        judgement = await _unless(broken, judge(grader, request, list(results.contents)))
        if solutions and not judgement.graded.passed:
            await check_crossing(grader, handle.sandbox_id, judgement)
        if broken is not None and broken.done():
            raise broken.result()
    return judgement


async def _unless(broken: asyncio.Future[AviatoError] | None, judging: Coroutine[Any, Any, Judgement]) -> Judgement:
    """The verdict; without a solution's side there is none, and a grader may wait long for one that never came up."""
    if broken is None:
        return await judging
    task = asyncio.get_running_loop().create_task(judging)
    both: set[asyncio.Future[Any]] = {task, broken}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise broken.result()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _is_linked(request: GradeRequest, results: Results) -> bool:
    """Whether there is code that the grader may call, in a sandbox of its own."""
    if request.mode != "separate":
        return False
    # What a directory's changes are is only known once there are sandboxes to compare with.
    has_code = any(is_code(path, content) for path, (content, _) in results.contents.items())
    return request.uses_link or request.changes is not None or has_code


def _grader_files(
    request: GradeRequest, results: dict[str, tuple[bytes, int]], directory: str, is_linked: bool
) -> dict[str, tuple[bytes, int | None]]:
    """What lies in the grader's sandbox: in mode `separate`, of code only what stands for it."""
    found: dict[str, tuple[bytes, int | None]] = {}
    for path, (content, mode) in results.items():
        if request.mode == "in_process":
            found[path] = (content, mode)
        elif path.endswith(".py"):
            found[path] = (_stand_in(path, directory), 0o644)
        elif not is_code(path, content):
            found[path] = (content, 0o644)
    if is_linked:
        seeded = seeded_in(content.decode("latin-1") for path, content in request.files.items() if path.endswith(".py"))
        modules = modules_of(results)
        classes = sorted(set().union(*map(classes_in, request.files.values())))
        changing = sorted(set().union(*[changing_in(content, modules) for content in request.files.values()]))
        heeded = f"heed_seeds({seeded})\nheed_classes({classes})\nheed_changes({changing})\n"
        found[LINK_MODULE] = (f"{stand_ins()}\n\n{heeded}".encode(), 0o644)
    found.update((path, (content, None)) for path, content in request.files.items())
    return found


def _stand_in(path: str, directory: str) -> bytes:
    """What lies in the place of a file of the solution."""
    name = path.rsplit("/", 1)[-1]
    frameworks = FRAMEWORKS + (NOSE if name.startswith("test") or name.endswith("_test.py") else ())
    return STAND_IN.format(link=f"{directory}/{LINK_MODULE}", path=path, frameworks=frameworks).encode()


async def _write(
    handle: SandboxHandle, contents: Mapping[str, tuple[bytes, int | None]] | dict[str, tuple[bytes, int]]
) -> None:
    from aviato.core import files

    with nobody_there():
        for path, (content, mode) in contents.items():
            await files.write_file(handle, path, content, mode=mode)
