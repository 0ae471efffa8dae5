"""The rounds: every peer does the same work in turn, in a new order each round.

Each work is done by new processes, in sandboxes of their own. What a process has done before changes what it does next: it
keeps memory that is dear to take anew, its caches, its connections and its sandbox. So a row says something about its own work
only, whatever else is measured and in whatever order. Servers, of whoever has one, live on, as they do for their users.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oci_layout import archive, layout, tar_of

from aviato.bench.floor import bwrap_argv
from aviato.bench.run import Run, Size
from aviato.bench.series import Ratio, Series, alternate, ratio
from peers.catalogue import OF_IMAGES, PEERS, WORKS, Peer, Work
from peers.driven import Driven, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SIZES = {
    "rounds": Size(50, 2, "of works that take milliseconds"),
    "large_rounds": Size(7, 1, "of batch, output, snapshot, fork and memory"),
    "batch": Size(256, 4, "sandboxes in a batch"),
    "at_once": Size(8, 2, "of them at the same time"),
    "output_bytes": Size(64 << 20, 1 << 20, "that one command writes to stdout"),
    "file_bytes": Size(1 << 20, 1 << 16, "of the file that is written and read"),
    "files": Size(1_000, 10, "of 100 kB each, in a snapshot and a fork"),
    "children": Size(100, 2, "of a fork"),
    "live": Size(32, 2, "sandboxes whose memory is measured"),
}
OURS = "aviato, sync"
"""What peers are compared with: their interfaces block, too."""


@dataclass
class Row:
    """One peer on one work.

    Attributes:
        seconds: one a round; of memory, bytes. Empty where `failure` says why.
        expected: the failure was known before, and is no failure of a call.
        ratio: how many times aviato's cost its cost is; more than 1 is aviato ahead.
    """

    peer: Peer
    work: Work
    seconds: list[float] = field(default_factory=list)
    failure: str | None = None
    expected: bool = False
    ratio: Ratio | None = None

    @property
    def name(self) -> str:
        """Of the peer."""
        return self.peer.name

    @property
    def isolation(self) -> str:
        """Of the peer."""
        return self.peer.isolation

    def percentile(self, percent: float) -> float:
        """Of what was measured."""
        return Series(self.name, self.seconds).percentile(percent)

    @property
    def verdict(self) -> str:
        """`ahead`, `behind` or `even`, which is an interval with 1 in it; empty without a figure."""
        if self.ratio is None:
            return ""
        return "ahead" if self.ratio.low > 1 else "behind" if self.ratio.high < 1 else "even"


def rows(
    run: Run,
    *,
    peers: Iterable[str] = PEERS,
    works: Iterable[str] = WORKS,
    install: bool = True,
    together: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Measure peers on works, all in one run.

    Args:
        run: aviato's server, and the sizes that `SIZES` names.
        peers: names in `PEERS`.
        works: names in `WORKS`.
        install: make environments that do not exist; else such a peer is a row with a reason.
        together: a peer does all works one after the other in one process and, where they keep one, one sandbox.
        say: is told what goes on.
    """
    peers, works = list(peers), list(works)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aviato-peers-")))
        source = directory / "payload"
        source.write_text(secrets.token_hex(run["file_bytes"] // 2))
        # Which takes seconds.
        images = _images(directory) if {*OF_IMAGES.split()} & {*works} else {}
        bwrap = (bwrap_argv() or [shutil.which("bwrap") or "bwrap"])[0]
        given = {"BENCHMARK_BWRAP": bwrap} | ({"AVIATO_BASE_URL": run.base_url} if run.base_url else {})
        refused: dict[str, str] = {}
        begun: set[str] = set()

        def start(name: str, here: ExitStack) -> Driven | str:
            if name not in begun:
                say(f"starting {name}")
                begun.add(name)
            return refused.get(name) or _start(here, name, given, install, refused)

        driven = {name: start(name, stack) for name in peers} if together else {}
        pid = run.server_pid() if "memory" in works and any(PEERS[name].kind == "aviato" for name in peers) else None
        found = []
        for work in (WORKS[name] for name in works):
            say(work.title)
            asked = _given(work.name, run, str(source), images, pid)
            rounds = run["large_rounds" if work.large else "rounds"]
            with ExitStack() as here:
                found += _work(work, driven or {name: start(name, here) for name in peers}, asked, rounds)
        return found


def _start(stack: ExitStack, name: str, given: Mapping[str, str], install: bool, refused: dict[str, str]) -> Driven | str:
    """A peer's process until the stack is left; or why there is none, which is noted: nothing is installed in vain twice."""
    try:
        return stack.enter_context(Driven(PEERS[name], given, install=install))
    except PeerError as error:
        refused[name] = str(error)
        return refused[name]


def _images(directory: Path) -> dict[str, str]:
    """An image in both forms; none where there is nothing to make it of."""
    if (busybox := shutil.which("busybox")) is None:
        return {}
    content = Path(busybox).read_bytes()
    layers = [tar_of({f"bin/{name}": content for name in ("busybox", "sh", "true", "sleep", "head", "seq", "mkdir")})]
    file = archive(directory / "image.tar", layers, "localhost/aviato-bench:1")
    return {"layout": str(layout(directory / "image", layers)), "archive": str(file)}


def _given(work: str, run: Run, source: str, images: Mapping[str, str], pid: int | None) -> dict[str, Any]:
    """What the harness is told beside the name of the work."""
    roots = [pid] if pid else []
    return {
        "batch": {"count": run["batch"], "at_once": run["at_once"], "python": _python()},
        "output": {"size": run["output_bytes"]},
        "write": {"source": source},
        "read": {"source": source},
        "image": {**images},
        "snapshot": {"files": run["files"], **images},
        "fork": {"files": run["files"], "children": run["children"], "at_once": run["at_once"], **images},
        "memory": {"count": run["live"], "roots": roots},
    }.get(work, {})


def _python() -> str:
    """An interpreter that every sandbox can see, the same for all."""
    return shutil.which("python3", path="/usr/bin:/usr/local/bin") or str(Path(sys.executable).resolve())


def _work(work: Work, driven: Mapping[str, Driven | str], asked: Mapping[str, Any], rounds: int) -> list[Row]:
    found, cases = [], []
    for name, peer in driven.items():
        row = Row(PEERS[name], work)
        found.append(row)
        if isinstance(peer, str):
            row.failure = peer
            continue
        row.failure = PEERS[name].lacks.get(work.name) or _cannot(work, PEERS[name], asked)
        row.expected = row.failure is not None
        case = _case(row, peer, asked)
        case()  # who fails the first time has a reason, and no turn
        if row.failure is None:
            cases.append((Series(name), case))
    alternate(rounds, *cases, warmup=0 if work.large else 2)
    measured = {series.name: series for series, _ in cases}
    for row in found:
        if row.failure is None:
            row.seconds = measured[row.name].seconds
            if row.name != OURS and OURS in measured:
                row.ratio = ratio(measured[row.name], measured[OURS])
    return found


def _cannot(work: Work, peer: Peer, asked: Mapping[str, Any]) -> str | None:
    if work.name in OF_IMAGES.split() and "layout" not in asked:
        return "no image can be made without busybox (Debian: apt install busybox-static)"
    if work.name != "memory":
        return None
    if os.getuid() != 0:
        return "the memory of others' processes is shown to root only"
    if peer.kind == "aviato" and not asked["roots"]:
        return "the server's process is not on this machine"
    return None


def _case(row: Row, peer: Driven, asked: Mapping[str, Any]) -> Callable[[], float]:
    """One turn. After a failure it does nothing more, so that the others' rounds go on."""

    def case() -> float:
        if row.failure is None:
            try:
                return peer.ask(row.work.name, **asked)
            except PeerError as error:
                row.failure = str(error)
        return float("nan")

    return case
