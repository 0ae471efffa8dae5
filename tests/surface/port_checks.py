"""Sections 2 and 8: ports."""

from __future__ import annotations

import urllib.request

import aviato
from tests.surface.harness import Place, acheck, check

SERVE = ["python", "-m", "http.server", "8000", "--directory", "/srv"]


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        return bytes(response.read())


@check("Sandbox(ports=)", "Sandbox.exposed_ports", "Sandbox.service_urls", "Sandbox.service_address", "Sandbox.wait_for_port")
def ports(place: Place) -> None:
    with aviato.Sandbox(ports=[8000, 80]) as box:
        box.write_file("/srv/index.html", b"page").result()
        server = box.exec(SERVE)
        assert box.wait_for_port(8000).result() == box.service_urls[8000]
        assert box.exposed_ports == (8000, 80)
        assert _get(f"http://{box.service_address}") == _get(box.service_urls[8000]) == b"page"
        server.cancel()


@acheck("Sandbox.wait_for_port")
async def ports_awaited(place: Place) -> None:
    async with aviato.Sandbox(ports=[8000]) as box:
        server = box.exec(SERVE)
        assert await box.wait_for_port(8000) == box.service_urls[8000]
        server.cancel()


@check("Sandbox(network=)", "NetworkOptions.exposed_ports", "NetworkOptions.ingress_mode", "NetworkOptions.egress_mode")
def network(place: Place) -> None:
    options = aviato.NetworkOptions(ingress_mode="public", exposed_ports=[8000], egress_mode="none")
    with aviato.Sandbox(network=options) as box:
        assert list(box.service_urls) == [8000]
        assert (box.applied_ingress_mode, box.applied_egress_mode) == (options.ingress_mode, options.egress_mode)


@check("NetworkOptions.egress_mode", "Sandbox.applied_egress_mode")
def egress(place: Place) -> None:
    options = aviato.NetworkOptions(egress_mode=["Listed.example", "*.below.example:443"])
    with aviato.Sandbox(network=options) as box:
        result = box.exec(["python3", "-c", "import urllib.request as r; r.urlopen('http://other.example/')"]).result()
        assert "403" in result.stderr and "does not have other.example" in result.stderr
        assert box.applied_egress_mode == options.egress_mode == ("listed.example", "*.below.example:443")


@acheck("NetworkOptions.egress_mode", "Sandbox.applied_egress_mode")
async def egress_awaited(place: Place) -> None:
    async with aviato.Sandbox(network=aviato.NetworkOptions(egress_mode="internet")) as box:
        result = await box.exec(["python3", "-c", "import urllib.request as r; r.urlopen('http://169.254.169.254/')"])
        assert "403" in result.stderr and box.applied_egress_mode == "internet"


@check("SandboxDefaults.network")
def default_network(place: Place) -> None:
    defaults = aviato.SandboxDefaults(network=aviato.NetworkOptions(exposed_ports=[8000]))
    with aviato.Sandbox(defaults=defaults) as box:
        assert list(box.service_urls) == [8000]
