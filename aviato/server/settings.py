"""Every setting of a server, each by flag, by `AVIATO_…` variable and by a settings file, in this order of precedence."""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator

from aviato.exceptions import AviatoValidationError, SandboxImageError
from aviato.server.backends.registry import BACKENDS, is_known
from aviato.server.callers import ENTITY
from aviato.server.egress.policy import networks
from aviato.values import hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_CLIENTS_OWN = frozenset({"auth"})
"""`AVIATO_AUTH` tells a client which key to send, so only the flag of that name is the server's."""

SERVE_ONLY = frozenset(
    {"socket", "host", "port", "socket_fd", "api_key_file", "auth", "wandb_entity", "allowed_host", "tls_cert", "tls_key"}
)
"""Settings of `aviato serve` that say nothing to an embedded server, which lives on its own socket."""


class ServerSettings(BaseModel):
    """The settings of one server; the descriptions are the help of the flags."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    socket: str | None = Field(
        None, description="Unix socket to listen on (default: serve/aviato.sock in the state directory)."
    )
    host: str = Field("127.0.0.1", description="Address to listen on, with --port.")
    port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None, description="TCP port to listen on; needs a key (one is made and printed once if there is none)."
    )
    state_dir: str | None = Field(None, description="State directory (default: /var/lib/aviato, or /var/tmp/aviato-UID).")
    backend: str = Field(
        "local",
        description="What carries the sandboxes: local, landlock without namespaces, docker for containers, "
        "kubernetes for pods, or MODULE:CLASS.",
    )
    docker_host: str | None = Field(
        None,
        description="Container engine of the backend docker, such as unix:///run/user/1000/docker.sock (default: DOCKER_HOST, "
        "or the first usual socket of Docker or podman).",
    )
    default_image: str = Field(
        "python:3.12-slim",
        description="Image of sandboxes that name none, where the machine's own files cannot be had (docker, kubernetes).",
    )
    kubernetes_context: str | None = Field(
        None, description="Context of the kubeconfig (default: the server's own pod's account, else the current context)."
    )
    kubernetes_namespace: str | None = Field(
        None, description="Namespace of the pods (default: the server's own pod's, else the context's)."
    )
    kubernetes_claim: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")] = Field(
        "aviato", description="Name by which the pods of this server's sandboxes are told from those of others."
    )
    kubernetes_init_image: str | None = Field(
        None, description="Image that brings aviato-init into pods (default: the server's own, where it is in a pod)."
    )
    kubernetes_reach: Literal["direct", "forward"] = Field(
        "direct", description="How pods are reached: direct over the pod network, or forward through the API server."
    )
    kubernetes_security: Literal["restricted", "root"] = Field(
        "restricted", description="What pods are inside: restricted as Pod Security has it, or root without other privileges."
    )
    kubernetes_runtime_class: str | None = Field(None, description="RuntimeClass of the pods.")
    kubernetes_pull_secret: tuple[str, ...] = Field(
        (), description="Secret of the namespace with credentials of a registry, for the pods' images; may be repeated."
    )
    kubernetes_pool_label: str = Field("aviato.dev/pool", description="Label of nodes that runway_ids are values of.")
    kubernetes_objects: Literal["pods", "agent-sandbox"] = Field(
        "pods",
        description="What is asked for: pods, or agent-sandbox for Sandboxes, whose controller (kubernetes-sigs/agent-sandbox, "
        "v1beta1) makes the pods.",
    )
    kubernetes_warm_pool: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")] | None = Field(
        None, description="SandboxWarmPool from which sandboxes are taken that want what it gives; with agent-sandbox."
    )
    kubernetes_start: Seconds = Field(300.0, description="Seconds that a pod may be on its way, its image included.")
    api_key_file: str | None = Field(
        None, description="File with one API key a line, and behind it its tenant and what it is limited to."
    )
    auth: Literal["wandb"] | None = Field(None, description="wandb: W&B keys are let in, too.")
    wandb_entity: tuple[str, ...] = Field(
        (), description="W&B entity whose members are let in (default: all that W&B knows); may be repeated."
    )
    allowed_host: tuple[str, ...] = Field(
        (),
        description="Name under which clients ask for this server, beside those of its certificate, such as "
        "sandboxes.example.org or *.example.org; may be repeated.",
    )
    tls_cert: str | None = Field(None, description="Certificate of the TCP listener and those above it, in PEM.")
    tls_key: str | None = Field(None, description="Key of the certificate, in PEM and without a password.")
    image: dict[str, str] = Field({}, description="Register a root directory as image dir:NAME; may be repeated.")
    packages: dict[str, str] = Field(
        {}, description="Register a virtual environment, or a directory of packages, as packages=NAME; may be repeated."
    )
    image_cache_bytes: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Bytes that images of registries may take; after a pull the longest unused go (default: all stay)."
    )
    registry_mirror: dict[str, tuple[str, ...]] = Field(
        {},
        description="Host that images of a registry are looked for at first, such as docker.io=mirror.example.org; may be "
        "repeated.",
    )
    warm: dict[str, Annotated[int, Field(ge=1, le=1000)]] = Field(
        {}, description="Keep sandboxes of an image ready, such as python:3.12=32; may be repeated."
    )
    secrets_dir: str | None = Field(None, description="Directory whose files are the secrets of store `file`.")
    max_detached_lifetime: Seconds = Field(86_400.0, description="Seconds that a detached sandbox may live.")
    max_sandboxes: Annotated[int, Field(ge=1)] | None = Field(
        None, description="How many sandboxes may live at once (default: by the machine's memory and limits)."
    )
    max_queued_sandboxes: Annotated[int, Field(ge=0)] = Field(
        10_000, description="How many sandboxes of one client may wait for a place; further ones are refused for the moment."
    )
    run_code_concurrency: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="How many programs of /run_code and /execute_batch run at once (default: 2 a core, 8 at least).",
    )
    lease: Seconds = Field(60.0, description="Seconds without a heartbeat after which a TCP client's sandboxes end.")
    orphan_timeout: Seconds = Field(600.0, description="Seconds without a server after which a sandbox ends itself.")
    idle_exit: Seconds | None = Field(
        None, description="Exit after so many seconds without sandboxes, leases and connections (embedded: 60)."
    )
    sandbox_uid_base: Annotated[int, Field(ge=1, lt=2**32 - 65_536)] | None = Field(
        None, description="First host uid for sandboxes, when run by root."
    )
    socket_fd: Annotated[int, Field(ge=3)] | None = Field(
        None, description="Descriptor of a listening Unix socket to use, as systemd hands it over."
    )
    egress_allow_cidr: tuple[str, ...] = Field(
        (),
        description="Network that sandboxes with egress may reach although it is private, such as 10.0.0.0/8; may be repeated.",
    )
    record_retention: Seconds = Field(86_400.0, description="Seconds that ended sandboxes stay on record.")

    def source(self, name: str) -> str:
        """Where a setting was given: its flag, its variable, or its name in the settings file; its flag where it was not."""
        return self._sources.get(name, _flag(name))

    @field_validator("backend")
    @classmethod
    def _known(cls, value: str) -> str:
        if not is_known(value):
            known = ", ".join(map(repr, sorted(BACKENDS)))
            raise ValueError(f"there is no such backend; there are {known}, or MODULE:CLASS")
        return value

    @field_validator("state_dir")
    @classmethod
    def _absolute_state(cls, value: str | None) -> str | None:
        if value is not None and not os.path.isabs(value):
            raise ValueError("it must be an absolute path")
        return value

    @field_validator("egress_allow_cidr", "allowed_host", "wandb_entity", "kubernetes_pull_secret", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        """The variable has them with commas between."""
        given = [value] if isinstance(value, str) else value
        return [part.strip() for item in given for part in str(item).split(",") if part.strip()] if _is_list(given) else value

    @field_validator("egress_allow_cidr")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(str, networks(value)))

    @field_validator("allowed_host")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            try:
                named = hosts.pattern(text)
            except ValueError as error:
                raise ValueError(f"{text!r} {error}") from None
            if named.port is not None:
                raise ValueError(f"{text!r} names a port; clients may come by any")
        return value

    @field_validator("wandb_entity")
    @classmethod
    def _entities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if ENTITY.fullmatch(text) is None:
                raise ValueError(f"{text!r} is no name of a W&B entity")
        return value

    @field_validator("image", "packages", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        """`NAME=DIR` items, as flags and the variable have them, into a table."""
        if isinstance(value, str):
            value = [item for item in value.split(",") if item]
        if not isinstance(value, (list, tuple)):
            return value
        table: dict[str, str] = {}
        for item in value:
            name, equals, directory = str(item).partition("=")
            if not equals or not name or not directory:
                raise ValueError(f"{item!r} is not NAME=DIR")
            table[name] = directory
        return table

    @field_validator("warm", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        """`IMAGE=N` items, as flags and the variable have them, into a table."""
        if isinstance(value, str):
            value = [item.strip() for item in value.split(",") if item.strip()]
        if not isinstance(value, (list, tuple)):
            return value
        table: dict[str, str] = {}
        for item in value:
            image, _, number = str(item).rpartition("=")
            if not image or not number.isdecimal():
                raise ValueError(f"{item!r} is not IMAGE=N, such as python:3.12=32")
            table[image] = number
        return table

    @field_validator("registry_mirror", mode="before")
    @classmethod
    def _mirrors(cls, value: Any) -> Any:
        """`HOST=HOST2` items, as flags and the variable have them, into a table; a file may name one without a list."""
        if isinstance(value, str):
            value = [item.strip() for item in value.split(",") if item.strip()]
        if isinstance(value, dict):
            return {registry: [found] if isinstance(found, str) else found for registry, found in value.items()}
        if not isinstance(value, (list, tuple)):
            return value
        table: dict[str, list[str]] = {}
        for item in value:
            registry, equals, mirror = str(item).partition("=")
            if not equals or not registry or not mirror:
                raise ValueError(f"{item!r} is not HOST=HOST2, such as docker.io=mirror.example.org")
            table.setdefault(registry, []).append(mirror)
        return table

    @field_validator("registry_mirror")
    @classmethod
    def _mirrored(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        table: dict[str, tuple[str, ...]] = {}
        for host, mirrors in value.items():
            registry = _registry(host)
            for mirror in mirrors:
                if not _is_mirror(mirror):
                    raise ValueError(
                        f"the mirror {mirror!r} is none: HOST[:PORT][/PATH], spoken to by https, or localhost by http://"
                    )
            table[registry] = (*table.get(registry, ()), *mirrors)
        return table

    @field_validator("secrets_dir")
    @classmethod
    def _absolute_directory(cls, value: str | None) -> str | None:
        if value is not None and not os.path.isabs(value):
            raise ValueError(f"must be absolute, got {value!r}")
        return value

    @field_validator("image", "packages")
    @classmethod
    def _absolute(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for name, directory in value.items():
            if not os.path.isabs(directory):
                raise ValueError(f"the directory of {info.field_name} {name!r} must be absolute, got {directory!r}")
        return value

    @field_validator("packages")
    @classmethod
    def _names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if "/" in name:
                raise ValueError(f"{name!r} cannot be a name: it would be taken for a path")
        return value


def _registry(host: str) -> str:
    """A registry as full references name it.

    Raises:
        ValueError: it is no host of one.
    """
    from aviato.server.images.oci_reference import parse_oci_reference

    try:
        found = parse_oci_reference(f"{host}/any").registry
    except SandboxImageError:
        found = ""
    if "/" in host or found not in (host.lower(), "docker.io") or (found == "docker.io" and not host.endswith("docker.io")):
        raise ValueError(f"{host!r} is no host of a registry, such as docker.io or registry.example.org:5000")
    return found


def _is_mirror(mirror: str) -> bool:
    from aviato.server.images.registry_requests import is_allowed

    return is_allowed(mirror if "://" in mirror else f"https://{mirror}") and not set("@?#") & set(mirror)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def load(flags: Mapping[str, Any], environment: Mapping[str, str], *, embedded: bool = False) -> ServerSettings:
    """Join the sources: flag, then environment, then file, then default.

    Args:
        flags: by field name; None or an empty tuple means not given. `settings_file` names the TOML file.
        environment: its `AVIATO_…` variables are read.
        embedded: leave out what only `aviato serve` knows.

    Raises:
        AviatoValidationError: a setting is wrong or unknown; the message names it and its source.
    """
    flags = {name: value for name, value in flags.items() if value is not None and value != ()}
    asked = flags.pop("settings_file", None)
    path = asked or environment.get("AVIATO_SETTINGS_FILE")
    variables = {
        name: environment[key]
        for name in ServerSettings.model_fields
        if name not in _CLIENTS_OWN and (key := f"AVIATO_{name.upper()}") in environment
    }
    if variables.get("state_dir") == "":  # as the client reads it
        del variables["state_dir"]
    in_file = _read_file(path, "--settings-file" if asked else "AVIATO_SETTINGS_FILE") if path else {}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    named: tuple[tuple[Mapping[str, Any], Callable[[str], str]], ...] = (
        (in_file, lambda name: f"{name} in {path!r}"),
        (variables, lambda name: f"AVIATO_{name.upper()}"),
        (flags, _flag),
    )
    for given, source in named:
        for name, value in given.items():
            if not (embedded and name in SERVE_ONLY):
                values[name], sources[name] = value, source(name)
    try:
        settings = ServerSettings.model_validate(values)
    except ValidationError as error:
        raise _wrong(error, values, sources) from None
    settings._sources.update(sources)
    return settings


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _wrong(error: ValidationError, values: Mapping[str, Any], sources: Mapping[str, str]) -> AviatoValidationError:
    """What is wrong with each setting, by the name that its giver knows."""
    import difflib

    texts, violations = [], {}
    for item in error.errors():
        name = str(item["loc"][0])
        message = item["msg"].removeprefix("Value error, ").replace("Input should be", "it must be").split(", unable to")[0]
        if item["type"] == "extra_forbidden":
            meant = difflib.get_close_matches(name, ServerSettings.model_fields, 1)
            message = f"there is no such setting{f'; did you mean {meant[0]}?' if meant else ''}"
        violations[".".join(map(str, item["loc"]))] = message
        given = values.get(name)
        shown = ",".join(map(str, given)) if isinstance(given, (list, tuple)) else given
        texts.append(f"{sources.get(name, name)} is {shown!r}: {message}")
    return AviatoValidationError("; ".join(texts), field_violations=violations)


def _read_file(path: str, said: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise AviatoValidationError(f"{said} is {path!r}: the file cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AviatoValidationError(f"{said} is {path!r}: the file is not TOML: {error}") from None
    return {key.replace("-", "_"): value for key, value in values.items()}
