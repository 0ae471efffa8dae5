"""What a command and its output take over a Unix socket, over TCP and over TLS, from the same server.

    python benchmarks/carriers.py [--rounds N] [--commands N] [--megabytes N] [--json PATH]

A server of its own on this machine, with a certificate of its own. The carriers take turns in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from common import console, describe_machine, table
from common import write_json as save

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato import Sandbox

FIRST = "Unix socket"
ROWS = ("a command, ms", "a command of many at once, ms", "output, MB/s")
AT_ONCE = 100
SERVE = "from aviato.cli.main import main; main()"


def certificate(path: Path) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    cert, key = path / "cert.pem", path / "key.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", "req", "-x509", *kind, *names, *files], check=True, capture_output=True)
    return cert, key


def serve(stack: ExitStack, path: Path, name: str, *flags: str) -> str:
    """A server at a port of its own; its address over TCP."""
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--state-dir", str(path / name), *flags]
    command += ["--socket", str(path / f"{name}.sock"), "--api-key-file", str(path / "keys")]
    server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    stack.callback(server.terminate)
    assert server.stdout is not None
    for line in server.stdout:
        if (url := line.split("=")[-1].strip()).startswith("http"):
            return url.replace("127.0.0.1", "localhost")
    raise RuntimeError("the server did not start")


async def milliseconds_each(sandbox: Sandbox, commands: int) -> float:
    """The median of commands one after the other."""
    found = []
    for _ in range(commands):
        begin = time.perf_counter()
        await sandbox.exec(["true"])
        found.append(1e3 * (time.perf_counter() - begin))
    return median(found)


async def milliseconds_at_once(sandbox: Sandbox, commands: int) -> float:
    """What one takes of many at once."""
    begin = time.perf_counter()
    await asyncio.gather(*(sandbox.exec(["true"]) for _ in range(commands)))
    return 1e3 * (time.perf_counter() - begin) / commands


async def megabytes_a_second(sandbox: Sandbox, megabytes: int) -> float:
    """How fast output comes."""
    begin = time.perf_counter()
    result = await sandbox.exec(["head", "-c", f"{megabytes}MB", "/dev/zero"], max_output_bytes=1 << 30)
    assert len(result.stdout_bytes) == megabytes * 1_000_000
    return megabytes / (time.perf_counter() - begin)


async def measure(urls: dict[str, str], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """By carrier and row, a figure for each round."""
    from aviato import Sandbox

    works: list[Callable[[Sandbox], Awaitable[float]]] = [
        lambda sandbox: milliseconds_each(sandbox, options.commands),
        lambda sandbox: milliseconds_at_once(sandbox, min(AT_ONCE, options.commands)),
        lambda sandbox: megabytes_a_second(sandbox, options.megabytes),
    ]
    found: dict[str, dict[str, list[float]]] = {carrier: {row: [] for row in ROWS} for carrier in urls}
    sandboxes = {carrier: Sandbox(base_url=url) for carrier, url in urls.items()}
    for sandbox in sandboxes.values():
        await sandbox.exec(["true"])
    for _ in range(options.rounds):
        for row, work in zip(ROWS, works, strict=True):
            for carrier, sandbox in sandboxes.items():
                found[carrier][row].append(await work(sandbox))
    for sandbox in sandboxes.values():
        await sandbox.stop()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--commands", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--json")
    options = parser.parse_args()
    describe_machine()
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aviato-carriers-")))
        os.environ["AVIATO_API_KEY"] = key = secrets.token_urlsafe()
        (path / "keys").write_text(f"{key}\n")
        cert, private = certificate(path)
        os.environ["SSL_CERT_FILE"] = str(cert)
        tcp = serve(stack, path, "tcp")
        tls = serve(stack, path, "tls", "--tls-cert", str(cert), "--tls-key", str(private))
        found = asyncio.run(measure({FIRST: f"unix://{path}/tcp.sock", "TCP": tcp, "TLS": tls}, options))
    rows: list[list[Any]] = []
    for carrier, figures in found.items():
        ratios = [median(one / first for one, first in zip(figures[row], found[FIRST][row], strict=True)) for row in ROWS]
        cells = [f"{median(figures[row]):.2f}  {ratio:.2f} ×" for row, ratio in zip(ROWS, ratios, strict=True)]
        rows.append([carrier, *cells])
    table("carriers: median, and of the ratios to the Unix socket's in the same round", ("", *ROWS), rows)
    console.print(f"[dim]{save('carriers', {'figures': found}, options.json)}[/dim]")


if __name__ == "__main__":
    main()
