"""SandboxDefaults: what sandboxes get when a call does not say otherwise, and how the two are merged."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from aviato.exceptions import AviatoValidationError
from aviato.options import NetworkOptions, ResourceOptions, Secret, check_secrets
from aviato.values.parameters import meant_names, suggesting
from aviato.values.representation import Hidden, address, beginning, named
from aviato.values.text import is_unicode
from aviato.wire import bounds

DEFAULT_IMAGE = "python:3.11"
MAX_TAG_CHARACTERS = 256
MAX_PORTS = 64
MAX_PACKAGES_CHARACTERS = 4096


@suggesting
@dataclass(frozen=True, kw_only=True)
class SandboxDefaults:
    """Settings for many sandboxes. It remembers which fields were given: one that was not leaves the choice to the server.

    Attributes:
        container_image: as of `Sandbox`. Not given: the server's default image.
        packages: Python packages that code inside can import, as `packages=` of a sandbox has them.
        command: program of the main command; None keeps a sandbox alive until it is stopped.
        args: arguments of `command`.
        base_url: `http://…`, `https://…` or `unix:///absolute/path`; None: `AVIATO_BASE_URL`, else the embedded server.
        exec_timeout_seconds: limit of a command that does not state its own; `math.inf` is no limit.
        request_timeout_seconds: how long one request may take, or a stream be silent.
        reconnect_timeout_seconds: how long a server that was reached before is waited for, from the last byte seen.
        max_lifetime_seconds: end of a sandbox's life, from its start; None: none of its own.
        temp_dir: where functions put their files inside a sandbox.
        tags: tags of every sandbox; those of the call are added.
        environment_variables: of every command; those of the call win.
        runway_ids, tower_ids: where sandboxes may be placed; None is anywhere. The local backend has one of each, `local`.
        network: of every sandbox that names none itself; see `NetworkOptions`.
        resources: limits of every sandbox, as `resources=` of a sandbox has them; what the call names wins.
        secrets: of every sandbox; those of the call are added, and win where the variable is the same.
    """

    container_image: str = DEFAULT_IMAGE
    packages: str | os.PathLike[str] | None = None
    command: str | None = None
    args: Sequence[str] = ()
    base_url: str | None = None
    exec_timeout_seconds: float = 300.0
    request_timeout_seconds: float = 60.0
    reconnect_timeout_seconds: float = 60.0
    max_lifetime_seconds: float | None = None
    temp_dir: str = "/tmp"
    tags: Sequence[str] = ()
    resources: ResourceOptions | Mapping[str, Any] | None = None
    network: NetworkOptions | None = None
    secrets: Sequence[Secret] = ()
    environment_variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    runway_ids: Sequence[str] | None = None
    tower_ids: Sequence[str] | None = None

    def __new__(cls, **given: Any) -> Self:
        """Remember the names of the fields that the caller set."""
        self = object.__new__(cls)
        object.__setattr__(self, "_given", frozenset(given))
        return self

    def __post_init__(self) -> None:
        if not isinstance(self.container_image, str) or not self.container_image:
            raise _wrong("container_image", "must be a non-empty str")
        object.__setattr__(self, "packages", packages(self.packages))
        for name in ("exec_timeout_seconds", "request_timeout_seconds", "reconnect_timeout_seconds"):
            object.__setattr__(self, name, seconds(name, getattr(self, name)))
        if self.max_lifetime_seconds is not None:
            seconds("max_lifetime_seconds", self.max_lifetime_seconds)
        absolute("temp_dir", self.temp_dir)
        object.__setattr__(self, "args", texts("args", self.args))
        object.__setattr__(self, "tags", tags(self.tags))
        object.__setattr__(self, "environment_variables", environment(self.environment_variables))
        for name in ("runway_ids", "tower_ids"):
            if (ids := getattr(self, name)) is not None:
                object.__setattr__(self, name, texts(name, ids))
        network(self.network)
        resources(self.resources)
        object.__setattr__(self, "secrets", check_secrets(self.secrets))

    def __repr__(self) -> str:
        image = self.container_image if self.given("container_image") else Hidden("<the server's default>")
        shown = {"container_image": image} | {
            name: value for name, value in self._as_given().items() if name != "container_image"
        }
        if shown.get("environment_variables"):
            shown["environment_variables"] = dict.fromkeys(self.environment_variables, Hidden())
        if self.base_url is not None:
            shown["base_url"] = address(self.base_url)
        return named(type(self).__name__, shown)

    def given(self, name: str) -> bool:
        """Whether the caller set this field, even to its built-in value."""
        return name in self._given  # type: ignore[attr-defined]

    def merge_tags(self, more: Iterable[str] | None = None) -> tuple[str, ...]:
        """These tags and the call's, each once, in this order."""
        return tuple(dict.fromkeys((*self.tags, *tags(more or ()))))

    def merge_environment_variables(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """These variables and the call's, which win."""
        return {**self.environment_variables, **environment(more or {})}

    def merge_secrets(self, more: Iterable[Secret] | None = None) -> tuple[Secret, ...]:
        """These secrets and the call's, which win where the variable is the same."""
        both = (*self.secrets, *check_secrets(() if more is None else more))
        return check_secrets({secret.env_var: secret for secret in both}.values())

    def with_overrides(self, **overrides: Any) -> Self:
        """A copy with some fields set anew; what was given stays given.

        Raises:
            AviatoValidationError: a name that is no field.
        """
        return self.from_dict({**self._as_given(), **overrides})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Defaults from a table, as a configuration file has it.

        Raises:
            AviatoValidationError: a name that is no field.
        """
        known = [item.name for item in fields(cls)]
        unknown = sorted(set(values).difference(known))
        if unknown:
            raise AviatoValidationError(
                f"SandboxDefaults has no field {', '.join(map(repr, unknown))}{meant_names(unknown, known)}",
                field_violations=dict.fromkeys(unknown, "unknown"),
            )
        return cls(**values)

    def _as_given(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self) if self.given(item.name)}

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_dict, (self._as_given(),))


# -- checks that the facade shares


def count(name: str, value: object) -> int:
    """An int of 1 or more.

    Raises:
        TypeError, AviatoValidationError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise AviatoValidationError(f"{name} must be 1 or more, got {value}", field_violations={name: "less than 1"})
    return value


def seconds(name: str, value: Any) -> float:
    """A duration: positive, `math.inf` included.

    Raises:
        TypeError: no number.
        AviatoValidationError: zero, negative or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value) or value <= 0:
        raise _wrong(name, f"must be more than 0 seconds, got {value!r}; `math.inf` is no limit")
    return float(value)


def limit(seconds: float | None) -> float | None:
    """A duration as those take it who know no infinity: None is no limit."""
    return None if seconds is None or math.isinf(seconds) else seconds


def tags(value: Any) -> tuple[str, ...]:
    """Tags as a tuple.

    Raises:
        TypeError: a bare string, or something that is not text.
        AviatoValidationError: empty, too long, or with control characters.
    """
    if isinstance(value, str):
        raise TypeError(f"tags must be a list of strings, not one string: write [{value!r}]")
    found = tuple(value)
    for tag in found:
        if not isinstance(tag, str):
            raise TypeError(f"tags must be strings, got {tag!r}")
        if not is_unicode(tag):
            raise _wrong("tags", f"must be text, and {ascii(tag)[:100]} has a lone surrogate, which is no character")
        if not 1 <= len(tag) <= MAX_TAG_CHARACTERS or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in tag):
            raise _wrong("tags", f"{tag!r} is not 1 to {MAX_TAG_CHARACTERS} characters of text without control characters")
    return found


def texts(name: str, value: Any) -> tuple[str, ...]:
    """A sequence of arguments; a path is one too.

    Raises:
        TypeError: a bare string, or something that is not text.
        AviatoValidationError: a NUL in it, or a lone surrogate.
    """
    if isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} must be a list of strings, not one string: write {_as_list(name, value)}")
    found = []
    for number, item in enumerate(value, 1):
        if isinstance(item, os.PathLike):
            item = os.fspath(item)
        if not isinstance(item, str):
            raise TypeError(f"{name} must be strings, got {item!r}")
        if "\0" in item:
            raise _wrong(name, "must not hold a NUL character")
        try:
            item.encode()
        except UnicodeEncodeError:
            why = f"argument {number} of {name} has a lone surrogate, which is no Unicode and can be given to no program"
            raise AviatoValidationError(why, field_violations={name: why}) from None
        found.append(item)
    return tuple(found)


def _as_list(name: str, value: Any) -> list[str]:
    """What somebody meant who gave a string in place of a list."""
    from aviato.values.suggestions import command_list

    value = os.fspath(value)
    if name == "command":
        return command_list(value)
    return [value.decode(errors="replace") if isinstance(value, bytes) else value]


IMAGE_PATHS = ("oci:", "docker-archive:")
"""What references of images begin with that name a path."""
LARGEST_ID = 0xFFFFFFFE
"""Of a user or group; the next one means nobody's to the kernel."""


def user(name: str, value: str | int) -> str:
    """Who a command is: a name or number, or two of them with a colon, the second of a group.

    Raises:
        TypeError: neither text nor a whole number.
        AviatoValidationError: it can be no user.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f"{name} must be a str or an int, not {type(value).__name__}")
    if isinstance(value, int):
        if not 0 <= value <= LARGEST_ID:
            raise _wrong(name, f"must be 0 to {LARGEST_ID}, got {value}")
        return str(value)
    if not value or len(value) > bounds.USER_CHARACTERS or any(character in value for character in "\n\0"):
        raise _wrong(
            name, f"must be a name or number of at most {bounds.USER_CHARACTERS} characters, got {beginning(value, 60)!r}"
        )
    return text(name, value)


def reference_from_here(reference: str) -> str:
    """The same reference as a server on this machine understands it, wherever that was started: paths begin with `/`."""
    for kind in IMAGE_PATHS:
        path = reference[len(kind) :]
        if reference.startswith(kind) and path and path[0] not in ":/":
            return f"{kind}{os.path.join(os.getcwd(), path)}"
    return reference


def text(name: str, value: str) -> str:
    """Text that can be an argument, a path or a variable's value inside.

    Raises:
        AviatoValidationError: a NUL in it, or a lone surrogate, which is no character.
    """
    if "\0" in value:
        raise _wrong(name, "must not hold a NUL character")
    if not is_unicode(value):
        raise _wrong(name, f"must be text, and {ascii(value)[:100]} has a lone surrogate, which is no character")
    return value


def environment(value: Any) -> dict[str, str]:
    """Environment variables as a dict. Values never appear in a message.

    Raises:
        TypeError: not a mapping of str to str.
        AviatoValidationError: a name that cannot be one, or a NUL.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"environment variables must be a dict of str to str, not {type(value).__name__}")
    for name, given in value.items():
        if not isinstance(name, str) or not isinstance(given, str):
            raise TypeError(f"environment variable {name!r} must be str to str, not to {type(given).__name__}")
        if not name or "=" in name or "\0" in name or "\0" in given:
            raise _wrong("environment_variables", f"{name!r} cannot be set: an empty name, or `=` or NUL in it")
        if not is_unicode(name + given):
            raise _wrong("environment_variables", f"{name!r} cannot be set: a lone surrogate, which is no character, in it")
    return dict(value)


def absolute(name: str, value: Any) -> str:
    """An absolute path inside a sandbox.

    Raises:
        TypeError: not text.
        AviatoValidationError: relative, or a NUL in it.
    """
    value = os.fspath(value)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value.startswith("/") or "\0" in value:
        raise _wrong(name, f"must be an absolute path, got {value!r}")
    return text(name, value)


def packages(value: Any) -> str | None:
    """Packages by their name, or by the absolute path of their directory; anything with a `/` in it is a path.

    Raises:
        TypeError: no text or path.
        AviatoValidationError: empty, too long, or a NUL in it.
    """
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not isinstance(found := os.fspath(value), str):
        raise TypeError(f"packages must be a str or a path, not {type(value).__name__}")
    if not found or "\0" in found or len(found) > MAX_PACKAGES_CHARACTERS:
        raise _wrong("packages", f"must be a name or the path of a directory, got {found[:100]!r}")
    if isinstance(value, str) and "/" not in found:
        return found
    return os.path.abspath(os.path.expanduser(found))


def port(name: str, value: Any) -> int:
    """A port.

    Raises:
        TypeError: no int.
        AviatoValidationError: none of 1 to 65535.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int from 1 to 65535, not {type(value).__name__}: {value!r}")
    if not 1 <= value <= 65535:
        raise _wrong(name, f"must be 1 to 65535, got {value}")
    return int(value)


def ports(name: str, value: Any) -> list[int]:
    """Ports to expose, each once.

    Raises:
        TypeError: no list of ints.
        AviatoValidationError: a port that is none, one given twice, or too many.
    """
    if value is None:
        return []
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise TypeError(f"{name} must be a list of ints, as in [8000], not {value!r}")
    found = [port(name, item) for item in value]
    twice = sorted({item for item in found if found.count(item) > 1})
    if twice:
        raise _wrong(name, f"must have each port once, and has {twice[0]} twice")
    if len(found) > MAX_PORTS:
        raise _wrong(name, f"can have at most {MAX_PORTS} ports, got {len(found)}")
    return found


def network(value: Any) -> NetworkOptions | None:
    """The network of a sandbox.

    Raises:
        TypeError: no `NetworkOptions`.
        AviatoValidationError: ports that are none.
    """
    if value is None:
        return None
    if not isinstance(value, NetworkOptions):
        raise TypeError(f"network must be a NetworkOptions, not {value!r}")
    ports("network.exposed_ports", value.exposed_ports)
    return value


def resources(value: Any) -> ResourceOptions:
    """What a sandbox may use: a plain table means limits.

    Raises:
        TypeError, AviatoValidationError: it cannot be meant.
    """
    if value is None:
        return ResourceOptions()
    if isinstance(value, ResourceOptions):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"resources must be a dict, as in {{'memory': '2Gi'}}, or ResourceOptions, not {type(value).__name__}")
    if value and set(value) <= {"requests", "limits"}:
        return ResourceOptions(**value)
    return ResourceOptions(limits=value)


def progress(value: Any) -> None:
    """How a caller wants to be told how far a run is.

    Raises:
        TypeError: it cannot be meant.
    """
    if value is not None and not isinstance(value, bool) and not callable(value):
        raise TypeError(f"progress must be True, False, None, or a callable (done, total), not {type(value).__name__}")


def refuse_later(name: str, value: Any) -> None:
    """Refuse a parameter whose feature is not there yet.

    Raises:
        AviatoValidationError: it was given; the message names it.
    """
    if value is not None and value is not False and value != () and value != []:
        raise AviatoValidationError(
            f"{name}= is not available in this version of aviato; leave it out", field_violations={name: "not available yet"}
        )


def _wrong(name: str, why: str) -> AviatoValidationError:
    return AviatoValidationError(f"{name} {why}", field_violations={name: why})
