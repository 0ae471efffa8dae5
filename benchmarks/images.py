"""What images cost: a sandbox of one, beside a `host` one, and a pull, beside downloading and unpacking the same layers.

    python benchmarks/images.py [--rounds N] [--megabytes N] [--json PATH]

Images are made of Debian's `busybox-static`. The registry is Debian's `docker-registry` on loopback, filled by `skopeo`;
without these only sandboxes are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from common import Series, alternate, describe_machine, milliseconds, ratio, table, timed
from common import write_json as save
from oci_layout import layout, tar_of

import aviato
from aviato.bench.latency import creating

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS = (1, 5, 40)
PIECES = 4
"""Layers of the image that is pulled."""


@contextmanager
def registry(directory: Path) -> Iterator[str]:
    """Its host."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = directory / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: {host}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {directory}/registry}}}}\n"
    )
    process = subprocess.Popen(["docker-registry", "serve", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with ExitStack() as waiting:
            probe = waiting.enter_context(socket.socket())
            while probe.connect_ex(("127.0.0.1", int(host.rpartition(":")[2]))):
                time.sleep(0.05)
                probe = waiting.enter_context(socket.socket())
        yield host
    finally:
        process.kill()
        process.wait()


def measure_sandboxes(rounds: int, directory: Path) -> dict[str, list[float]]:
    """Create and first command, on images and on `host`."""
    busybox = Path(str(shutil.which("busybox"))).read_bytes()
    host, images = Series("host"), [Series(f"an image of {count} layers") for count in LAYERS]
    with ExitStack() as stack:
        cases = []
        for series, count in ((host, 0), *zip(images, LAYERS, strict=True)):
            image, program = None, "/bin/true"
            if count:
                layers = [tar_of({"bin/busybox": busybox}), *(tar_of({f"d/{n}": b"x"}) for n in range(1, count))]
                image, program = f"oci:{layout(directory / f'layers-{count}', layers)}", "/bin/busybox"
            defaults = aviato.SandboxDefaults(**({"container_image": image} if image else {}))
            session = stack.enter_context(aviato.Session(defaults))
            cases.append((series, creating(session, lambda sandbox, program=program: sandbox.exec([program, "true"]).result())))
        alternate(rounds, *cases)
    rows = [[one.name, milliseconds(one.median), "" if one is host else ratio(one, host)] for one in (host, *images)]
    table("create + first exec", ("", "ms", "× host (90 %)"), rows)
    return {one.name: one.seconds for one in (host, *images)}


def measure_pull(megabytes: int, directory: Path) -> dict[str, list[float]]:
    """A pull of a new image, beside `curl` and `tar` with the same layers."""
    pull, floor = Series("aviato image pull"), Series("curl | tar -x, one layer after the other")
    with registry(directory) as host:
        policy = directory / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

        def push(number: int) -> tuple[str, list[str]]:
            half = (megabytes << 19) // PIECES  # Half of it can be compressed.
            layers = [tar_of({f"f{n}": os.urandom(half), f"z{n}": b"some text\n" * (half // 10)}) for n in range(PIECES)]
            source = layout(directory / f"pull-{number}", layers)
            name = f"{host}/bench/image:{number}"
            command = [
                "skopeo",
                "--policy",
                policy,
                "copy",
                "-q",
                "--dest-tls-verify=false",
                f"oci:{source}",
                f"docker://{name}",
            ]
            subprocess.run(command, check=True)
            index = json.loads((source / "index.json").read_text())["manifests"][0]["digest"]
            manifest = json.loads((source / "blobs" / "sha256" / index.partition(":")[2]).read_text())
            return name, [layer["digest"] for layer in manifest["layers"]]

        def bare(digests: list[str], target: Path) -> None:
            for number, digest in enumerate(digests):
                into = target / str(number)
                into.mkdir(parents=True)
                line = f"curl -sf http://{host}/v2/bench/image/blobs/{digest} | tar -xz -C {into}"
                subprocess.run(["bash", "-o", "pipefail", "-c", line], check=True)

        with aviato.Session() as session:
            for number in range(5):
                name, digests = push(number)
                pull.take(timed(lambda name=name: session.prefetch([name]).result()))
                floor.take(timed(lambda digests=digests, number=number: bare(digests, directory / f"bare-{number}")))
    quotient = ratio(floor, pull)
    rows = [[one.name, milliseconds(one.median), f"{megabytes / one.median:.0f}"] for one in (pull, floor)]
    table(f"{megabytes} MiB in {PIECES} layers: {quotient} of the rate of curl and tar", ("", "ms", "MiB/s"), rows)
    return {one.name: one.seconds for one in (pull, floor)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--json", default=None, help="where to write the figures (default: benchmarks/results/images.json)")
    arguments = parser.parse_args()
    if shutil.which("busybox") is None:
        sys.exit("no image can be made without busybox: apt-get install busybox-static")
    describe_machine()
    with tempfile.TemporaryDirectory(prefix="aviato-images-", dir="/var/tmp") as folder:
        figures = measure_sandboxes(arguments.rounds, Path(folder))
        missing = [program for program in ("docker-registry", "skopeo", "curl") if shutil.which(program) is None]
        if missing:
            print(f"pulls were not measured: there is no {missing[0]}")
        else:
            figures |= measure_pull(arguments.megabytes, Path(folder))
    save("images", {"rounds": arguments.rounds, "figures": figures}, arguments.json)


if __name__ == "__main__":
    main()
