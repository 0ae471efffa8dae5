"""Dockerfiles as text: their lines as instructions, each with what it says, and what is wrong with one by its line. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aviato.building.dockerfile_words import WordError, expand, split
from aviato.exceptions import AviatoValidationError
from aviato.values.suggestions import meant
from aviato.values.text import is_unicode, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER", "RUN"),
    *("SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)
IGNORED = frozenset(("EXPOSE", "HEALTHCHECK", "MAINTAINER", "STOPSIGNAL", "VOLUME"))
"""They say nothing of a sandbox."""
_FLAGS = {
    "ADD": ("chown", "chmod", "link", "checksum"),
    "COPY": ("from", "chown", "chmod", "link"),
    "FROM": ("platform",),
    "RUN": ("mount", "network"),
    "HEALTHCHECK": ("interval", "timeout", "start-period", "start-interval", "retries"),
}
_LISTS = frozenset(("ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL"))
"""They may have a JSON list."""
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(\S.*?)\s*")
_INSTRUCTION = re.compile(r"([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]*)")
CHECKSUM = r"sha256:[0-9a-f]{64}"
_STAGE = re.compile(r"[a-z][a-z0-9._-]*", re.ASCII)
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Heredoc:
    """A text within the file.

    Attributes:
        name: by which it ends.
        content: its lines.
        expanded: whether variables in it are; they are not where its name is quoted.
        word: as it is written where it is asked for.
        indented: whether tabs before its lines are no part of it.
    """

    name: str
    content: str
    expanded: bool
    word: str
    indented: bool = False


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        kind: its name, in upper case.
        text: what comes behind its flags, with its lines joined.
        line: of the file, where it begins.
        flags: names and values, as they are written.
        words: of a JSON list; None: it is no such list.
        heredocs: that it asks for.
        escape: the character that the file has for that.
    """

    kind: str
    text: str
    line: int
    flags: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] | None = None
    heredocs: tuple[Heredoc, ...] = ()
    escape: str = "\\"

    def flag(self, name: str) -> str | None:
        """The last value of a flag; None: it is not given."""
        return dict(self.flags).get(name)

    def split(self) -> list[str]:
        """The words of its text, with their quotes; those of a JSON list are as they are."""
        return split(self.text, self.escape) if self.words is None else list(self.words)

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values of `ENV` and `LABEL`, with their quotes.

        Raises:
            WordError: it has others than `NAME=VALUE`, or `NAME VALUE` alone.
        """
        words = self.split()
        if "=" not in words[0]:
            name, value = words[0], self.text[len(words[0]) :].strip()
            if not value:
                raise WordError(f"{name} has no value: write {self.kind} NAME=VALUE")
            return [(name, value)]
        found = [(name, value) for name, equals, value in (word.partition("=") for word in words) if equals and name]
        if len(found) < len(words):
            raise WordError(f"{self.kind} has names without a value; each is NAME=VALUE, with quotes around blanks")
        return found

    def __str__(self) -> str:
        said = " ".join((self.kind, *(f"--{name}={value}" if value else f"--{name}" for name, value in self.flags), self.text))
        return shown(said, _SHOWN_CHARACTERS)


@dataclass(frozen=True)
class Stage:
    """A `FROM` and what follows it.

    Attributes:
        begin: the `FROM`.
        base: what it begins with, with its variables.
        name: by which later ones mean it, in lower case.
        instructions: what follows.
    """

    begin: Instruction
    base: str
    name: str | None
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True)
class Dockerfile:
    """A whole file.

    Attributes:
        arguments: each `ARG` before the first `FROM`.
        stages: in their order.
    """

    arguments: tuple[Instruction, ...]
    stages: tuple[Stage, ...]


def parse(text: str, name: str = "Dockerfile") -> Dockerfile:
    """Read a Dockerfile.

    Args:
        text: of it.
        name: in errors.

    Raises:
        AviatoValidationError: it is none, or has what is not supported; the message has the line.
    """
    arguments: list[Instruction] = []
    stages: list[Stage] = []
    for instruction in _Lines(text, name).instructions():
        try:
            _check(instruction)
            if instruction.kind == "FROM":
                stages.append(_stage(instruction, stages))
            elif stages:
                last = stages[-1]
                stages[-1] = replace(last, instructions=(*last.instructions, instruction))
            elif instruction.kind == "ARG":
                arguments.append(instruction)
            else:
                raise WordError(f"{instruction.kind} comes before the first FROM; only ARG can")
        except WordError as error:
            raise wrong(name, instruction.line, str(error)) from None
    if not stages:
        raise wrong(name, text.count("\n") + 1, "it has no FROM")
    return Dockerfile(tuple(arguments), tuple(stages))


def wrong(name: str, line: int, why: str) -> AviatoValidationError:
    """An error that names the place."""
    return AviatoValidationError(f"{name}:{line}: {shown(why)}", field_violations={"dockerfile": f"line {line}"})


class _Lines:
    def __init__(self, text: str, name: str) -> None:
        self._lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        self._name = name
        self._next = 0
        self._escape = "\\"

    def instructions(self) -> list[Instruction]:
        self._directives()
        found = []
        while self._next < len(self._lines):
            line = self._next + 1
            text = self._lines[self._next].lstrip()
            if not text.strip() or text.startswith("#"):
                self._next += 1
                continue
            try:
                found.append(self._read(line, self._joined()))
            except WordError as error:
                raise wrong(self._name, line, str(error)) from None
        return found

    def _directives(self) -> None:
        seen: set[str] = set()
        while self._next < len(self._lines):
            match = _DIRECTIVE.fullmatch(self._lines[self._next].strip())
            key = "" if match is None else match[1].lower()
            if match is None or key not in ("escape", "syntax", "check"):
                return
            if key in seen:
                raise wrong(self._name, self._next + 1, f"the directive {key} is there twice")
            seen.add(key)
            if key == "escape":
                if match[2] not in ("\\", "`"):
                    raise wrong(self._name, self._next + 1, f"escape is \\ or `, not {match[2]!r}")
                self._escape = match[2]
            self._next += 1

    def _joined(self) -> str:
        """An instruction's lines as one; comments and empty lines within it are left out."""
        found = ""
        begun = False
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            if begun and (not line.strip() or line.lstrip().startswith("#")):
                continue
            begun = True
            rest = line.rstrip(" \t")
            ended = len(rest) - len(rest.rstrip(self._escape))
            if ended != 1:
                return (found + line).strip()
            found += rest[:-1]
        return found.strip()

    def _read(self, line: int, text: str) -> Instruction:
        match = _INSTRUCTION.fullmatch(text)
        if match is None:
            raise WordError(f"{shown(text, _SHOWN_CHARACTERS)!r} is no instruction")
        kind, rest = match[1].upper(), match[2] or ""
        if kind == "ONBUILD":
            raise WordError("ONBUILD is not supported: write what it does into the Dockerfiles that begin with this image")
        if kind not in KINDS:
            raise WordError(f"there is no instruction {match[1]}{meant(kind, KINDS)}")
        flags, rest = self._flags(kind, rest)
        if not rest and not (kind == "FROM"):
            raise WordError(f"{kind} has nothing behind it")
        words = _json(rest) if kind in _LISTS else None
        heredocs = self._heredocs(rest) if kind in ("RUN", "COPY", "ADD") and words is None else ()
        return Instruction(kind, rest, line, flags, words, heredocs, self._escape)

    def _flags(self, kind: str, rest: str) -> tuple[tuple[tuple[str, str], ...], str]:
        found = []
        while kind in _FLAGS and rest.startswith("--"):
            match = _FLAG.match(rest)
            name = rest.split()[0] if match is None else f"--{match[1]}"
            if match is None or match[1] not in _FLAGS[kind]:
                there = ", ".join(f"--{flag}" for flag in _FLAGS[kind])
                raise WordError(f"{kind} {shown(name, _SHOWN_CHARACTERS)} is not supported; there is {there}")
            found.append((match[1], (match[2] or "").strip("\"'")))
            rest = rest[match.end() :]
        return tuple(found), rest

    def _heredocs(self, text: str) -> tuple[Heredoc, ...]:
        if "<<" not in text:
            return ()
        try:
            words = split(text, self._escape)
        except WordError:  # A quote that only the shell understands.
            return ()
        found = []
        for word in words:
            match = _HEREDOC.fullmatch(word)
            name = "" if match is None else match[2].strip("\"'")
            if match is not None and name:
                found.append(self._heredoc(word, name, match[1] == "-", expanded=name == match[2]))
        return tuple(found)

    def _heredoc(self, word: str, name: str, indented: bool, *, expanded: bool) -> Heredoc:
        content: list[str] = []
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            line = line.lstrip("\t") if indented else line
            if line == name:
                return Heredoc(name, "".join(f"{one}\n" for one in content), expanded, word, indented)
            content.append(line)
        raise WordError(f"{word} has no line {shown(name, _SHOWN_CHARACTERS)} that ends it")


def _check(one: Instruction) -> None:
    """See what can be seen without values of variables."""
    if any("\0" in text or not is_unicode(text) for text in (one.text, *(one.words or ()))):
        raise WordError("it has a character that no program can be given")
    if one.kind == "RUN":
        _check_run(one)
    elif one.kind in ("COPY", "ADD"):
        _check_copy(one)
    elif one.kind == "SHELL" and not one.words:
        raise WordError('SHELL takes a JSON list of words, such as ["/bin/bash", "-c"]')
    elif one.kind in ("ENV", "LABEL"):
        for name, value in one.pairs():
            _check_word(one, name)
            _check_word(one, value)
    elif one.kind == "ARG":
        for word in one.split():
            name, _, value = word.partition("=")
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                raise WordError(f"{shown(name, _SHOWN_CHARACTERS)!r} is no name of an ARG")
            _check_word(one, value)
    elif one.kind in ("USER", "WORKDIR"):
        _check_word(one, one.text)


def _check_word(one: Instruction, text: str) -> None:
    try:
        expand(text, _AnyValue(), one.escape)
    except WordError as error:
        raise WordError(f"{one.kind}: {error}") from None


class _AnyValue(dict[str, str]):
    """A value for each name."""

    def get(self, key: str, default: object = None) -> str:
        return "x"


def _check_run(one: Instruction) -> None:
    for name, value in one.flags:
        if name == "mount":
            kind = dict(part.partition("=")[::2] for part in value.split(",")).get("type", "bind")
            if kind != "cache":
                raise WordError(f"RUN --mount=type={kind} is not supported; type=cache is, and has no effect")
        elif value not in ("default", "none"):
            raise WordError(f"RUN --network={value} is not supported; there is none, and default: that of the build")
    if one.words == ():
        raise WordError("RUN has an empty list of words")


def _check_copy(one: Instruction) -> None:
    words = one.split()
    if len(words) < 2:
        raise WordError(f"{one.kind} takes at least one source and a destination")
    chmod = one.flag("chmod")
    if chmod is not None and not re.fullmatch(r"0?[0-7]{3}|\$.*", chmod, re.ASCII):
        raise WordError(f"--chmod={chmod} is not supported: give three octal digits, such as 755")
    if one.heredocs and one.flag("from") is not None:
        raise WordError(f"{one.kind} --from copies no text of the file")
    for word in words:
        _check_word(one, word)
    for word in words[:-1]:
        url_of(one.kind, word.strip("\"'"))
    checksum = one.flag("checksum")
    if checksum is not None and not re.fullmatch(rf"{CHECKSUM}|.*\$.*", checksum, re.ASCII):
        raise WordError(f"--checksum={shown(checksum, _SHOWN_CHARACTERS)} is not supported: it is sha256: and 64 hex digits")


def url_of(kind: str, source: str) -> str | None:
    """A source as a URL that can be fetched; None: it is a file's name.

    Raises:
        WordError: it is a URL of something else, or nothing that the instruction takes.
    """
    if re.match(r"(?:git|ssh)://|git@|https?://[^#?]*\.git(?:[#?]|$)", source, re.IGNORECASE):
        raise WordError(f"{kind} of the git repository {source} is not supported: clone it before the build, and COPY it")
    if re.match(r"https?://", source, re.IGNORECASE) is None:
        return None
    if kind == "COPY":
        raise WordError(f"COPY takes no URLs: write ADD {source}")
    return source


def _stage(one: Instruction, before: Sequence[Stage]) -> Stage:
    words = one.text.split()
    if not (len(words) == 1 or (len(words) == 3 and words[1].lower() == "as")):
        raise WordError("FROM takes an image, and after AS a name of the stage")
    name = None
    if len(words) == 3:
        name = words[2].lower()
        if not _STAGE.fullmatch(name):
            raise WordError(f"{shown(words[2], _SHOWN_CHARACTERS)!r} is no name of a stage: letters, digits and ._- within")
        if name == "scratch":
            raise WordError("scratch is the image of no files, and no name of a stage")
        if name in [stage.name for stage in before]:
            raise WordError(f"the stage {name} is there twice")
    _check_word(one, words[0])
    return Stage(one, words[0], name)


def _json(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None  # For a shell, then.
    return tuple(found) if isinstance(found, list) and all(isinstance(word, str) for word in found) else None
