"""A Dockerfile as an image that is to be built: which stage, what it begins with, and what that needs of others."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from aviato.building import dockerignore
from aviato.building.dockerfile import Instruction, Stage, parse, wrong
from aviato.building.dockerfile_stage import PROXIES, DockerfileStage
from aviato.building.dockerfile_words import WordError, expand
from aviato.building.steps import Source
from aviato.calls.image_arguments import image_reference
from aviato.exceptions import AviatoValidationError
from aviato.log import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.building.dockerfile import Dockerfile
    from aviato.building.dockerignore import Rules

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LARGEST_BYTES = 16 << 20


def source_of(path: str, context: str | None, target: str | None, arguments: Mapping[str, str]) -> Source:
    """What a Dockerfile builds. Its lines are looked at; the files that it copies are not yet.

    Args:
        path: of it.
        context: the directory that it copies from; None: the one that it is in.
        target: name or number of the stage; None: the last one.
        arguments: values of its `ARG`.

    Raises:
        OSError: it cannot be read.
        AviatoValidationError: it is none, or has what is not supported; the message has the line.
    """
    path = os.path.abspath(path)
    directory = os.path.dirname(path) if context is None else os.path.abspath(context)
    if not os.path.isdir(directory):
        raise AviatoValidationError(f"{directory!r} is no directory", field_violations={"context": "no directory"})
    name = os.path.basename(path)
    return _Reading(name, parse(_read(path), name), directory, _rules(path, directory), arguments).source(target)


def _read(path: str) -> str:
    with open(path, "rb") as file:
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise AviatoValidationError(f"{path!r} is longer than {LARGEST_BYTES} bytes", field_violations={"path": "too long"})
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise wrong(os.path.basename(path), line, "it is no text in UTF-8") from None


def _rules(path: str, directory: str) -> Rules:
    for file in (f"{path}.dockerignore", os.path.join(directory, ".dockerignore")):
        if os.path.isfile(file):
            return dockerignore.rules(_read(file), os.path.basename(file))
    return ()


class _Reading:
    def __init__(self, name: str, file: Dockerfile, directory: str, rules: Rules, given: Mapping[str, str]) -> None:
        self._name = name
        self._stages = file.stages
        self._directory = directory
        self._rules = rules
        self._given = given
        self._machine = f"linux/{_ARCHITECTURES.get(platform.machine(), platform.machine())}"
        self._sources: dict[int, Source] = {}
        self._arguments = self._predefined()
        for one in file.arguments:
            self._take(one)
        self._tell_unused(file)

    def source(self, target: str | None) -> Source:
        """What a stage is."""
        number = len(self._stages) - 1 if target is None else self._number(target, len(self._stages))
        if number is None:
            names = ", ".join(str(stage.name or place) for place, stage in enumerate(self._stages))
            message = f"{self._name} has no stage {target!r}; there is {names}"
            raise AviatoValidationError(message, field_violations={"target": "no such stage"})
        # Each stage needs earlier ones alone; in their order none is far from those it needs, however many there are.
        needed = self._needed(number)
        for one in sorted(needed):
            self._sources[one] = self._source(one)
        return self._sources[number]

    def _needed(self, number: int) -> set[int]:
        found: set[int] = set()
        pending = [number]
        while pending:
            one = pending.pop()
            if one not in found:
                found.add(one)
                stage = self._stages[one]
                names = [self._base(stage), *filter(None, (step.flag("from") for step in stage.instructions))]
                pending += [place for name in names if (place := self._number(name, one)) is not None]
        return found

    def _source(self, number: int) -> Source:
        stage = self._stages[number]
        self._check_platform(stage)
        base = self._base(stage)
        below = self._number(base, number, is_base=True)
        begin = self._image(stage.begin, base) if below is None else self._sources[below]
        sources = {}
        for one in stage.instructions:
            wanted = one.flag("from")
            if wanted is not None:
                place = self._number(wanted, number)
                sources[wanted.lower()] = self._image(one, wanted) if place is None else self._sources[place]
        step = DockerfileStage(
            self._name,
            stage.instructions,
            self._directory,
            self._rules,
            tuple(self._arguments.items()),
            tuple(sorted(self._given.items())),
            tuple(sources.items()),
        )
        return Source(begin.base, (*begin.steps, step) if step.instructions else begin.steps)

    def _number(self, wanted: str, before: int, *, is_base: bool = False) -> int | None:
        """The stage that is meant, of those before one; None: it is none of them."""
        if wanted.isascii() and wanted.isdigit() and not is_base:
            return int(wanted) if len(wanted) < 6 and int(wanted) < before else None
        names = [stage.name for stage in self._stages[:before]]
        return names.index(wanted.lower()) if wanted.lower() in names else None

    def _base(self, stage: Stage) -> str:
        try:
            base = expand(stage.base, self._arguments, stage.begin.escape)
        except WordError as error:
            raise wrong(self._name, stage.begin.line, f"FROM: {error}") from None
        if not base:
            raise wrong(self._name, stage.begin.line, f"FROM {stage.base} is empty: no ARG before the first FROM gives it")
        return base

    def _image(self, one: Instruction, reference: str) -> Source:
        if reference.isascii() and reference.isdigit():
            raise wrong(self._name, one.line, f"there is no stage {reference} before this one")
        try:
            return Source(image_reference(reference, one.kind))
        except AviatoValidationError as error:
            raise wrong(self._name, one.line, str(error)) from None

    def _check_platform(self, stage: Stage) -> None:
        wanted = stage.begin.flag("platform")
        if wanted is None:
            return
        try:
            found = expand(wanted, self._arguments, stage.begin.escape)
        except WordError as error:
            raise wrong(self._name, stage.begin.line, f"FROM --platform: {error}") from None
        if found not in (self._machine, self._machine.partition("/")[2], f"{self._machine}/v8", ""):
            why = f"FROM --platform={found} is not supported: this machine is {self._machine}"
            raise wrong(self._name, stage.begin.line, why)

    def _predefined(self) -> dict[str, str]:
        system, _, architecture = self._machine.partition("/")
        return {
            f"{prefix}{name}": value
            for prefix in ("TARGET", "BUILD")
            for name, value in (("PLATFORM", self._machine), ("OS", system), ("ARCH", architecture), ("VARIANT", ""))
        }

    def _take(self, one: Instruction) -> None:
        for word in one.split():
            name, equals, value = word.partition("=")
            if name in self._given:
                self._arguments[name] = self._given[name]
            elif equals:
                try:
                    self._arguments[name] = expand(value, self._arguments, one.escape)
                except WordError as error:
                    raise wrong(self._name, one.line, f"ARG: {error}") from None

    def _tell_unused(self, file: Dockerfile) -> None:
        every = (*file.arguments, *(one for stage in file.stages for one in stage.instructions))
        there = {word.partition("=")[0] for one in every if one.kind == "ARG" for word in one.split()}
        unused = sorted(set(self._given) - there - PROXIES - set(self._arguments))
        if unused:
            logger.warning("%s has no ARG %s", self._name, ", ".join(unused))
        if any(one.flag("mount") is not None for one in every):
            logger.info("%s: RUN --mount=type=cache has no effect: each build downloads anew", self._name)
