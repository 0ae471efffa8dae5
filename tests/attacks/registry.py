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
from aviato.server.backends.local import binary, filters, plan, rules
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
        request: what the zygote is asked for, changed in place.
        configuration: what process 1 is told, changed in place.
        patches: of the package, in a copy of it that servers are started from; and of `aviato-init`.
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
        place = self.backend._directories.path(box.id)
        return next(path for path in (f"{place}/upper/workspace", f"{place}/root/workspace") if os.path.isdir(path))

    @asynccontextmanager
    async def plain(self) -> AsyncIterator[None]:
        """Sandboxes that are made meanwhile are those of a machine without layers."""
        with mock.patch.object(self.backend, "_layered", False):
            yield

    @asynccontextmanager
    async def restarted(self) -> AsyncIterator[None]:
        """Sandboxes that are made meanwhile come from a zygote that is started now."""
        zygote = await self.backend._start_zygote()
        with mock.patch.object(self.backend, "_zygote", zygote):
            try:
                yield
            finally:
                await zygote.close()

    @contextmanager
    def programs(self) -> Iterator[None]:
        """Programs that are started meanwhile, servers among them, are of the build: they lack its `patches`."""
        package, _ = sources_of(self.off)
        with ExitStack() as stack, mutant(self.off):
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


def load() -> None:
    """Fill `DEFENCES` and `ATTACKS`."""
    for path in sorted(PAIRS.glob("[a-z]*.py")):
        importlib.import_module(f"tests.attacks.pairs.{path.stem}")


def root_only(backend: Any) -> str | None:
    """For `impossible`."""
    return None if os.geteuid() == 0 else "only a server of the machine's root does this"


def sources_of(defences: Sequence[Defence]) -> tuple[list[Patch], list[Patch]]:
    """The patches of the package, and of `aviato-init`, by which a build lacks these defences."""
    patches = [patch for defence in defences for patch in defence.patches]
    of_init = [patch for patch in patches if patch.path.startswith(mutants.BEGIN)]
    return [patch for patch in patches if patch not in of_init], of_init


@contextmanager
def mutant(defences: Sequence[Defence]) -> Iterator[None]:
    """Zygotes and servers that are started meanwhile have an `aviato-init` that lacks these defences."""
    _, patches = sources_of(defences)
    if not patches:
        yield
        return
    with mock.patch.dict(os.environ, {binary.VARIABLE: str(mutants.program(patches))}):
        yield


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[Path]:
    """A directory with a patched copy of the package in it, which everyone can read."""
    directory = Path(tempfile.mkdtemp(prefix="aviato-build-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        package = directory / "aviato"
        shutil.copytree(Path(aviato.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        for patch in patches:
            file = package / patch.path
            text = file.read_text()
            assert text.count(patch.old) == 1, f"{patch.path} has {text.count(patch.old)} of {patch.old!r}"
            file.write_text(text.replace(patch.old, patch.new))
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
        if not sources_of(defences)[1]:
            yield
            return
        stack.enter_context(mutant(defences))
        zygote = await backend._start_zygote()
        swap(backend, "_zygote", zygote)
        try:
            yield
        finally:
            await zygote.close()
