"""`aviato image`: the images of a server."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

import click

from aviato.cli import common, numbers
from aviato.cli.image_build import build
from aviato.exceptions import AviatoError
from aviato.values.text import line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aviato.results import ImageInfo, PushInfo

_ID_SHOWN = 19
"""`sha256:` and 12 digits, by which it is found again."""
_DAY_SECONDS = 86_400.0

_refresh = click.option("--refresh", is_flag=True, help="Ask the registry although the image is here: a tag may have moved.")
_references = click.argument("references", nargs=-1, required=True, metavar="REF...")
_reference = click.argument("reference", metavar="REF")
_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.group(name="image")
def command() -> None:
    """Pull, build, list, export, push and remove the images that sandboxes are made of.

    REF is as other tools have it, such as python:3.12-slim or ghcr.io/org/name@sha256:…; oci:DIR and docker-archive:FILE are
    on the server's machine. The images that are there are meant by id, too.
    """


command.add_command(build)


@command.command(name="pull")
@common.base_url
@_refresh
@_references
@common.coroutine
async def pull(references: tuple[str, ...], *, base_url: str | None, refresh: bool) -> int:
    """Have the server fetch images, and print the id of each."""
    return await _fetch(references, base_url, refresh=refresh)


@command.command(name="prefetch")
@common.base_url
@_refresh
@click.argument("file", type=click.File(encoding="utf-8"), metavar="FILE")
@common.coroutine
async def prefetch(file: TextIO, *, base_url: str | None, refresh: bool) -> int:
    """Have the server fetch the images that FILE names, one a line; - is standard input."""
    lines = [text.strip() for text in file]
    return await _fetch([text for text in lines if text and not text.startswith("#")], base_url, refresh=refresh)


@command.command(name="import")
@common.base_url
@click.option("--name", metavar="NAME", help="Which of several it is: its tag in the directory, or its name in the archive.")
@click.option("--as", "as_name", metavar="REF", help="What it is called from then on, such as python:3.12-slim.")
@click.argument("path", type=click.Path(exists=True), metavar="PATH")
@common.coroutine
async def import_(path: str, *, base_url: str | None, name: str | None, as_name: str | None) -> int:
    """Have a server on this machine take an image in: a directory of OCI layout, or a file as `docker save` makes it."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        with _progress() as tell:
            # Another image may lie there than the last time.
            info = await client.pull_image(_reference_of(path, name), refresh=True, name=as_name, on_progress=tell)
    click.echo(f"{line(str(info.image_id))}  {line(as_name or info.reference)}")
    return 0


@command.command(name="export")
@common.base_url
@_reference
@click.argument("path", type=click.Path(), metavar="PATH")
@common.coroutine
async def export(reference: str, path: str, *, base_url: str | None) -> int:
    """Write an image to this machine: a directory of OCI layout, or a file that ends with .tar, as `docker load` takes it."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        await client.export_image(reference, path)
    return 0


@command.command(name="push")
@common.base_url
@_reference
@click.argument("destination", required=False, metavar="[DESTINATION]")
@common.coroutine
async def push(reference: str, destination: str | None, *, base_url: str | None) -> int:
    """Have the server put an image into a registry, as REF or as DESTINATION, and print what is there, by digest."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        with _progress() as tell:
            pushed = await client.push_image(reference, destination, on_progress=tell)
        click.echo(line(pushed))
    return 0


@command.command(name="ls")
@common.base_url
@click.option("-q", "--quiet", is_flag=True, help="Ids only.")
@_as_json
@common.coroutine
async def ls(*, base_url: str | None, quiet: bool, as_json: bool) -> int:
    """List images, the newest pull first."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        found = await client.images()
    if quiet:
        for info in found:
            if info.image_id is not None:
                click.echo(line(info.image_id))
    elif as_json:
        for info in found:
            click.echo(json.dumps(asdict(info)))
    else:
        _table(found)
    return 0


@command.command(name="inspect")
@common.base_url
@_as_json
@_reference
@common.coroutine
async def inspect(reference: str, *, base_url: str | None, as_json: bool) -> int:
    """Say what there is to know of an image."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        info = await client.inspect_image(reference)
    click.echo(json.dumps(asdict(info), indent=None if as_json else 2))
    return 0


@command.command(name="rm")
@common.base_url
@click.option("--force", is_flag=True, help="Take the names away although sandboxes have the image; a later prune removes it.")
@_references
@common.coroutine
async def rm(references: tuple[str, ...], *, base_url: str | None, force: bool) -> int:
    """Remove names of images, and with its last name, or by its id, an image; print the names that went."""
    from aviato.aio.async_client import AsyncClient

    failed = False
    async with AsyncClient(base_url=base_url) as client:
        for reference in references:
            try:
                names = await client.remove_image(reference, force=force)
            except AviatoError as error:
                click.echo(f"aviato: {common.printable(str(error))}", err=True)
                failed = True
            else:
                for name in names or [reference]:
                    click.echo(line(name))
    return common.FAILED if failed else 0


@command.command(name="prune")
@common.base_url
@click.option("--keep-bytes", type=numbers.BYTES, default=0, metavar="N", help="Leave so many bytes of images. [0]")
@click.option("--unused-days", type=numbers.DAYS, default=0.0, metavar="D", help="Leave what was in use so lately. [0]")
@common.coroutine
async def prune(*, base_url: str | None, keep_bytes: int, unused_days: float) -> int:
    """Remove images that no sandbox has and that are not pinned, the longest unused first."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        freed = await client.prune_images(most_bytes=keep_bytes, unused_seconds=unused_days * _DAY_SECONDS)
    click.echo(f"freed {_size(freed)}")
    return 0


@command.command(name="pin")
@common.base_url
@_reference
@common.coroutine
async def pin(reference: str, *, base_url: str | None) -> int:
    """Let an image stay, whatever is pruned."""
    return await _pin(reference, base_url, pinned=True)


@command.command(name="unpin")
@common.base_url
@_reference
@common.coroutine
async def unpin(reference: str, *, base_url: str | None) -> int:
    """Let an image be pruned again."""
    return await _pin(reference, base_url, pinned=False)


def _reference_of(path: str, name: str | None) -> str:
    kind = "oci" if os.path.isdir(path) else "docker-archive"
    return f"{kind}:{os.path.abspath(path)}" + (f":{name}" if name else "")


async def _pin(reference: str, base_url: str | None, *, pinned: bool) -> int:
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        info = await client.pin_image(reference, pinned=pinned)
    click.echo(line(str(info.image_id)))
    return 0


async def _fetch(references: Sequence[str], base_url: str | None, *, refresh: bool) -> int:
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        with _progress() as tell:
            found = await client.prefetch(references, refresh=refresh, on_progress=tell)
    for info in found:
        if info.status == "failed":
            click.echo(f"aviato: {common.printable(info.message or f'{info.reference} cannot be had')}", err=True)
        else:
            click.echo(f"{line(str(info.image_id))}  {line(info.reference)}")
    return common.FAILED if any(info.status == "failed" for info in found) else 0


@contextmanager
def _progress() -> Iterator[Callable[[ImageInfo | PushInfo], object] | None]:
    """Bars on a terminal, one for each image that takes a while; nothing elsewhere. Of a push they are of one layer each."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from aviato.results import PushInfo

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    tasks: dict[str, TaskID] = {}
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with Progress(*columns, console=console, transient=True) as bars:

        def tell(info: ImageInfo | PushInfo) -> None:
            if info.status in ("pulling", "pushing"):
                done, total = (
                    (info.layer_done_bytes, info.layer_total_bytes)
                    if isinstance(info, PushInfo)
                    else (info.done_bytes, info.total_bytes)
                )
                if info.reference not in tasks:
                    tasks[info.reference] = bars.add_task("", total=None)
                layers = f" {info.layers_done}/{info.layers_total} layers" if info.layers_total else ""
                said = f"{line(info.reference)}{layers}"
                bars.update(tasks[info.reference], description=said, completed=done, total=total)
            elif info.reference in tasks:
                bars.remove_task(tasks.pop(info.reference))

        yield tell


def _table(found: Sequence[ImageInfo]) -> None:
    rows: list[tuple[str, ...]] = [("ID", "SIZE", "PULLED", "STATE", "NAMES")]
    for info in found:
        pulled = "" if info.pulled_at is None else common.age(time.time() - info.pulled_at)
        state = "pinned" if info.pinned else "" if info.status == "here" else info.status
        size = _size(info.size_bytes) if info.status == "here" else ""
        names = ", ".join(info.names)
        rows.append(tuple(map(line, ((info.image_id or "")[:_ID_SHOWN], size, pulled, state, names))))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*padded, row[4]]).rstrip())


def _size(size_bytes: int) -> str:
    from rich.filesize import decimal

    return decimal(size_bytes)
