"""A stage of a Dockerfile as steps, once it is known what the image that it begins with says of commands. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from aviato.building.copy_files import CopyFiles
from aviato.building.dockerfile import CHECKSUM, IGNORED, Heredoc, Instruction, url_of, wrong
from aviato.building.dockerfile_words import WordError, expand
from aviato.building.steps import Run, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aviato.building.dockerignore import Rules
    from aviato.building.steps import Source, Step

SHELL = ("/bin/sh", "-c")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of an image that names none."""
PROXIES = frozenset(
    name for one in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy") for name in (one, one.upper())
)
"""Arguments that a build may be given without an `ARG`."""
_SCRIPT = """f=$(mktemp) || exit; cat >"$f" <<'{end}'
{content}{end}
chmod 700 "$f" && "$f"; s=$?; rm -f "$f"; exit $s"""


@dataclass(frozen=True)
class Commands:
    """What an image says of its commands, and what a stage that begins with it knows of the one that made it.

    Attributes:
        environment: their variables.
        working_dir: where they start; None is `/`.
        entrypoint: words that come before the main command.
        command: its words.
        shell: what runs a command that is one text.
        path: where programs are looked for while no variable says so.
        arguments: each `ARG` of the stages that made it.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    shell: tuple[str, ...] = SHELL
    path: str = PATH
    arguments: Mapping[str, str] = field(default_factory=dict)

    def after(self, step: Setting) -> Commands:
        """What it says with a setting."""
        return replace(
            self,
            environment={**self.environment, **dict(step.environment)},
            working_dir=step.working_dir or self.working_dir,
            entrypoint=self.entrypoint if step.entrypoint is None else step.entrypoint,
            command=self.command if step.command is None else step.command,
            shell=self.shell if step.shell is None else step.shell,
        )


@dataclass(frozen=True)
class DockerfileStage:
    """The instructions behind a `FROM`.

    Attributes:
        name: of the file, in errors.
        instructions: as they are written.
        directory: that files are copied from, absolute.
        rules: which of them are none of the build.
        arguments: values of each `ARG` before the first `FROM`, and of those that every build has.
        given: values of arguments that the caller gives.
        sources: what each `--from` means.
    """

    name: str
    instructions: tuple[Instruction, ...]
    directory: str
    rules: Rules = ()
    arguments: tuple[tuple[str, str], ...] = ()
    given: tuple[tuple[str, str], ...] = ()
    sources: tuple[tuple[str, Source], ...] = ()

    def __str__(self) -> str:
        return f"{len(self.instructions)} instructions of {self.name}"

    def inputs(self) -> str:
        """It is never built: its steps are."""
        raise NotImplementedError

    def steps(self, commands: Commands) -> tuple[list[Step], Commands]:
        """What it does to an image, and what the image says of commands then.

        Args:
            commands: what the image says that it begins with.

        Raises:
            AviatoValidationError: an instruction means nothing with the values that its variables have; by its line.
        """
        translation = _Translation(self, commands)
        for instruction in self.instructions:
            try:
                translation.take(instruction)
            except WordError as error:
                raise wrong(self.name, instruction.line, f"{instruction.kind}: {error}") from None
        return translation.steps, replace(translation.commands, arguments=translation.arguments)


class _Translation:
    def __init__(self, stage: DockerfileStage, commands: Commands) -> None:
        self.steps: list[Step] = []
        self.commands = commands
        self.arguments = {**commands.arguments, **{name: value for name, value in stage.given if name in PROXIES}}
        self._stage = stage
        self._has_command = False
        self._given = dict(stage.given)
        self._outer = dict(stage.arguments)

    def take(self, one: Instruction) -> None:
        if one.kind in IGNORED:
            return
        kinds: dict[str, Callable[[Instruction], None]] = {
            "ADD": self._copy,
            "ARG": self._argument,
            "CMD": self._command,
            "COPY": self._copy,
            "ENTRYPOINT": self._entrypoint,
            "ENV": self._env,
            "LABEL": self._label,
            "RUN": self._run,
            "SHELL": self._shell,
            "USER": self._user,
            "WORKDIR": self._working_dir,
        }
        kinds[one.kind](one)

    def _expand(self, one: Instruction, text: str, *, quotes: bool = True) -> str:
        variables = {"PATH": self.commands.path, **self.arguments, **self.commands.environment}
        return expand(text, variables, one.escape, quotes=quotes)

    def _said(self, one: Instruction) -> str:
        return f"{self._stage.name}:{one.line}: {one}"

    def _set(self, step: Setting) -> None:
        self.steps.append(step)
        self.commands = self.commands.after(step)

    def _argument(self, one: Instruction) -> None:
        for word in one.split():
            name, equals, value = word.partition("=")
            if name in self._given:
                self.arguments[name] = self._given[name]
            elif equals:
                self.arguments[name] = self._expand(one, value)
            elif name in self._outer:
                self.arguments[name] = self._outer[name]

    def _env(self, one: Instruction) -> None:
        found = tuple((self._expand(one, name), self._expand(one, value)) for name, value in one.pairs())
        if not all(name and "=" not in name for name, _ in found):
            raise WordError("a variable has no name")
        self._set(Setting(environment=found, said=self._said(one)))

    def _label(self, one: Instruction) -> None:
        found = tuple((self._expand(one, name), self._expand(one, value)) for name, value in one.pairs())
        if not all(name and "=" not in name for name, _ in found):
            raise WordError("a label has no name")
        self._set(Setting(labels=found, said=self._said(one)))

    def _user(self, one: Instruction) -> None:
        self._set(Setting(user=self._some(one), said=self._said(one)))

    def _working_dir(self, one: Instruction) -> None:
        self._set(Setting(working_dir=self._absolute(self._some(one)), said=self._said(one)))

    def _shell(self, one: Instruction) -> None:
        self._set(Setting(shell=one.words, said=self._said(one)))

    def _command(self, one: Instruction) -> None:
        self._has_command = True
        self._set(Setting(command=self._words(one), said=self._said(one)))

    def _entrypoint(self, one: Instruction) -> None:
        # A command of the image below belongs to the entrypoint that it had.
        command = None if self._has_command else ()
        self._set(Setting(entrypoint=self._words(one), command=command, said=self._said(one)))

    def _words(self, one: Instruction) -> tuple[str, ...]:
        return (*self.commands.shell, one.text) if one.words is None else one.words

    def _run(self, one: Instruction) -> None:
        environment = tuple((name, value) for name, value in self.arguments.items() if name not in self.commands.environment)
        words = self._words(one) if not one.heredocs else (*self.commands.shell, _script(one))
        where = "/" if self.commands.working_dir is None else None
        self.steps.append(
            Run(words, environment, where, "none" if one.flag("network") == "none" else "default", self._said(one))
        )

    def _copy(self, one: Instruction) -> None:
        texts = {heredoc.word: heredoc for heredoc in one.heredocs}
        *given, last = one.split()
        if last in texts:
            raise WordError("the destination is a text of the file")
        sources = tuple(self._expand(one, word) for word in given if word not in texts)
        if not all(sources):
            raise WordError(f"a source is empty: {' '.join(given)}")
        urls = tuple(source for source in sources if url_of(one.kind, source) is not None)
        destination = self._destination(one, last)
        if destination.endswith("/") and not all(name_of(url) for url in urls):
            raise WordError(f"the URL has no name for a file in {destination}: write the file's name as the destination")
        checksum = self._flag(one, "checksum")
        if checksum is not None and (len(sources) != 1 or not urls):
            raise WordError("--checksum is of one URL")
        if checksum is not None and not re.fullmatch(CHECKSUM, checksum, re.ASCII):
            raise WordError(f"--checksum={checksum} is not supported: it is sha256: and 64 hex digits")
        owner, mode = self._flag(one, "chown"), self._flag(one, "chmod")
        wanted = one.flag("from")
        self.steps.append(
            CopyFiles(
                tuple(source for source in sources if source not in urls),
                destination,
                self._stage.directory,
                self._stage.rules,
                None if wanted is None else dict(self._stage.sources)[wanted.lower()],
                tuple((heredoc.name, self._content(one, heredoc)) for heredoc in one.heredocs),
                owner,
                None if mode is None else _octal(mode),
                one.kind == "ADD",
                urls,
                checksum,
                self._said(one),
            )
        )

    def _content(self, one: Instruction, heredoc: Heredoc) -> str:
        return self._expand(one, heredoc.content, quotes=False) if heredoc.expanded else heredoc.content

    def _flag(self, one: Instruction, name: str) -> str | None:
        value = one.flag(name)
        return None if value is None else self._expand(one, value) or None

    def _some(self, one: Instruction) -> str:
        value = self._expand(one, one.text).strip()
        if not value:
            raise WordError(f"{one.text} is empty")
        return value

    def _destination(self, one: Instruction, word: str) -> str:
        value = self._expand(one, word)
        if not value:
            raise WordError(f"the destination {word} is empty")
        path = self._absolute(value)
        is_directory = value.endswith(("/", "/.")) or value in (".", "..")
        return path if not is_directory or path == "/" else f"{path}/"

    def _absolute(self, path: str) -> str:
        return "/" + posixpath.normpath(posixpath.join("/", self.commands.working_dir or "/", path)).lstrip("/")


def name_of(url: str) -> str:
    """The last name of a URL's path; empty: it has none."""
    try:
        name = posixpath.basename(unquote(urlsplit(url).path))
    except ValueError as error:
        raise WordError(f"{url} is no URL: {error}") from None
    return "" if name in (".", "..") or "\0" in name else name


def _octal(text: str) -> int:
    if re.fullmatch(r"0?[0-7]{3}", text, re.ASCII) is None:
        raise WordError(f"--chmod={text} is not supported: give three octal digits, such as 755")
    return int(text, 8)


def _script(one: Instruction) -> str:
    """The text for a shell: that of the file alone, or a command with those that it reads."""
    first = one.heredocs[0]
    if len(one.heredocs) > 1 or one.text != first.word:
        ends = "".join(f"{heredoc.content}{heredoc.name}\n" for heredoc in one.heredocs)
        return f"{one.text}\n{ends}"
    if not first.content.startswith("#!"):
        return first.content
    lines = set(first.content.split("\n"))
    end = next(name for number in range(len(lines) + 1) if (name := f"END{number}") not in lines)
    return _SCRIPT.format(content=first.content, end=end)
