"""Options of the verbs that run a program, which mean what docker's of the same name mean. Each is named as the API has it."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any

import click

from aviato.cli import numbers
from aviato.exceptions import AviatoValidationError
from aviato.options import NetworkOptions
from aviato.values.quantities import amount
from aviato.values.suggestions import meant

if TYPE_CHECKING:
    from collections.abc import Callable

    Decorated = Callable[..., Any]

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgtp]?)i?b?", re.ASCII | re.IGNORECASE)
_POWERS = {letter: power for power, letter in enumerate(("", "k", "m", "g", "t", "p"))}
_PORT = re.compile(r"(?:(?:(?:127\.0\.0\.1|localhost|\[::1\]):)?0?:)?(\d{1,5})(?:/tcp)?", re.ASCII | re.IGNORECASE)
_MODES = ("none", "internet")
FILE_BYTES = 8 << 20
"""Of the files of -v together, as the API has it."""


def _variables(_: click.Context, __: click.Parameter, items: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` for the value that it has here, if any."""
    found = {}
    for item in items:
        # `-e=NAME=VALUE` is written too.
        name, equals, value = (item.removeprefix("=") if item.count("=") > 1 else item).partition("=")
        if not name:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE")
        if equals or name in os.environ:
            found[name] = value if equals else os.environ[name]
    return found


def _variable_files(context: click.Context, parameter: click.Parameter, paths: tuple[str, ...]) -> dict[str, str]:
    """A variable a line, as `_variables` has it, without quotes; `#` begins a comment."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8-sig") as file:
                lines = [line.rstrip("\r\n").lstrip() for line in file]
        except OSError as error:
            raise click.BadParameter(f"{path!r} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise click.BadParameter(f"{path!r} is no text in UTF-8") from None
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            name = line.partition("=")[0]
            if not name or any(character.isspace() for character in name):
                raise click.BadParameter(f"{path!r}, line {number}: {name!r} is not the name of a variable")
            found |= _variables(context, parameter, (line,))
    return found


def _volumes(_: click.Context, __: click.Parameter, items: tuple[str, ...]) -> list[dict[str, Any]]:
    """`FILE:PATH:ro`: a file of this machine that code inside can only read."""
    found = []
    for item in items:
        parts = item.removeprefix("=").split(":")
        local, path = parts[0], parts[1] if len(parts) > 1 else ""
        if len(parts) > 3 or not local or not path.startswith("/"):
            raise click.BadParameter(f"{item!r} is not FILE:PATH:ro, where PATH is absolute inside the sandbox")
        into = f"tar -cC {local} . | aviato run -i -- sh -c 'mkdir -p {path} && tar -xC {path} && …'"
        if os.path.isdir(local):
            raise click.BadParameter(f"{local!r} is a directory, and only files can be mounted; copy it: {into}")
        if parts[2:] != ["ro"]:
            raise click.BadParameter(f"{item!r}: code inside writes to no file of this machine; give {local}:{path}:ro")
        found.append({"mount_path": path, "file_content": _content(local)})
    return found


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise click.BadParameter(f"{path!r} is no regular file")
            content = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise click.BadParameter(f"{path!r} cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES:
        raise click.BadParameter(f"{path!r} is longer than 8 MiB; pass it as standard input, with -i")
    return content


def _ports(_: click.Context, __: click.Parameter, items: tuple[str, ...]) -> list[int]:
    """`PORT` of the sandbox; the server chooses the one of the machine."""
    found = []
    for item in items:
        match = _PORT.fullmatch(item.removeprefix("="))
        inside = item.rpartition(":")[2].partition("/")[0]
        if match is None and item.lower().endswith(("/udp", "/sctp")):
            raise click.BadParameter(f"{item!r}: only TCP is carried; give {inside}")
        if match is None and inside.isdigit():
            why = f"{item!r}: the server chooses the port of the machine, on its own address, and prints it; give {inside}"
            raise click.BadParameter(why)
        if match is None or not 1 <= int(match[1]) <= 65535:
            raise click.BadParameter(f"{item!r} is no port from 1 to 65535")
        if int(match[1]) not in found:
            found.append(int(match[1]))
    return found


def _network(_: click.Context, __: click.Parameter, value: str | None) -> NetworkOptions | None:
    """`none`, `internet`, or the hosts that may be reached."""
    if value is None:
        return None
    if value in _MODES:
        return NetworkOptions(egress_mode=value)
    if value in ("bridge", "default", "host", "nat") or value.startswith("container:"):
        raise click.BadParameter(f"{value!r} is not available: a sandbox reaches others by the server's proxy; give internet")
    hosts = [item for item in value.split(",") if item]
    for host in hosts:
        if host in _MODES:
            raise click.BadParameter(f"{host!r} stands alone: give {host}, or the hosts")
        if "." not in host and ":" not in host:
            raise click.BadParameter(f"{host!r} is neither none nor internet nor a HOST{meant(host, _MODES)}")
    try:
        return NetworkOptions(egress_mode=hosts)
    except AviatoValidationError as error:
        raise click.BadParameter(str(error).removeprefix("egress_mode ")) from None


def _memory(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Docker's sizes: `512m`, `2g`, `1.5g`, powers of 1024; 0 is the default."""
    if value is None:
        return None
    match = _SIZE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no size such as 512m or 2g")
    size = int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])
    return int(_resource("memory", size)) if size else None


def _cpus(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    return _resource("cpu", value) if value else None


def _processes(_: click.Context, __: click.Parameter, value: int | None) -> float | None:
    return None if value is None else _resource("processes", value)


def _resource(name: str, value: float) -> float:
    try:
        return amount(name, value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


timeout = click.option(
    "--timeout",
    "timeout_seconds",
    type=numbers.LIMIT_SECONDS,
    metavar="S",
    help="Kill the command after so many seconds. [300]",
)
interactive = click.option("-i", "--interactive", is_flag=True, help="Pass standard input on to the command.")
tty = click.option("-t", "--tty", is_flag=True, help="With -i: give the command a terminal, which this one shows.")


def _user(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    from aviato import defaults
    from aviato.exceptions import AviatoValidationError

    try:
        return None if value is None else defaults.user("--user", value)
    except AviatoValidationError as error:
        raise click.UsageError(str(error)) from None


user = click.option(
    "-u",
    "--user",
    callback=_user,
    metavar="USER[:GROUP]",
    help="Who the command is, by names or numbers inside. [the image's user, or root]",
)
working_dir = click.option("-w", "--workdir", "working_dir", metavar="DIR", help="Directory in which the command starts.")


def environment(function: Decorated) -> Decorated:
    """Variables: `environment_variables` and `env_file`, to be read by `variables`."""
    text = "Environment variable of the command; NAME alone has its value here."
    names = ("-e", "--env", "environment_variables")
    function = click.option(*names, multiple=True, metavar="NAME=VALUE", callback=_variables, help=text)(function)
    text = "File of NAME=VALUE lines; -e goes before it."
    return click.option("--env-file", multiple=True, metavar="FILE", callback=_variable_files, help=text)(function)


network = click.option(
    "--network", "--net", metavar="NAME", callback=_network, help="What it may reach: none, internet or HOST,…. [none]"
)


def new_sandbox(function: Decorated) -> Decorated:
    """Options of a sandbox that is made, to be read by `sandbox_options`."""
    options = [
        click.option("--image", "container_image", metavar="IMAGE", help="host, python:3.N or dir:PATH. [of the server]"),
        click.option("--tag", "tags", metavar="TAG", multiple=True, help="Tag of the sandbox; may be repeated."),
        click.option(
            "--lifetime", "max_lifetime_seconds", type=numbers.LIMIT_SECONDS, metavar="S",
            help="End the sandbox after so many seconds.",
        ),
        click.option("-m", "--memory", callback=_memory, metavar="SIZE", help="Limit of memory: 512m, 2g."),
        click.option("--cpus", type=numbers.PROCESSORS, callback=_cpus, metavar="N", help="Limit of processors: 1.5."),
        click.option("--pids-limit", type=numbers.COUNT, callback=_processes, metavar="N", help="Limit of processes."),
        network,
        click.option(
            "-p", "--publish", "ports", metavar="PORT", multiple=True, callback=_ports,
            help="Let this machine connect to a port inside; its URL is printed.",
        ),
        click.option(
            "-v", "--volume", "mounted_files", metavar="FILE:PATH:ro", multiple=True, callback=_volumes,
            help="A file that code inside can only read.",
        ),
        click.option("--rm", "removed", is_flag=True, help="Nothing is left of a sandbox that ends: this is always so."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def variables(given: dict[str, Any]) -> dict[str, str]:
    """Take the variables out of a verb's options."""
    files: dict[str, str] = given.pop("env_file")
    return {**files, **given.pop("environment_variables")}


def sandbox_options(given: dict[str, Any]) -> dict[str, Any]:
    """Take what a new sandbox is made with out of a verb's options, as the API names it; what was not given is not there."""
    given.pop("removed")
    limits = {"memory": given.pop("memory"), "cpu": given.pop("cpus"), "processes": given.pop("pids_limit")}
    names = ("container_image", "tags", "max_lifetime_seconds", "network", "ports", "mounted_files")
    options = {name: given.pop(name) for name in names} | {
        "resources": {name: value for name, value in limits.items() if value is not None},
        "environment_variables": variables(given),
        "working_dir": given.pop("working_dir"),
    }
    return {name: value for name, value in options.items() if value not in (None, (), [], {})}
