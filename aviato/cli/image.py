"""`aviato image`: the images of a server."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

import click

from aviato.cli import common, numbers
from aviato.cli.common import age, size
from aviato.cli.pulling import Pulling
from aviato.exceptions import AviatoValidationError, SandboxImageError
from aviato.values.text import line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aviato.aio.async_client import AsyncClient
    from aviato.results import ImageInfo

SHORT_ID = len("sha256:") + 12
as_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
refresh_option = click.option("--refresh", is_flag=True, help="Ask the registry although an image of that name is here.")


@click.group(name="image")
def command() -> None:
    """Pull images, and list and remove those that are here."""


@command.command(name="pull")
@common.base_url
@refresh_option
@as_json_option
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@common.coroutine
async def pull(images: tuple[str, ...], *, base_url: str | None, refresh: bool, as_json: bool) -> int:
    """Have images here, such as debian:12, by their references."""
    return await _pull(images, base_url, refresh, as_json)


@command.command(name="prefetch")
@common.base_url
@refresh_option
@as_json_option
@click.argument("file", type=click.File(encoding="utf-8", errors="surrogateescape"), metavar="FILE")
@common.coroutine
async def prefetch(file: Iterable[str], *, base_url: str | None, refresh: bool, as_json: bool) -> int:
    """Have all images here that a file names, one reference a line; - is standard input. # begins a comment."""
    lines = (text.strip() for text in file)
    images = [text for text in lines if text and not text.startswith("#")]
    return await _pull(images, base_url, refresh, as_json)


@command.command(name="import")
@common.base_url
@click.option("--name", metavar="NAME", help="What it is called from then on, such as mine:1. [oci:PATH, docker-archive:PATH]")
@as_json_option
@click.argument("path", type=click.Path(exists=True, resolve_path=True), metavar="PATH")
@common.coroutine
async def import_(path: str, *, base_url: str | None, name: str | None, as_json: bool) -> int:
    """Have an image here that is an OCI layout directory, or a tar that `docker save` wrote, of the server's machine."""

    async def work(client: AsyncClient, tell: Callable[[ImageInfo], None]) -> list[ImageInfo]:
        return [await client.import_image(path, name=name, on_progress=tell)]

    return await _shown(work, base_url, as_json)


@command.command(name="ls")
@common.base_url
@click.option("-q", "--quiet", is_flag=True, help="Ids only.")
@as_json_option
@common.coroutine
async def ls(*, base_url: str | None, quiet: bool, as_json: bool) -> int:
    """List images: those on their way first, then the newest."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        found = await client.images()
    if as_json:
        _print_json(found)
    elif quiet:
        for info in found:
            if info.image_id is not None:
                click.echo(line(info.image_id))
    else:
        rows: list[tuple[str, ...]] = [("IMAGE", "ID", "SIZE", "PULLED", "USED", "STATUS")]
        rows += [_row(info, name) for info in found for name in info.names or [info.reference]]
        common.table(rows)
    return 0


@command.command(name="inspect")
@common.base_url
@as_json_option
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@common.coroutine
async def inspect(images: tuple[str, ...], *, base_url: str | None, as_json: bool) -> int:
    """Show what is known of images that are here."""

    async def one(client: AsyncClient, reference: str) -> None:
        info = await client.inspect_image(reference)
        if as_json:
            _print_json([info])
            return
        known = {name: value for name, value in dataclasses.asdict(info).items() if value not in (None, [], {}, False)}
        for name in ("status", "phase", "done_bytes", "layers_done"):
            known.pop(name, None)
        for name, value in known.items():
            if isinstance(value, dict):
                value = [f"{key}={item}" for key, item in value.items()]
            for item in value if isinstance(value, list) else [value]:
                click.echo(f"{name}: {line(str(item))}")

    return await _each(images, base_url, one)


@command.command(name="rm")
@common.base_url
@click.option("-f", "--force", is_flag=True, help="Take its names away although sandboxes have it; a later prune removes it.")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@common.coroutine
async def rm(images: tuple[str, ...], *, base_url: str | None, force: bool) -> int:
    """Remove names of images, and an image with its last name or by its id; print what went."""

    async def one(client: AsyncClient, reference: str) -> None:
        for name in await client.remove_image(reference, force=force) or [reference]:
            click.echo(line(name))

    return await _each(images, base_url, one)


@command.command(name="prune")
@common.base_url
@click.option("--most-bytes", type=numbers.BYTES, default=0, metavar="N", help="Leave the newest, of so many bytes. [0]")
@click.option("--unused", type=numbers.SECONDS, default=0.0, metavar="S", help="Leave what was used in so many seconds. [0]")
@common.coroutine
async def prune(*, base_url: str | None, most_bytes: int, unused: float) -> int:
    """Remove images that no sandbox has and nobody has pinned, the longest unused first."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        freed = await client.prune_images(most_bytes=most_bytes, unused_seconds=unused)
    click.echo(f"{size(freed)} freed")
    return 0


@command.command(name="pin")
@common.base_url
@click.option("--off", is_flag=True, help="Let them be pruned again.")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@common.coroutine
async def pin(images: tuple[str, ...], *, base_url: str | None, off: bool) -> int:
    """Let images stay, whatever is pruned."""

    async def one(client: AsyncClient, reference: str) -> None:
        click.echo(line((await client.pin_image(reference, pinned=not off)).reference))

    return await _each(images, base_url, one)


async def _pull(images: Iterable[str], base_url: str | None, refresh: bool, as_json: bool) -> int:
    wanted = list(images)

    async def work(client: AsyncClient, tell: Callable[[ImageInfo], None]) -> list[ImageInfo]:
        return await client.prefetch(wanted, refresh=refresh, on_progress=tell)

    return await _shown(work, base_url, as_json)


async def _shown(
    work: Callable[[AsyncClient, Callable[[ImageInfo], None]], Awaitable[list[ImageInfo]]], base_url: str | None, as_json: bool
) -> int:
    """Pull, with what is going on on standard error, and what has come on standard output as it comes."""
    from aviato.aio.async_client import AsyncClient

    failed = 0

    def ended(info: ImageInfo) -> None:
        nonlocal failed
        if info.status == "failed":
            failed += 1
        if as_json:
            _print_json([info])
        elif info.status == "failed":
            click.echo(f"aviato: {line(info.reference)}: {common.printable(info.message or 'failed')}", err=True)
        else:
            click.echo(_said(info))

    with Pulling(ended, bars=sys.stderr.isatty() and not as_json) as pulling:
        async with AsyncClient(base_url=base_url) as client:
            try:
                await work(client, pulling.tell)
            except SandboxImageError:
                if not failed:
                    raise
    return common.FAILED if failed else 0


async def _each(images: Iterable[str], base_url: str | None, one: Callable[[AsyncClient, str], Awaitable[None]]) -> int:
    """The same for each image; one that fails is told, and the others go on."""
    from aviato.aio.async_client import AsyncClient

    status = 0
    async with AsyncClient(base_url=base_url) as client:
        for reference in images:
            try:
                await one(client, reference)
            except (SandboxImageError, AviatoValidationError) as error:
                click.echo(f"aviato: {common.printable(str(error))}", err=True)
                status = common.FAILED
    return status


def _said(info: ImageInfo) -> str:
    """One line on an image that is here."""
    how = "was here" if info.pull_seconds is None else f"pulled in {info.pull_seconds:.1f} s"
    if info.image_id is None:
        return f"{line(info.reference)}: here"
    return f"{line(info.reference)}: {info.image_id[:SHORT_ID]}, {size(info.size_bytes)}, {how}"


def _row(info: ImageInfo, name: str) -> tuple[str, ...]:
    now = time.time()
    times = tuple("" if moment is None else age(now - moment) for moment in (info.pulled_at, info.used_at))
    status: str = "pinned" if info.pinned else info.status
    if info.status == "pulling":
        whole = "" if info.total_bytes is None else f" of {size(info.total_bytes)}"
        status = f"{info.phase or 'pulling'}, {size(info.done_bytes)}{whole}"
    elif info.status == "failed":
        status = f"failed: {info.message}"
    room = size(info.size_bytes) if info.status == "here" else ""
    return name, (info.image_id or "")[:SHORT_ID], room, *times, status


def _print_json(infos: Iterable[ImageInfo]) -> None:
    for info in infos:
        click.echo(json.dumps(dataclasses.asdict(info)))
