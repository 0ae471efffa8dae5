"""Defences and attacks, and test builds that lack some of the defences. How to add one: README.md beside this file."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import aviato
from aviato.server.backends.local import compiling, filters, native, plan, rules, zygote
from tests.attacks import mutants

Steps = tuple[plan.Step, ...]
PAIRS = Path(__file__).with_name("pairs")


@dataclass(frozen=True)
class Patch:
    """A change of a source file; what it replaces stands there once.

    Attributes:
        path: below the package; or of `aviato-init`, where it begins with `init/`.
        old, new: what is replaced, and by what.
    """

    path: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Defence:
    """One wall, and what a test build lacks that lacks it.

    Attributes:
        name: what it is, in words.
        area: the module that it is registered in.
        families: rules of the filter.
        steps: steps of the plan.
        change: the plan, with something of it left out.
        facts: what the machine is said to be like.
        request: what the template is asked for, changed in place.
        configuration: what process 1 is told, changed in place.
        patches: of the package, in a copy of it that the template is started from, and servers; and of `aviato-init`. Of
            those that are about process 1 only the ones of whichever is used are made.
        swaps: names in the server's own process, with what stands there instead.
    """

    name: str
    area: str = ""
    families: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    change: Callable[[Steps], Steps] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    request: Callable[[dict[str, Any]], None] | None = None
    configuration: Callable[[dict[str, Any]], None] | None = None
    patches: tuple[Patch, ...] = ()
    swaps: dict[str, Any] = field(default_factory=dict)


class Arena:
    """Where an attack is made: sandboxes, and servers, of one build.

    Attributes:
        backend: the local backend.
        off: the defences that the build lacks.
    """

    def __init__(self, backend: Any, boxes: Any, off: tuple[Defence, ...] = ()) -> None:
        self.backend = backend
        self.off = off
        self._boxes = boxes

    def box(self, **options: Any) -> Any:
        """A sandbox: `async with arena.box(limits={...}) as box`; see `tests/backends/boxes.py`."""
        return self._boxes.make_box(self.backend, **options)

    async def program(self, source: str, *arguments: str, **options: Any) -> bool:
        """Whether a Python program got what it wanted: it prints True. It never fails for another reason than being refused."""
        async with self.box(**options) as box:
            return await self.inside(box, source, *arguments)

    async def inside(self, box: Any, source: str, *arguments: str) -> bool:
        """The same in a sandbox that is there; it is as good as before, and nothing looked like a failure of the machine."""
        result = await box.python(source, *arguments)
        assert result.error is None and result.exit is not None
        assert result.stderr == "", result.stderr
        if not self.off:
            assert (await box.run("true")).returncode == 0
        return bool(result.stdout.strip() == "True")

    async def workspace(self, box: Any) -> str:
        """Where the machine has a sandbox's `/workspace`, once the sandbox has written there."""
        assert (await box.run("mkdir", "-p", "/workspace/.there")).returncode == 0
        place = self.backend._places.path(box.id)
        return next(path for path in (f"{place}/upper/workspace", f"{place}/root/workspace") if os.path.isdir(path))

    @asynccontextmanager
    async def plain(self) -> AsyncIterator[None]:
        """Sandboxes that are made meanwhile are those of a machine without layers."""
        with mock.patch.object(self.backend, "_layered", False):
            yield

    @asynccontextmanager
    async def restarted(self) -> AsyncIterator[None]:
        """Sandboxes that are made meanwhile come from a template that is started now."""
        template = await self.backend._start_template()
        with mock.patch.object(self.backend, "_template", template):
            try:
                yield
            finally:
                await template.close()

    @contextmanager
    def programs(self) -> Iterator[None]:
        """Programs that are started meanwhile, servers among them, are of the build: they lack its `patches`."""
        package, init = sources_of(self.off)
        with ExitStack() as stack, mutant(init):
            if package:
                paths = f"{stack.enter_context(patched(package))}:{os.environ.get('PYTHONPATH', '')}"
                stack.enter_context(mock.patch.dict(os.environ, PYTHONPATH=paths, PYTHONSAFEPATH="1"))
            yield


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attempt.

    Attributes:
        name: what it wants, in words.
        area: the module that it is registered in.
        walls: names of the defences that stop it. Without all of them it succeeds; with all of them, and with any one of
            them, it fails.
        run: makes it, and says whether it succeeded.
        alone: whether each of several walls is enough.
        impossible: why it cannot be tried on this machine, if so.
    """

    name: str
    area: str
    walls: tuple[str, ...]
    run: Callable[[Arena], Awaitable[bool]]
    alone: bool = True
    impossible: Callable[[Any], str | None] = lambda backend: None

    def builds(self) -> dict[str, tuple[tuple[str, ...], bool]]:
        """Which walls are off, and whether it then succeeds."""
        found: dict[str, tuple[tuple[str, ...], bool]] = {"all of them": ((), False)}
        if self.alone and len(self.walls) > 1:
            for wall in self.walls:
                found[f"only {wall!r}"] = (tuple(other for other in self.walls if other != wall), False)
        return {**found, "none": (self.walls, True)}


DEFENCES: dict[str, Defence] = {}
ATTACKS: dict[str, Attack] = {}


class Area:
    """The defences and attacks of one module: `area = Area(__name__)`."""

    def __init__(self, module: str) -> None:
        self._name = module.rpartition(".")[2]

    def defence(self, name: str, **off: Any) -> str:
        """Register one; see `Defence`. Returns its name."""
        assert name not in DEFENCES, name
        DEFENCES[name] = Defence(name=name, area=self._name, **off)
        return name

    def attack(self, name: str, *walls: str, **options: Any) -> Callable[[Callable[[Arena], Awaitable[bool]]], Any]:
        """Decorates the coroutine function that makes it; see `Attack`."""

        def register(run: Callable[[Arena], Awaitable[bool]]) -> Callable[[Arena], Awaitable[bool]]:
            assert walls and name not in ATTACKS, name
            ATTACKS[name] = Attack(name=name, area=self._name, walls=walls, run=run, **options)
            return run

        return register

    def program(self, name: str, source: str, *walls: str, box: dict[str, Any] | None = None, **options: Any) -> None:
        """Register one that is a Python program and nothing else; `box` has options of its sandbox."""
        self.attack(name, *walls, **options)(lambda arena: arena.program(source, **(box or {})))


COMPILED = (".c", ".h")
INTERPRETED = tuple(f"server/backends/local/{name}.py" for name in ("confine", "kernel", "mounted", "newborn", "template"))
"""Compiled code does what these say, by the notes of a server that is not patched: where they are, Python has to do it."""
SUPERVISOR = "server/supervisor/"
"""And below it: process 1 where it is no `aviato-init`."""


def load() -> None:
    """Fill `DEFENCES` and `ATTACKS`."""
    for path in sorted(PAIRS.glob("[a-z]*.py")):
        importlib.import_module(f"tests.attacks.pairs.{path.stem}")


def root_only(backend: Any) -> str | None:
    """For `impossible`."""
    return None if os.geteuid() == 0 else "only a server of the machine's root does this"


def sources_of(defences: Sequence[Defence]) -> tuple[list[Patch], list[Patch]]:
    """The patches of the package, and of `aviato-init`, by which a build lacks these defences."""
    by_init = native.init() is not None
    package: list[Patch] = []
    init: list[Patch] = []
    for defence in defences:
        of_init = [patch for patch in defence.patches if patch.path.startswith(mutants.BEGIN)]
        of_old = [patch for patch in defence.patches if is_of_old(patch)]
        missing, which = (of_init, "aviato-init") if by_init else (of_old, "the Python process 1")
        assert missing or not (of_init or of_old), f"no patch takes {defence.name!r} away from {which}"
        package += [patch for patch in defence.patches if patch not in of_init and not (by_init and patch in of_old)]
        init += of_init if by_init else []
    return package, init


def is_of_old(patch: Patch) -> bool:
    """Whether it is of a process 1 that is no `aviato-init`, or of the template that makes it."""
    return patch.path.endswith(COMPILED) or patch.path.startswith(SUPERVISOR) or patch.path in INTERPRETED


@contextmanager
def templates(defences: Sequence[Defence]) -> Iterator[None]:
    """Templates that are started meanwhile are of the build that lacks these defences, as far as patches say so."""
    package, init = sources_of(defences)
    with ExitStack() as stack, mutant(init):
        if package:
            copy = stack.enter_context(patched(package))
            control = str(copy / "aviato/server/backends/local/zygote.py")
            stack.enter_context(mock.patch.object(zygote, "__file__", control))
        yield


@contextmanager
def mutant(patches: Sequence[Patch]) -> Iterator[None]:
    """Templates and servers that are started meanwhile have an `aviato-init` with these changes."""
    if not patches:
        yield
        return
    with mock.patch.dict(os.environ, {native.INIT: str(mutants.program(patches))}):
        yield


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[Path]:
    """A directory with a patched copy of the package in it, which everyone can read."""
    directory = Path(tempfile.mkdtemp(prefix="aviato-build-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        package = directory / "aviato"
        shutil.copytree(Path(aviato.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "*.so.*"))
        for patch in patches:
            file = package / patch.path
            text = file.read_text()
            assert text.count(patch.old) == 1, f"{patch.path} has {text.count(patch.old)} of {patch.old!r}"
            file.write_text(text.replace(patch.old, patch.new))
        if native.load() is not None and any(patch.path.endswith(COMPILED) for patch in patches):
            why = compiling.compile_library(str(package))
            assert why is None, why
        yield directory
    finally:
        shutil.rmtree(directory)


@asynccontextmanager
async def built(backend: Any, defences: tuple[Defence, ...]) -> AsyncIterator[None]:
    """Sandboxes that the backend makes meanwhile lack these defences."""
    make_plan, make_request, configure = plan.make_plan, backend._request, backend._configuration
    families = {family for defence in defences for family in defence.families}
    assert families <= set(rules.families(rules.RULES)), families

    def changed_plan(options: plan.PlanOptions) -> Steps:
        steps = make_plan(options)
        for defence in defences:
            assert {step.operation for step in steps} >= set(defence.steps), defence
            steps = tuple(step for step in steps if step.operation not in defence.steps)
            if defence.change is not None:
                before, steps = steps, defence.change(steps)
                assert before != steps, defence
        return steps

    def changed(make: Callable[..., dict[str, Any]], attribute: str) -> Callable[..., dict[str, Any]]:
        def wrapped(*arguments: Any) -> dict[str, Any]:
            made = make(*arguments)
            for defence in defences:
                if (change := getattr(defence, attribute)) is not None:
                    change(made)
            return made

        return wrapped

    with ExitStack() as stack:
        swap = lambda target, name, value: stack.enter_context(mock.patch.object(target, name, value))  # noqa: E731
        if families:
            kept = tuple(one for one in rules.RULES if one.family not in families)
            swap(backend, "_filter", filters.compile_rules(kept))
            swap(backend, "_spawner_filter", filters.compile_rules(rules.with_spawner(kept)))
        swap(plan, "make_plan", changed_plan)
        swap(backend, "_remembered", None)  # plans of before
        if any(not defence.patches for defence in defences):
            swap(backend, "_lends", lambda spec: False)  # roots of before, and to others
        swap(backend, "_request", changed(make_request, "request"))
        if any(defence.request is not None for defence in defences):
            swap(backend, "_usual_request", lambda *_: None)  # It would give each its own id again.
        swap(backend, "_configuration", changed(configure, "configuration"))
        if facts := {name: value for defence in defences for name, value in defence.facts.items()}:
            swap(backend, "_facts", replace(backend._facts, **facts))
        for defence in defences:
            for name, value in defence.swaps.items():
                stack.enter_context(mock.patch(name, value))
        package, init = sources_of(defences)
        if not package and not init:
            yield
            return
        if any(patch.path in INTERPRETED for patch in package) and not any(patch.path.endswith(COMPILED) for patch in package):
            swap(backend, "_native", False)
        stack.enter_context(templates(defences))
        template = await backend._start_template()
        swap(backend, "_template", template)
        try:
            yield
        finally:
            await template.close()
