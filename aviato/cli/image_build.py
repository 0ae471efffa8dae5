"""`aviato image build`: an image out of a Dockerfile, built in sandboxes."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from aviato.cli import common, flags
from aviato.log import logger
from aviato.values.text import line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.options import NetworkOptions


def _arguments(_: click.Context, __: click.Parameter, items: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` for the value that the variable has here, if any."""
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE")
        if equals or name in os.environ:
            found[name] = value if equals else os.environ[name]
    return found


@click.command(name="build")
@common.base_url
@click.option("-f", "--file", "file", type=click.Path(), metavar="FILE", help="The Dockerfile. [CONTEXT/Dockerfile]")
@click.option("-t", "--tag", "name", metavar="NAME", help="What the image is called from then on, such as tasks/one:1.")
@click.option("--target", metavar="STAGE", help="Name or number of the stage to build. [the last one]")
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_arguments,
    help="Value of an ARG; NAME alone has its value here. May be repeated.",
)
@flags.network
@click.argument("context", type=click.Path(exists=True, file_okay=False), metavar="CONTEXT")
@common.coroutine
async def build(
    context: str,
    *,
    base_url: str | None,
    file: str | None,
    name: str | None,
    target: str | None,
    build_args: dict[str, str],
    network: NetworkOptions | None,
) -> int:
    """Build a Dockerfile of the directory CONTEXT in sandboxes, and print the image's id and name.

    Each step's line is on standard error as it begins; a step that is there already is CACHED. Commands of the build have a
    network only with --network.
    """
    from aviato.building.image import Image

    path = os.path.join(context, "Dockerfile") if file is None else file
    image = Image.from_dockerfile(path, context=context, target=target, build_args=build_args)
    with _told():
        info = await image.build(name=name, network=network, base_url=base_url)
    click.echo(f"{line(str(info.image_id))}  {line(name or info.reference)}")
    return 0


class _Steps(logging.Handler):
    """Says each step on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """As logging has it."""
        from aviato.building.build import BUILDING, CACHED

        said: Any = record.getMessage()
        if said.startswith(BUILDING):
            click.echo(line(said.removeprefix(BUILDING)), err=True)
        elif said.startswith(CACHED):
            click.echo(line(f"CACHED {said.removeprefix(CACHED)}"), err=True)


@contextmanager
def _told() -> Iterator[None]:
    steps = _Steps()
    logger.addHandler(steps)
    try:
        yield
    finally:
        logger.removeHandler(steps)
