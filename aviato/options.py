"""Option enums and classes that users pass in: frozen, keyword-only, checked when built."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from aviato.exceptions import AviatoValidationError
from aviato.values import hosts, quantities
from aviato.values.parameters import suggesting
from aviato.values.representation import short


class SandboxStatus(StrEnum):
    """Where a sandbox is in its life. Members equal their lower-case names.

    `PENDING` covers everything from acceptance to `RUNNING`, a place in the queue included; our backends never report
    `CREATING`.
    """

    PENDING = "pending"
    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    TERMINATING = "terminating"
    COMPLETED = "completed"
    FAILED = "failed"
    TERMINATED = "terminated"
    UNSPECIFIED = "unspecified"

    @classmethod
    def _missing_(cls, value: object) -> SandboxStatus:
        from aviato.values.suggestions import meant

        raise ValueError(f"status {value!r} is none of {', '.join(cls)}{meant(value, cls)}")

    @property
    def is_terminal(self) -> bool:
        """Whether the sandbox has ended and will not run again."""
        return self in _TERMINAL


_TERMINAL = frozenset({SandboxStatus.COMPLETED, SandboxStatus.FAILED, SandboxStatus.TERMINATED})


class Serialization(StrEnum):
    """How a remote function's arguments and result cross.

    `JSON` as JSON has them: tuples become lists and the keys of dicts become text. `PICKLE` keeps Python's own data types; its
    results may hold those, `datetime`, `Decimal` and the classes named in `result_types`, and nothing else.
    """

    JSON = "json"
    PICKLE = "pickle"

    @classmethod
    def _missing_(cls, value: object) -> Serialization:
        from aviato.values.suggestions import meant

        raise ValueError(f"serialization {value!r} is none of {', '.join(cls)}{meant(value, cls)}")


@suggesting
@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Who may connect to a sandbox, and what it may connect to.

    Attributes:
        ingress_mode: `none`, or `public`: anyone on the server's machine. None is what `exposed_ports` imply.
        exposed_ports: ports of programs inside, as `ports=` of a sandbox has them.
        egress_mode: `none`, `internet`, or a list of hosts; None is the server's default, `none`. Programs inside then reach
            these hosts by the server's proxy (HTTP and CONNECT, so HTTPS too), whose variables are set. An item is a name, a
            wildcard for all names below one (`*.example.org`) or an address, at any port or with `:port` at that one.
            Private and other special addresses are refused but for those of the server's `--egress-allow-cidr`.
    """

    ingress_mode: Literal["none", "public"] | None = None
    exposed_ports: Sequence[int] = ()
    egress_mode: Literal["none", "internet"] | Sequence[str] | None = None

    __repr__ = short

    def __post_init__(self) -> None:
        if self.ingress_mode not in (None, "none", "public"):
            raise _wrong("ingress_mode", f"must be 'none' or 'public', got {self.ingress_mode!r}")
        if not isinstance(self.exposed_ports, Sequence) or isinstance(self.exposed_ports, (str, bytes)):
            raise TypeError(f"exposed_ports must be a list of ints, as in [8000], not {self.exposed_ports!r}")
        object.__setattr__(self, "exposed_ports", tuple(self.exposed_ports))
        if self.ingress_mode == "none" and self.exposed_ports:
            raise _wrong("exposed_ports", "must be empty where ingress_mode is 'none'")
        if self.ingress_mode == "public" and not self.exposed_ports:
            raise _wrong("exposed_ports", "must name the ports that ingress_mode 'public' opens")
        if isinstance(self.egress_mode, str) and self.egress_mode not in ("none", "internet"):
            raise _wrong("egress_mode", f"must be 'none', 'internet' or a list of host names, got {self.egress_mode!r}")
        if self.egress_mode is not None and not isinstance(self.egress_mode, str):
            object.__setattr__(self, "egress_mode", _hosts(self.egress_mode))


@suggesting
@dataclass(frozen=True, kw_only=True)
class ResourceOptions:
    """How much of the machine a sandbox may use, and how much it wants to be sure of.

    Both are tables of Kubernetes quantities or numbers: `cpu` in cores, `memory`, `shm` (what of it `/dev/shm` can hold) and
    `disk` in bytes, `processes`, `inodes` (files and directories) and `gpu` by count. A plain dict as `resources=` means
    `limits`.

    Attributes:
        requests: what it wants to be sure of; a limit that was not given is at least this.
        limits: what it may not go beyond; what is left out has the server's default.

    Raises:
        TypeError, AviatoValidationError: an unknown resource, no quantity, or a request above its limit; it is named.
    """

    requests: Mapping[str, str | float] = field(default_factory=dict)
    limits: Mapping[str, str | float] = field(default_factory=dict)

    __repr__ = short

    def __post_init__(self) -> None:
        requests, limits = self.amounts()
        for name, wanted in requests.items():
            if wanted > limits.get(name, wanted):
                why = f"requests[{name!r}], {self.requests[name]}, is more than limits[{name!r}], {self.limits[name]}"
                raise _wrong("resources", why)
        for name in ("requests", "limits"):
            object.__setattr__(self, name, dict(getattr(self, name)))

    def amounts(self) -> tuple[dict[str, float], dict[str, float]]:
        """Requests and limits as numbers, in cores, bytes or by count."""
        return _amounts("requests", self.requests), _amounts("limits", self.limits)


def _hosts(value: object) -> tuple[str, ...]:
    """The items of an allow-list in their one form, each once."""
    if not isinstance(value, Sequence) or isinstance(value, bytes) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"egress_mode must be 'none', 'internet' or a list of host names, not {value!r}")
    found: dict[str, None] = {}
    for item in value:
        try:
            found[hosts.written(hosts.pattern(item))] = None
        except ValueError as error:
            raise _wrong(
                "egress_mode", f"has {item!r}, which {error}; an item is example.org, *.example.org or host:port"
            ) from None
    if not found:
        raise _wrong("egress_mode", "names no host; 'none' is the mode without any")
    if len(found) > hosts.MAX_HOSTS:
        raise _wrong("egress_mode", f"can have at most {hosts.MAX_HOSTS} hosts, got {len(found)}")
    return tuple(found)


def _amounts(table: str, values: object) -> dict[str, float]:
    """The amounts of a table of resources; what is None is left out."""
    if not isinstance(values, Mapping):
        raise TypeError(f"resources: {table} must be a dict, as in {{'memory': '2Gi'}}, not {type(values).__name__}")
    found = {}
    for name, value in values.items():
        if value is None:
            continue
        try:
            found[name] = quantities.amount(name, value)
        except TypeError as error:
            raise TypeError(f"resources: {table}[{name!r}] {error}") from None
        except ValueError as error:
            raise _wrong("resources", f"{table}[{name!r}]: {error}") from None
    return found


SECRET_PREFIX = "AVIATO_SECRET_"
"""What the variables are called that hold secrets of store `env`, before their names."""
SECRET_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"
SECRET_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
MAX_SECRETS = 64


@suggesting
@dataclass(frozen=True, kw_only=True)
class Secret:
    """A value that the server gives to a sandbox as an environment variable. Only its name is said here.

    Attributes:
        store: `env`: the server's own variable `AVIATO_SECRET_<name>`; where the server is the embedded one, that of the
            calling process. `file`: the file of this name in the server's `--secrets-dir`, without the line end behind it.
        name: in its store; case counts.
        env_var: the variable of every command inside; None is `name`.

    Raises:
        TypeError, AviatoValidationError: an unknown store, or a name that cannot be one. What was given as a name is not shown:
            it may be the secret.
    """

    store: Literal["env", "file"]
    name: str
    env_var: str | None = None

    __repr__ = short

    def __post_init__(self) -> None:
        for field_name in ("store", "name", "env_var"):
            value = getattr(self, field_name)
            if not isinstance(value, str) and not (field_name == "env_var" and value is None):
                raise TypeError(f"{field_name} of a Secret must be a str, not {type(value).__name__}")
        if self.store not in ("env", "file"):
            raise _wrong("secrets", "have the store 'env' or 'file'; there is no other")
        pattern, letters = (SECRET_VARIABLE, "'_'") if self.store == "env" else (SECRET_NAME, "'_', '.' and '-'")
        if re.fullmatch(pattern[1:-1], self.name) is None:
            why = f"a name in the store {self.store!r} has up to 128 ASCII letters, digits, {letters}"
            raise _wrong("secrets", f"{why}, and begins with {'no digit' if self.store == 'env' else 'neither . nor -'}")
        if self.env_var is None:
            object.__setattr__(self, "env_var", self.name)
        if re.fullmatch(SECRET_VARIABLE[1:-1], str(self.env_var)) is None:
            why = "env_var= has up to 128 ASCII letters, digits and '_', and begins with no digit"
            raise _wrong("secrets", f"{why}; left out, it is the name")


def check_secrets(value: object) -> tuple[Secret, ...]:
    """Secrets, each for a variable of its own. What was given in their place is not shown: it may be the secret.

    Raises:
        TypeError: no list of `Secret`.
        AviatoValidationError: two for one variable, or too many.
    """
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise TypeError(f"secrets must be a list of Secret, not {type(value).__name__}")
    found = tuple(value)
    for item in found:
        if not isinstance(item, Secret):
            raise TypeError(f"secrets must be a list of Secret(store=, name=, env_var=), got a {type(item).__name__}")
    variables = [item.env_var for item in found]
    twice = sorted({str(name) for name in variables if variables.count(name) > 1})
    if twice:
        raise _wrong("secrets", f"name the variable {twice[0]} twice")
    if len(found) > MAX_SECRETS:
        raise _wrong("secrets", f"can be at most {MAX_SECRETS}, got {len(found)}")
    return found


def _wrong(name: str, why: str) -> AviatoValidationError:
    return AviatoValidationError(f"{name} {why}", field_violations={name: why})
