"""`aviato kubernetes`: manifests of a cluster that fit a server's settings."""

from __future__ import annotations

import json
import os
import sys

import click

from aviato.cli import common, numbers
from aviato.exceptions import AviatoError


@click.group(name="kubernetes")
def command() -> None:
    """Print manifests that fit a server with --backend kubernetes."""


def _pairs(_: click.Context, __: click.Parameter, items: tuple[str, ...]) -> dict[str, str]:
    """`NAME=AMOUNT`, as the API has resources."""
    found = {}
    for item in items:
        name, equals, amount = item.partition("=")
        if not equals or not name or not amount:
            raise click.BadParameter(f"{item!r} is not NAME=AMOUNT, such as memory=2Gi or cpu=500m")
        found[name] = amount
    return found


@command.command(name="warm-pool")
@click.argument("name", metavar="NAME")
@click.option("--count", type=numbers.COUNT, metavar="N", default=1, help="Sandboxes that are kept ready. [1]")
@click.option("--image", metavar="IMAGE", help="Their image. [of the server]")
@click.option("--network", type=click.Choice(["none", "internet"]), default="none", help="What they may reach. [none]")
@click.option("--limit", "limits", multiple=True, metavar="NAME=AMOUNT", callback=_pairs, help="Limit of a resource.")
@click.option("--request", "requests", multiple=True, metavar="NAME=AMOUNT", callback=_pairs, help="Of what they are sure.")
def warm_pool(
    *, name: str, count: int, image: str | None, network: str, limits: dict[str, str], requests: dict[str, str]
) -> None:
    """Print a SandboxTemplate and a SandboxWarmPool of kubernetes-sigs/agent-sandbox, for kubectl apply -f -.

    Sandboxes with this image, network and these resources are taken from it by servers with --kubernetes-objects agent-sandbox
    and --kubernetes-warm-pool NAME. Claim, namespace, init image and security are taken from the server's variables and
    settings file: pods that were printed with others fit none of its sandboxes.
    """
    try:
        click.echo(_manifest(name, count, image, network, limits, requests))
    except (AviatoError, TypeError) as error:
        click.echo(f"aviato: {common.printable(str(error))}", err=True)
        sys.exit(common.FAILED)


def _manifest(name: str, count: int, image: str | None, network: str, limits: dict[str, str], requests: dict[str, str]) -> str:
    from aviato.exceptions import AviatoValidationError
    from aviato.options import ResourceOptions
    from aviato.server.backends.kubernetes import agent_sandbox
    from aviato.server.backends.kubernetes.images import PodImages
    from aviato.server.configured_backend import cluster_options
    from aviato.server.settings import load

    settings = load({}, os.environ)
    options = cluster_options(settings)
    if options.init_image is None:
        message = "AVIATO_KUBERNETES_INIT_IMAGE is not set: name the image that brings aviato-init in, as the server has it"
        raise AviatoValidationError(message, field_violations={"kubernetes_init_image": "is not set"})
    reference = PodImages(settings.default_image).resolve(image).reference
    requested, limited = ResourceOptions(requests=requests, limits=limits).amounts()
    gives = agent_sandbox.Gives(image=reference, network=network, requests=requested, limits=limited)
    items = agent_sandbox.warm_pool(name, count, gives, options)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2)
