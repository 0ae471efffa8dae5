"""What an image says of the commands that run in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aviato.server.images.bounded_json import read_object
from aviato.server.images.image_errors import image_error
from aviato.values.text import is_unicode

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_WORDS = 4096
LONGEST_WORD = 128 << 10


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """What somebody wants to be otherwise than an image has it.

    Attributes:
        environment: names and values that come in addition.
        working_dir: None: as it is.
        user: None: as it is.
        entrypoint: None: as it is.
        command: None: as it is.
        labels: names and values that come in addition.
        shell: None: as it is.
    """

    environment: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    shell: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """What commands in an image get, unless somebody asks for something else.

    Attributes:
        environment: names and values, each name once.
        working_dir: where commands start; None is `/`.
        user: `USER[:GROUP]` by names or numbers; None is root.
        entrypoint: words that come before a command.
        command: the words of the main command.
        labels: names and values, sorted.
        shell: words by which a Dockerfile that begins with it runs a text; empty: what it does by itself.
    """

    environment: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    shell: tuple[str, ...] = ()

    def but(self, settings: ImageSettings) -> ImageConfig:
        """The same with these."""
        environment = tuple({**dict(self.environment), **dict(settings.environment)}.items())
        return replace(
            self,
            environment=environment,
            working_dir=settings.working_dir or self.working_dir,
            user=settings.user or self.user,
            entrypoint=self.entrypoint if settings.entrypoint is None else settings.entrypoint,
            command=self.command if settings.command is None else settings.command,
            labels=tuple(sorted({**dict(self.labels), **dict(settings.labels)}.items())),
            shell=self.shell if settings.shell is None else settings.shell,
        )

    @classmethod
    def parse(cls, data: bytes) -> ImageConfig:
        """Read it out of an image's configuration, as OCI and Docker write it.

        Raises:
            SandboxImageError: it is none.
        """
        config = read_object(data, "the image's configuration").get("config")
        if config is None:
            return cls()
        if not isinstance(config, dict):
            raise _wrong("config", "an object")
        environment: dict[str, str] = {}
        for one in _words(config, "Env"):
            name, equals, value = one.partition("=")
            if not name or not equals:  # Docker leaves these out too.
                continue
            environment[name] = value
        return cls(
            environment=tuple(environment.items()),
            working_dir=_text(config, "WorkingDir"),
            user=_text(config, "User"),
            entrypoint=_words(config, "Entrypoint"),
            command=_words(config, "Cmd"),
            labels=tuple(sorted(_labels(config).items())),
            shell=_words(config, "Shell"),
        )


def _text(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    if value is not None and not _is_word(value):
        raise _wrong(key, "text")
    return value or None


def _words(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MOST_WORDS or not all(map(_is_word, value)):
        raise _wrong(key, "a list of words")
    return tuple(value)


def _labels(config: Mapping[str, Any]) -> dict[str, str]:
    value = config.get("Labels")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MOST_WORDS or not all(map(_is_word, (*value, *value.values()))):
        raise _wrong("Labels", "names with text")
    return dict(value)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_WORD and "\0" not in value and is_unicode(value)


def _wrong(key: str, wanted: str) -> Exception:
    return image_error("bad_manifest", f"the image's configuration is damaged: {key} is not {wanted}")
