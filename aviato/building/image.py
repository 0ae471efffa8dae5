"""Image: what an image is to be, step by step."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from aviato import defaults as checks
from aviato.building.steps import Copy, Run, Setting, Source
from aviato.calls import sandbox_config
from aviato.calls.file_arguments import local_path
from aviato.calls.image_arguments import image_name, image_reference
from aviato.calls.recipe import Recipe
from aviato.calls.sandbox_state import begin, call
from aviato.exceptions import AviatoValidationError
from aviato.values.parameters import Suggesting, suggests
from aviato.values.representation import named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aviato.bridge.operation import OperationRef
    from aviato.building.steps import Step
    from aviato.calls.recipe import BuildCounts
    from aviato.core.client import Client
    from aviato.core.lease import Lease
    from aviato.defaults import SandboxDefaults
    from aviato.options import NetworkOptions
    from aviato.results import ImageInfo


@dataclass(frozen=True)
class Image(Recipe, Suggesting):
    """An image that is built in sandboxes: another one, and what is done to it. Give it as `container_image=`.

    Each method returns another `Image`. It is built at its first use in a process, or by `build()`: each command and each copy
    is a layer, which the server keeps by what it was made from, and none is made twice. Nothing needs root or Docker.

    Attributes:
        base: what it begins with.
        steps: what is done to that.
    """

    base: str
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", image_reference(self.base, "base"))

    @classmethod
    def from_(cls, reference: str) -> Self:
        """Begin with an image, as `container_image=` takes it.

        Raises:
            TypeError, AviatoValidationError: it is no reference.
        """
        return cls(reference)

    @classmethod
    def from_dockerfile(
        cls,
        path: str | os.PathLike[str] = "Dockerfile",
        *,
        context: str | os.PathLike[str] | None = None,
        target: str | int | None = None,
        build_args: Mapping[str, str] | None = None,
    ) -> Self:
        """What a Dockerfile says. It is read now; the files that it copies are read when it is built.

        Args:
            path: of the Dockerfile.
            context: the directory that it copies from, less what `.dockerignore` there leaves out; by default its own.
            target: name or number of the stage to build; by default the last one.
            build_args: values of its `ARG`.

        Raises:
            OSError: it cannot be read.
            AviatoValidationError: it is none, or has what is not supported; the message has the line.
        """
        from aviato.building.from_dockerfile import source_of

        arguments = {_text("build_args", name): _value(name, value) for name, value in (build_args or {}).items()}
        directory = None if context is None else local_path(context)
        source = source_of(local_path(path), directory, None if target is None else str(target), arguments)
        return cls(source.base, source.steps)

    def run(self, *commands: str | Sequence[str]) -> Self:
        """Run commands, one after the other, each a layer.

        Args:
            commands: text for `sh -c`, or the words of one. A returncode other than 0 ends the build.
        """
        return self._with(*(Run(("sh", "-c", _text("run", one)) if isinstance(one, str) else _words(one)) for one in commands))

    def copy(self, local: str | os.PathLike[str], remote: str) -> Self:
        """Copy a file or directory in.

        Args:
            local: its path; relative ones count from the directory that this process has now.
            remote: the name of the copy, as of `Sandbox.upload`.
        """
        return self._with(Copy(os.path.abspath(os.fspath(local)), _text("copy", remote)))

    def env(self, **variables: str) -> Self:
        """Set environment variables, for what comes then and for commands in sandboxes of it."""
        checked = tuple((name, _text(name, value)) for name, value in variables.items())
        return self._with(Setting(environment=checked))

    def workdir(self, path: str) -> Self:
        """Have commands start in a directory, which is made if it is not there, for the user that they have by then."""
        return self._with(Setting(working_dir=checks.absolute("workdir", path)))

    def user(self, user: str | int) -> Self:
        """Have commands run as a user, by name or number, with `:GROUP` or without. Copies stay root's."""
        return self._with(Setting(user=_text("user", str(user))))

    def pip_install(self, *requirements: str) -> Self:
        """Install Python packages by the `python3` of the image; the build needs a network."""
        if not requirements:
            raise AviatoValidationError("pip_install() needs a requirement", field_violations={"requirements": "none"})
        words = [_text("pip_install", one) for one in requirements]
        return self._with(Run(("python3", "-m", "pip", "install", "--no-cache-dir", *words)))

    @suggests
    def build(
        self,
        *,
        name: str | None = None,
        network: NetworkOptions | None = None,
        defaults: SandboxDefaults | None = None,
        base_url: str | None = None,
        request_timeout_seconds: float | None = None,
    ) -> OperationRef[ImageInfo]:
        """Have it built now, unless it is there.

        Args:
            name: what it is called, too, from then on, as images of registries are: `NAME` or `NAME:TAG`.
            network: of its commands; with `container_image=` it is that of the sandbox.
            defaults: for the server and the network.
            base_url: the server.
            request_timeout_seconds: how long one request may take.

        Raises (from the handle):
            SandboxImageError: it cannot be built (`build_failed`) or the base cannot be had; the message says why.
        """
        options: Any = {"network": network, "defaults": defaults, "base_url": base_url}
        options["request_timeout_seconds"] = request_timeout_seconds
        config = sandbox_config.config(options)
        called = None if name is None else image_name(name)

        async def work(client: Client, lease: Lease) -> ImageInfo:
            from aviato.core.images import have, public

            reference = await self._built(client, lease, config.create or {})
            if called is not None:
                return await have(client, reference, name=called)
            return public(await client.inspect_image(reference))

        return begin(call(config.connection, work), f"build an image of {self.base}")

    async def _built(self, client: Client, lease: Lease, create: dict[str, Any], counts: BuildCounts | None = None) -> str:
        """See `Recipe`."""
        from aviato.building.build import build

        return await build(client, lease, Source(self.base, self.steps), create, counts)

    def __repr__(self) -> str:
        return named("Image", {"base": self.base, "steps": self.steps})

    def _with(self, *steps: Step) -> Self:
        return replace(self, steps=(*self.steps, *steps))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} takes str, not {type(value).__name__}")
    if not value:
        raise AviatoValidationError(f"{name} must not be empty", field_violations={name: "empty"})
    return checks.text(name, value)


def _value(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"build_args[{name!r}] must be str, not {type(value).__name__}")
    return checks.text("build_args", value)


def _words(command: Sequence[str]) -> tuple[str, ...]:
    words = tuple(_text("run", word) for word in command)
    if not words:
        raise AviatoValidationError("a command has at least one word", field_violations={"run": "no words"})
    return words
