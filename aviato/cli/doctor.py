"""`aviato doctor`: what this machine gives, found by trying, and the line that repairs what is missing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from aviato.cli import common
from aviato.exceptions import AviatoError
from aviato.system import process_limits

if TYPE_CHECKING:
    from aviato.server.backends.base import Backend, Check
    from aviato.server.settings import ServerSettings


@click.command(name="doctor")
@click.option("--plan", is_flag=True, help="Print the steps that confine a sandbox, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, plan: bool, as_json: bool) -> None:
    """Say what isolation and which limits this machine gives, and how strong each is.

    The exit status is 0 if sandboxes can run here, else 1. A line that begins with `!` is something to know that keeps no
    sandbox from running.
    """
    try:
        checks, steps = asyncio.run(_look(plan)) if os.path.exists("/proc/self") else (_without_proc(), [])
    except AviatoError as error:
        click.echo(f"aviato: {common.printable(str(error))}", err=True)
        sys.exit(common.FAILED)
    works = all(check.ok for check in checks if check.required)
    if as_json:
        click.echo(json.dumps({"ok": works, "checks": [asdict(check) for check in checks], "plan": steps}, indent=2))
    else:
        _print(checks, steps, works)
    sys.exit(0 if works else 1)


async def _look(plan: bool) -> tuple[list[Check], list[str]]:
    from aviato.server.configured_backend import configured_backend
    from aviato.server.settings import load
    from aviato.server.state_dir import StateDirectory, make_directory, state_directory

    if limits := _limits():
        return limits, []  # Nothing else can be looked at.
    settings = load({}, os.environ)
    folder = StateDirectory(os.path.join(state_directory(settings.state_dir), f"doctor-{os.getpid()}"))
    make_directory(folder.path)
    try:
        folder.make()
        backend = configured_backend(settings, folder, embedded=True)
        checks = [*await backend.probe(), _egress(backend, settings)]
        return checks, _steps(backend) if plan else []
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)


def _limits() -> list[Check]:
    """What this process has too little of for a server, if there is anything."""
    from aviato.server.backends.base import Check

    detail, _, remedy = (process_limits.too_low() or "").partition(": run")
    return [Check(name="process limits", ok=False, detail=detail, remedy=remedy.lstrip())] if detail else []


def _without_proc() -> list[Check]:
    """Nothing else can be looked at."""
    from aviato.server.backends.base import Check

    return [Check(name="own /proc", ok=False, detail="no /proc is mounted here", remedy="sudo mount -t proc proc /proc")]


def _egress(backend: Backend, settings: ServerSettings) -> Check:
    """The way to the network: who resolves names, and what is reachable beyond public addresses."""
    from aviato.server.backends.base import Check
    from aviato.server.backends.capabilities import Capability, lacks

    name = "network egress"
    if Capability.EGRESS not in backend.capabilities:
        return Check(name=name, ok=False, detail=lacks(backend.name, Capability.EGRESS), required=False)
    detail = "none unless a sandbox asks for it, then HTTP and HTTPS by the server's proxy"
    if settings.egress_allow_cidr:
        detail += f", also to {', '.join(settings.egress_allow_cidr)}"
    try:
        with open("/etc/resolv.conf") as file:
            servers = [line for line in file if line.startswith("nameserver")]
    except OSError:
        servers = []
    if servers:
        return Check(name=name, ok=True, detail=detail, required=False)
    detail += "; /etc/resolv.conf names no server, so that only names of /etc/hosts have addresses"
    return Check(name=name, ok=False, detail=detail, required=False)


def _steps(backend: Backend) -> list[str]:
    from aviato.server.backends.local.backend import LocalBackend

    if not isinstance(backend, LocalBackend):
        raise AviatoError(f"the backend {backend.name!r} has no plan to show")
    return backend.describe_plan(backend.resolve_image(None))


def _print(checks: list[Check], steps: list[str], works: bool) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        sign = "✓" if check.ok else "✗" if check.required else "!"
        click.echo(f"{sign} {check.name.ljust(width)}  {common.printable(check.detail)}")
        if check.remedy is not None and not check.ok:
            click.echo(f"  {' ' * width}  repair: {common.printable(check.remedy)}")
    if steps:
        click.echo("\nA sandbox takes these steps:")
        for number, step in enumerate(steps, 1):
            click.echo(f"{number:3}. {common.printable(step)}")
    click.echo("\nSandboxes can run here." if works else "\nSandboxes cannot run here until the lines with ✗ are repaired.")
