"""Files and trees in and out, beside bare copies of the same bytes in the same run: through a pipe, and by `cp`."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from aviato.bench.floor import Floor
from aviato.bench.report import Report, Table
from aviato.bench.run import Run, Size
from aviato.bench.series import Series, alternate, timed

if TYPE_CHECKING:
    from collections.abc import Callable

    import aviato

    Case = tuple[str, Callable[[], object]]

SIZES = {
    "rounds": Size(10, 1, "of each way"),
    "bytes": Size(256 << 20, 4 << 20, "of one file"),
    "files": Size(2_000, 40, "in a tree, of 4 kB each"),
}


def measure(run: Run) -> Report:
    """All of it."""
    report, folder = Report("files"), Path(tempfile.mkdtemp(prefix="aviato-bench-"))
    try:
        with run.session() as session:
            sandbox = session.sandbox().wait()
            one_file(report, sandbox, folder, run["bytes"], run["rounds"])
            many_files(report, sandbox, folder, run["files"], run["rounds"])
    finally:
        shutil.rmtree(folder)
    return report


def one_file(report: Report, sandbox: aviato.Sandbox, folder: Path, count: int, rounds: int) -> None:
    """A file of random bytes each way, by every call that moves contents."""
    source, back = folder / "source", folder / "back"
    content = os.urandom(count)
    source.write_bytes(content)

    def stream_in() -> None:
        with source.open("rb") as file:
            sandbox.write_file_streaming("streamed", file).result()

    def stream_out() -> None:
        assert sum(len(chunk) for chunk in sandbox.read_file_streaming("uploaded")) == count

    def whole_out() -> None:
        assert len(sandbox.read_file("uploaded").result()) == count

    cases: list[Case] = [
        ("upload", lambda: sandbox.upload(source, "uploaded").result()),
        ("download", lambda: sandbox.download("uploaded", back).result()),
        ("write_file", lambda: sandbox.write_file("written", content).result()),
        ("read_file", whole_out),
        ("write_file_streaming", stream_in),
        ("read_file_streaming", stream_out),
    ]
    sandbox.upload(source, "uploaded").result()
    floors = {
        "a pipe to a file": ["/bin/sh", "-c", f"cat {source} | cat > {folder / 'copy'}"],
        "cp": ["/bin/cp", str(source), str(folder / "copy")],
    }
    _compare(report, f"a file of {count / 1e6:,.0f} MB", cases, floors, rounds, count / 1e6, "MB/s")


def many_files(report: Report, sandbox: aviato.Sandbox, folder: Path, count: int, rounds: int) -> None:
    """A tree of small files each way."""
    source, back, copy = folder / "tree", folder / "tree-back", folder / "tree-copy"
    for number in range(count):
        path = source / f"{number % 20}" / f"{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(4_000))

    def out() -> None:
        sandbox.download("tree", back).result()

    cases: list[Case] = [
        ("upload of a tree", lambda: sandbox.upload(source, "tree").result()),
        ("download of a tree", out),
    ]
    sandbox.upload(source, "tree").result()
    floors = {"cp -r": ["/bin/cp", "-rT", str(source), str(copy)]}
    _compare(report, f"{count:,} files of 4 kB", cases, floors, rounds, count, "files/s")


def _compare(
    report: Report, title: str, cases: list[Case], floors: dict[str, list[str]], rounds: int, work: float, unit: str
) -> None:
    """Cases in alternation with bare programs; the ratios are to the first of these, the rates of so much work."""
    series = [Series(name) for name, _ in cases]
    bare = [Series(f"  floor: {name}") for name in floors]
    report.floors |= floors
    with contextlib.ExitStack() as stack:
        pairs = [(one, timed(action)) for one, (_, action) in zip(series, cases, strict=True)]
        pairs += [(one, stack.enter_context(Floor(argv))) for one, argv in zip(bare, floors.values(), strict=True)]
        alternate(rounds, *pairs, warmup=1)
    report.times(title, [*((one, bare[0]) for one in series), *((one, None) for one in bare)])
    rates = Table("the same as rates", ("", f"p50 {unit}", f"p5 {unit}"))
    for one in (*series, *bare):
        rates.rows.append([one.name, f"{work / one.median:,.0f}", f"{work / one.percentile(95):,.0f}"])
        report.values[f"{one.name.strip()}, {unit}"] = work / one.median
    report.tables.append(rates)
