"""The arguments of a sandbox, checked and merged with the defaults."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from aviato import defaults as checks
from aviato.defaults import SandboxDefaults
from aviato.exceptions import AviatoValidationError
from aviato.options import SandboxStatus
from aviato.values.parameters import check_names
from aviato.values.representation import address
from aviato.values.text import encode, is_unicode
from aviato.wire import bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.calls.recipe import Recipe
    from aviato.options import NetworkOptions, ResourceOptions, Secret

BUILT_IN = SandboxDefaults()


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Which server, and how patient: picklable, and without a key."""

    base_url: str
    request_timeout_seconds: float = 60.0
    reconnect_timeout_seconds: float = 60.0

    @property
    def server(self) -> str:
        """The server in words."""
        return "the embedded server" if self.base_url.startswith("embedded:") else address(self.base_url)


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """Everything that makes a sandbox what it is, as a pickle carries it.

    Attributes:
        create: fields of the create request, for a sandbox that this client makes; None for one that exists.
        exec_timeout_seconds: for commands that do not state their own.
        recipe: of an image that is built first.
    """

    connection: Connection
    create: dict[str, Any] | None = None
    exec_timeout_seconds: float = 300.0
    recipe: Recipe | None = None


def connection(
    defaults: SandboxDefaults | None, base_url: str | None = None, request_timeout_seconds: float | None = None
) -> Connection:
    """The connection that a call means.

    Raises:
        AviatoValidationError: a base URL or duration that cannot be used.
    """
    from aviato.transport.resolution import choose

    chosen = _defaults(defaults)
    request = chosen.request_timeout_seconds
    if request_timeout_seconds is not None:
        request = checks.seconds("request_timeout_seconds", request_timeout_seconds)
    return Connection(
        base_url=choose(base_url, chosen.base_url),
        request_timeout_seconds=request,
        reconnect_timeout_seconds=chosen.reconnect_timeout_seconds,
    )


class RunOptions(TypedDict, total=False):
    """The parameters of `Sandbox` but its command, for `Sandbox.run`."""

    args: Sequence[str] | None
    defaults: SandboxDefaults | None
    container_image: str | Recipe | None
    packages: str | os.PathLike[str] | None
    tags: Sequence[str] | None
    base_url: str | None
    exec_timeout_seconds: float | None
    request_timeout_seconds: float | None
    max_lifetime_seconds: float | None
    idle_timeout_seconds: float | None
    resources: ResourceOptions | Mapping[str, Any] | None
    strict_limits: bool
    mounted_files: Sequence[Mapping[str, Any]] | None
    ports: Sequence[int] | None
    network: NetworkOptions | None
    secrets: Sequence[Secret] | None
    environment_variables: Mapping[str, str] | None
    working_dir: str | None
    annotations: Mapping[str, str] | None
    detached: bool
    runtime: str | None
    runway_ids: Sequence[str] | None
    tower_ids: Sequence[str] | None


class SandboxOptions(RunOptions, total=False):
    """The parameters of `Sandbox`, for the calls that pass them on."""

    command: str | None


_LATER = ("runtime",)


def config(options: SandboxOptions, *, releasable: bool = False) -> SandboxConfig:
    """The configuration of a sandbox.

    Args:
        options: as the caller gave them.
        releasable: made by a session, so it may be ended under pressure once the caller has let it go.

    Raises:
        TypeError, AviatoValidationError: an argument that cannot be meant, or whose feature is not there yet; it is named.
    """
    check_names("a sandbox", options, SandboxOptions.__optional_keys__)
    for name in _LATER:
        checks.refuse_later(name, options.get(name))
    chosen = _defaults(options.get("defaults"))
    detached = bool(options.get("detached", False))
    create: dict[str, Any] = {
        "detached": detached,
        "releasable": releasable and not detached,
        "image": _image(options.get("container_image"), chosen),
        "image_fallback": _image_fallback(),
        "environment_variables": chosen.merge_environment_variables(options.get("environment_variables")),
        "tags": chosen.merge_tags(options.get("tags")),
        "annotations": _annotations(options.get("annotations")),
        **_packages(options.get("packages"), chosen),
        **_main_command(options.get("command"), options.get("args"), chosen),
    }
    if files := options.get("mounted_files"):
        create["mounted_files"] = _mounted_files(files)
    if exposed := _ports(options.get("ports"), options.get("network"), chosen):
        create["ports"] = exposed
    if (egress := _egress(options.get("network"), chosen)) is not None:
        create["egress_mode"] = egress
    for name in ("runway_ids", "tower_ids"):
        placed: Any = options.get(name)
        placed = getattr(chosen, name) if placed is None else checks.texts(name, placed)
        if placed:
            create[name] = placed
    _check_fits(create, options.get("working_dir"))
    create |= _resources(options.get("resources"), chosen)
    create |= _secrets(options.get("secrets"), chosen, create["environment_variables"])
    if options.get("strict_limits"):
        create["strict_limits"] = True
    if (working_dir := options.get("working_dir")) is not None:
        create["working_dir"] = checks.absolute("working_dir", working_dir)
    lifetime = options.get("max_lifetime_seconds")
    limits = {
        "max_lifetime_seconds": chosen.max_lifetime_seconds if lifetime is None else lifetime,
        "idle_timeout_seconds": options.get("idle_timeout_seconds"),
    }
    for name, limit in limits.items():
        if limit is not None and not math.isinf(checks.seconds(name, limit)):
            create[name] = float(limit)
    timeout = chosen.exec_timeout_seconds
    if (given := options.get("exec_timeout_seconds")) is not None:
        timeout = checks.seconds("exec_timeout_seconds", given)
    where = connection(chosen, options.get("base_url"), options.get("request_timeout_seconds"))
    image = options.get("container_image")  # What is no name is a recipe: `_image` has seen to that.
    recipe = None if image is None or isinstance(image, str) else image
    return SandboxConfig(connection=where, create=create, exec_timeout_seconds=timeout, recipe=recipe)


_INSTEAD = "; write what is large to a file, by mounted_files= or write_file()"


def _check_fits(create: dict[str, Any], working_dir: Any) -> None:
    """Refuse what no sandbox can be made with, by the name of the parameter."""
    words = [create["command"], *create["args"]] if "command" in create else []
    if len(create["tags"]) > bounds.TAGS:
        raise _wrong("tags", f"are {len(create['tags'])}; a sandbox can have at most {bounds.TAGS}")
    for name, why in (
        ("environment_variables", bounds.too_many_variables(create["environment_variables"])),
        ("args", bounds.too_many_arguments(words)),
        ("annotations", bounds.too_many_annotations(create["annotations"])),
    ):
        if why is not None:
            raise _wrong(name, f"{why}{_INSTEAD}")
    if isinstance(working_dir, str) and (why := bounds.too_long_path(working_dir)) is not None:
        raise _wrong("working_dir", why)


def statuses(value: SandboxStatus | str | Iterable[SandboxStatus | str] | None) -> tuple[SandboxStatus, ...]:
    """One status or several, as members or names.

    Raises:
        AviatoValidationError: an unknown name; the message lists the valid ones.
    """
    if value is None:
        return ()
    items = (value,) if isinstance(value, str) else tuple(value)
    try:
        return tuple(SandboxStatus(item) for item in items)
    except ValueError as error:
        valid = ", ".join(str(member) for member in SandboxStatus)
        raise AviatoValidationError(f"{error}; valid are {valid}", field_violations={"status": "unknown"}) from None


def _defaults(defaults: SandboxDefaults | None) -> SandboxDefaults:
    if defaults is None:
        return BUILT_IN
    if not isinstance(defaults, SandboxDefaults):
        raise TypeError(f"defaults must be a SandboxDefaults, not {type(defaults).__name__}")
    return defaults


def _image(given: str | Recipe | None, defaults: SandboxDefaults) -> str | None:
    """None, the server's choice, unless somebody asked for an image."""
    if given is None:
        return defaults.container_image if defaults.given("container_image") else None
    if not isinstance(given, str):
        from aviato.calls.recipe import Recipe

        if isinstance(given, Recipe):
            return given.stand_in
        raise TypeError(f"container_image must be a str or an Image, not {type(given).__name__}")
    if not given:
        raise AviatoValidationError("container_image must not be empty", field_violations={"container_image": "empty"})
    if len(given) > bounds.IMAGE_CHARACTERS:
        raise _wrong(
            "container_image", f"has {len(given)} characters; the name of an image has at most {bounds.IMAGE_CHARACTERS}"
        )
    return checks.reference_from_here(checks.text("container_image", given))


def _packages(given: str | os.PathLike[str] | None, defaults: SandboxDefaults) -> dict[str, Any]:
    found = checks.packages(defaults.packages if given is None else given)
    return {} if found is None else {"packages": found}


def _image_fallback() -> str | None:
    value = os.environ.get("AVIATO_IMAGE_FALLBACK") or None
    if value not in (None, "nearest"):
        raise AviatoValidationError(f"AVIATO_IMAGE_FALLBACK is {value!r}; the only value it has is 'nearest'")
    return value


def _main_command(command: str | None, args: Sequence[str] | None, defaults: SandboxDefaults) -> dict[str, Any]:
    if command is None:
        command = defaults.command
        args = defaults.args if args is None else args
    elif not isinstance(command, str):
        raise TypeError(f"command must be the program as a str, and args its list, not {type(command).__name__}")
    arguments = checks.texts("args", args or ())
    if command is None:
        if arguments:
            raise AviatoValidationError("args= needs command=, the program", field_violations={"args": "without command"})
        return {}
    if not command or "\0" in command:
        raise AviatoValidationError("command must be the name of a program", field_violations={"command": "no program"})
    checks.text("command", command)
    return {"command": command, "args": arguments}


def _mounted_files(value: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """As the wire has them: contents in base64."""
    from base64 import b64encode

    from aviato.wire.mounts import check_mounts

    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"mounted_files must be a list, not {type(value).__name__}")
    found, sizes = [], []
    for item in value:
        if not isinstance(item, Mapping) or set(item) != {"mount_path", "file_content"}:
            shown = sorted(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
            raise TypeError(f"each of mounted_files is a dict of 'mount_path' and 'file_content', got {shown}")
        path, content = item["mount_path"], item["file_content"]
        if not isinstance(path, str):
            raise TypeError(f"mount_path must be a str, not {type(path).__name__}")
        if not isinstance(content, (str, bytes, bytearray)):
            raise TypeError(f"file_content of {path!r} must be str or bytes, not {type(content).__name__}")
        if not is_unicode(path):
            raise _no_text("mount_path", path)
        data = encode(content) if isinstance(content, str) else bytes(content)
        found.append({"mount_path": path, "file_content": b64encode(data).decode()})
        sizes.append((path, len(data)))
    check_mounts(sizes)
    return found


def _resources(given: Any, defaults: SandboxDefaults) -> dict[str, Any]:
    """The tables of the call and of the defaults as one; what the call names, it means whole."""
    from aviato.options import ResourceOptions

    call, usual = checks.resources(given), checks.resources(defaults.resources)
    named = {*call.requests, *call.limits}
    merged = ResourceOptions(
        requests={**{name: value for name, value in usual.requests.items() if name not in named}, **call.requests},
        limits={**{name: value for name, value in usual.limits.items() if name not in named}, **call.limits},
    )
    requests, limits = merged.amounts()
    return {"resources": {"requests": requests, "limits": limits}} if requests or limits else {}


def _ports(given: Sequence[int] | None, network: Any, defaults: SandboxDefaults) -> list[int]:
    network = checks.network(defaults.network if network is None else network)
    found = checks.ports("ports", given)
    if network is None:
        return found
    if found and network.ingress_mode == "none":
        why = 'ports= exposes ports, and the ingress_mode of network= is "none"; leave one of them out'
        raise AviatoValidationError(why, field_violations={"ports": "ingress_mode is none"})
    both = list(dict.fromkeys([*found, *network.exposed_ports]))
    return checks.ports("ports", both)


def _egress(given: Any, defaults: SandboxDefaults) -> str | list[str] | None:
    network = checks.network(defaults.network if given is None else given)
    mode = None if network is None else network.egress_mode
    return mode if mode is None or isinstance(mode, str) else list(mode)


def _secrets(given: Sequence[Secret] | None, defaults: SandboxDefaults, variables: Mapping[str, str]) -> dict[str, Any]:
    """Their names only: a configuration is pickled."""
    found = defaults.merge_secrets(given)
    for secret in found:
        if secret.env_var in variables:
            why = f"secrets= and environment_variables= both set {secret.env_var}; leave one of them out"
            raise AviatoValidationError(why, field_violations={"secrets": f"{secret.env_var} is set twice"})
    named = [{"store": secret.store, "name": secret.name, "env_var": secret.env_var} for secret in found]
    return {"secrets": named} if named else {}


def _annotations(value: Mapping[str, str] | None) -> dict[str, str]:
    found = dict(value or {})
    for name, text in found.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"annotations must be str to str, got {name!r}: {text!r}")
        if not is_unicode(name + text):
            raise _no_text("annotations", name + text)
    return found


def _wrong(name: str, why: str) -> AviatoValidationError:
    return AviatoValidationError(f"{name} {why}", field_violations={name: why})


def _no_text(name: str, value: str) -> AviatoValidationError:
    why = f"must be text, and {ascii(value)[:100]} has a lone surrogate, which is no character"
    return AviatoValidationError(f"{name} {why}", field_violations={name: why})
