"""Files and trees in and out, beside bare copies of the same bytes in the same run: through a pipe, and by `cp`.

python benchmarks/files.py [--bytes N] [--files N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import common

import aviato

if TYPE_CHECKING:
    from collections.abc import Callable

Case = tuple[str, "Callable[[], object]"]


def measure(
    cases: list[Case], floors: dict[str, list[str]], rounds: int, unit: Callable[[float], str]
) -> tuple[list[list[str]], dict[str, object]]:
    """Cases in alternation with bare programs; the ratios are to the first of these."""
    series = [common.Series(name) for name, _ in cases]
    bare = [common.Series(f"floor: {name}") for name in floors]
    with contextlib.ExitStack() as stack:
        pairs = [(one, common.timed(action)) for one, (_, action) in zip(series, cases, strict=True)]
        pairs += [(one, stack.enter_context(common.Floor(argv))) for one, argv in zip(bare, floors.values(), strict=True)]
        common.alternate(rounds, *pairs, warmup=1)
    rows = [[one.name, unit(one.median), unit(one.percentile(95)), str(common.ratio(one, bare[0]))] for one in series]
    rows += [[one.name, unit(one.median), unit(one.percentile(95)), ""] for one in bare]
    return rows, {"seconds": {one.name: one.seconds for one in (*series, *bare)}, "floor_argvs": floors}


def one_file(sandbox: aviato.Sandbox, folder: Path, count: int, rounds: int) -> tuple[list[list[str]], dict[str, object]]:
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
    rows, facts = measure(cases, floors, rounds, lambda seconds: f"{count / seconds / 1e6:,.0f} MB/s")
    return rows, {"bytes": count, **facts}


def many_files(sandbox: aviato.Sandbox, folder: Path, count: int, rounds: int) -> tuple[list[list[str]], dict[str, object]]:
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
    rows, facts = measure(cases, floors, rounds, lambda seconds: f"{count / seconds:,.0f} files/s")
    return rows, {"files": count, **facts}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=256 << 20, help="of one file (default: 256 MiB)")
    parser.add_argument("--files", type=int, default=2_000, help="in a tree, of 4 kB each")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", help="where to write the result (default: benchmarks/results/files.json)")
    arguments = parser.parse_args()
    common.describe_machine()
    folder = Path(tempfile.mkdtemp(prefix="aviato-bench-"))
    try:
        with aviato.Session() as session:
            sandbox = session.sandbox().wait()
            rows, one = one_file(sandbox, folder, arguments.bytes, arguments.rounds)
            more, many = many_files(sandbox, folder, arguments.files, arguments.rounds)
    finally:
        shutil.rmtree(folder)
    common.table("files (a run's p50 and p95)", ["what", "p50", "p95", "× floor (90 %)"], rows + more)
    written = common.write_json("files", {"file": one, "tree": many}, arguments.json)
    common.console.print("result:", str(written), soft_wrap=True)


if __name__ == "__main__":
    main()
