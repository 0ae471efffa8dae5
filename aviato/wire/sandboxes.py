"""Sandboxes on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from aviato.options import MAX_SECRETS, SECRET_NAME, SECRET_VARIABLE, SandboxStatus
from aviato.values import hosts
from aviato.wire import bounds
from aviato.wire.base import RequestModel, ResponseModel, empty
from aviato.wire.ids import ID_PATTERN, SANDBOX_ID_PATTERN
from aviato.wire.images import ImagePull, ImageReference
from aviato.wire.resources import NO_RESOURCES, Resources

PoolId = Annotated[str, StringConstraints(pattern=f"^pl-{ID_PATTERN}$")]
SandboxId = Annotated[str, StringConstraints(pattern=f"^sb-{ID_PATTERN}$")]
NewSandboxId = Annotated[str, StringConstraints(pattern=f"^sb-{SANDBOX_ID_PATTERN}$")]
"""Those that begin with `z`, as that of no UUIDv7 does, are of places (`ids.new_place_id`)."""
ExecId = Annotated[str, StringConstraints(pattern=f"^ex-{ID_PATTERN}$")]
LeaseId = Annotated[str, StringConstraints(pattern=f"^ls-{ID_PATTERN}$")]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""Text that can be an argument, a path or an environment value: no NUL."""
Base64 = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]
Port = Annotated[int, Field(ge=1, le=65535)]
MAX_PORTS = 64
"""How many ports of one sandbox can be exposed."""
PORT_HOST = "127.0.0.1"
"""Where exposed ports are reached, whatever address the server's own API has: they carry no key."""
EnvironmentName = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00=]*$")]

StatusReason = Literal[
    "stopped", "exited", "lease_expired", "lifetime", "idle", "shutdown", "orphaned", "released", "start_failed",
    "image_pull_failed", "lost", "oom"
]  # fmt: skip
"""Why a sandbox ended: `exited` by its main command, `start_failed`, `image_pull_failed` and `lost` by infrastructure."""


def _host(text: str) -> str:
    try:
        return hosts.written(hosts.pattern(text))
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None


Host = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_host)]
"""A host of an allow-list: `example.org`, `*.example.org` or an address, each with `:port` or not."""
MAX_HOSTS = hosts.MAX_HOSTS


class MountedFile(RequestModel):
    """A file that code inside can only read; it is there before the main command starts."""

    mount_path: Text
    file_content: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]
    """In base64."""

    @property
    def size_bytes(self) -> int:
        """Of the content."""
        return len(self.file_content) // 4 * 3 - self.file_content[-2:].count("=")


MOST_WARMUP = 100


class SecretReference(RequestModel):
    """A secret by its name, and the environment variable that it is inside."""

    store: Literal["env", "file"]
    name: Annotated[str, StringConstraints(pattern=SECRET_NAME)]
    env_var: Annotated[str, StringConstraints(pattern=SECRET_VARIABLE)]


class CreateSandbox(RequestModel):
    """Body of `POST /v1/sandboxes`. A repeat with the same id and body joins the first; `lease_id` and `secret_values` do not
    count as body.
    """

    sandbox_id: NewSandboxId
    lease_id: LeaseId | None = None
    """The lease that holds the sandbox; required unless `detached`."""
    detached: bool = False
    releasable: bool = False
    """Made by a session, so it may be ended under pressure once the client has let it go."""
    image: Annotated[str, StringConstraints(max_length=bounds.IMAGE_CHARACTERS)] | None = None
    """None: the server's default."""
    image_fallback: Literal["nearest"] | None = None
    packages: Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=4096)] | None = None
    """Python packages that code inside can import: a name that the operator registered, or, for callers on the server's Unix
    socket, the path of a virtual environment or of a directory of packages on the server's machine."""
    command: Text | None = None
    args: list[Text] = empty(list)
    environment_variables: dict[EnvironmentName, Text] = empty(dict)
    working_dir: Text | None = None
    tags: Annotated[list[Tag], Field(max_length=bounds.TAGS)] = empty(list)
    annotations: dict[str, str] = empty(dict)
    max_lifetime_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    idle_timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """End it after so long without a command running or a call that reaches inside."""
    ports: Annotated[list[Port], Field(max_length=MAX_PORTS, json_schema_extra={"uniqueItems": True})] = empty(list)
    """Ports to expose, each once."""
    egress_mode: Literal["none", "internet"] | Annotated[list[Host], Field(min_length=1, max_length=MAX_HOSTS)] | None = None
    """What it may connect to, by the server's proxy; None is the server's default."""
    runway_ids: list[Text] = empty(list)
    """Where it may be placed; empty is anywhere."""
    tower_ids: list[Text] = empty(list)
    mounted_files: list[MountedFile] = empty(list)
    resources: Resources = Field(default_factory=lambda: NO_RESOURCES)
    warmup: Annotated[list[Annotated[list[Text], Field(min_length=1)]], Field(max_length=MOST_WARMUP)] = empty(list)
    """Commands that are run, one after the other, before it is said to run; one that fails fails its start. They have its
    environment, and no way to the network."""
    pool_id: PoolId | None = None
    """The pool from which it may be had ready; where that is dry, or is not known, it starts as any other."""
    strict_limits: bool = False
    """Refuse a limit of the processor too where it cannot be kept."""
    secrets: Annotated[list[SecretReference], Field(max_length=MAX_SECRETS)] = empty(list)
    """Each for a variable of its own."""
    secret_values: Annotated[dict[str, Text], Field(repr=False, max_length=MAX_SECRETS)] = empty(dict)
    """Values of those of store `env`, by their names: only an embedded server takes them, and never puts them on record."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        found = {
            "environment_variables": bounds.too_many_variables(self.environment_variables),
            "args": bounds.too_many_arguments([self.command or "", *self.args]),
            "annotations": bounds.too_many_annotations(self.annotations),
            "working_dir": bounds.too_long_path(self.working_dir or ""),
        }
        for name, why in found.items():
            if why is not None:
                raise ValueError(f"{name} {why}")
        return self


class QueueInfo(ResponseModel):
    """Where a pending sandbox waits for capacity."""

    position: int
    """1 is next."""
    live: int
    limit: int
    holders: dict[str, int] = {}
    """Who holds how many live sandboxes: `pid N` or `lease ls-…` or `detached` → count."""


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """One limit of a sandbox. No model: each sandbox has eight, and that of a client is held for as long as it lives."""

    value: float | None
    strength: Literal["hard", "watched", "none"]


class SandboxInfo(ResponseModel):
    """A sandbox as the server sees it. Times are seconds since the epoch."""

    sandbox_id: str
    status: SandboxStatus
    status_reason: str | None = None
    """Why it ended, a `StatusReason`; while it is pending `pulling`, if its image is on its way."""
    message: str | None = None
    """Why it failed, for people."""
    is_infrastructure: bool = False
    """Whether its end counts as an infrastructure failure."""
    status_updated_at: float
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    startup_seconds: float | None = None
    """From acceptance to running, queue included, by the server's monotonic clock."""
    was_ready: bool = False
    """Whether it was ready in a pool when it was asked for; a server that was started since does not know it."""
    image_pull: ImagePull | None = None
    """Of an image of a registry or a file. None: it has none of these, it waited for a pull that somebody else had begun, or a
    server that was started since does not know it."""
    returncode: int | None = None
    """Exit code of the main command."""
    detached: bool = False
    tags: list[str] = []
    annotations: dict[str, str] = {}
    image: str | None = None
    """The image in use, after substitution."""
    image_id: str | None = None
    """By which the image in use can be had, whatever its name means by now; None: by its name alone."""
    image_note: str | None = None
    """A substitution that the client logs once."""
    limits: dict[str, LimitInfo] = {}
    unkept_promises: list[str] = []
    """What the threat model promises and this sandbox's backend does not keep, each a name and a sentence."""
    root_path: str = ""
    """Of a sandbox without a root directory of its own, the folder that it has instead: `tmp` and `workspace` lie in it."""
    local_sockets: bool = True
    """Whether programs inside can connect to each other."""
    queue: QueueInfo | None = None
    runway_id: str | None = None
    tower_id: str | None = None
    tower_group_id: str | None = None
    ingress_mode: str = "none"
    egress_mode: str | list[str] = "none"
    """What it may connect to: `none`, `internet`, or the hosts of its allow-list."""
    exposed_ports: list[int] = []
    service_urls: dict[int, str] = {}
    """Where each exposed port is reached, from acceptance until the sandbox has ended."""


class PortInfo(ResponseModel):
    """Answer of `GET /v1/sandboxes/{id}/ports/{port}`."""

    port: int
    url: str
    listening: bool
    """Whether something inside takes connections."""


class SandboxPage(ResponseModel):
    """One page of a listing, oldest first."""

    sandboxes: list[SandboxInfo]
    next_cursor: str | None = None


MOST_RECEIVED = 1000
Received = Annotated[list[ExecId], Field(max_length=MOST_RECEIVED)]
"""Commands whose whole result has arrived: of the others it is kept for a time, for those who come back."""


class ResetSandbox(RequestModel):
    """Body of `PUT /v1/sandboxes/{sandbox_id}/resets/{reset_id}`. A repeat joins the first."""

    to: ImageReference | None = None
    """A snapshot, by its id or name; None: as it was just after its start."""
    secret_values: Annotated[dict[str, Text], Field(repr=False, max_length=MAX_SECRETS)] = empty(dict)
    """As of a create: values for an embedded server. Never put on record."""
    received: Received = []


class StopSandbox(RequestModel):
    """Body of `POST /v1/sandboxes/{id}/stop`; the answer comes when it has ended. Repeating is harmless."""

    graceful_shutdown_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    release: bool = False
    """Its client needs the place for another: end it as `released`, without a grace, and only if it was let go and nothing
    uses it. Otherwise the answer is how it is."""
    received: Received = []


class LeaseInfo(ResponseModel):
    """A lease. On a Unix socket it lives as long as the peer process; over TCP until `period_seconds` pass without a beat."""

    lease_id: str
    kind: Literal["process", "heartbeat"]
    period_seconds: float
    sandboxes: int | None = None
    """How many of its sandboxes this server has; servers before 0.1.0 do not say it."""


class Health(ResponseModel):
    """Answer of `GET /v1/health`."""

    status: Literal["ok"] = "ok"
    version: str
    wire_version: int
    pid: int
    backend: str
    capabilities: list[str] = []
    """What sandboxes can have here beyond commands and files; what is not named is refused."""
    live_sandboxes: int
    pending_sandboxes: int
    max_sandboxes: int


def service_url(address: int) -> str:
    """The URL of an exposed port, by its port on the server's machine."""
    return f"http://{PORT_HOST}:{address}"
