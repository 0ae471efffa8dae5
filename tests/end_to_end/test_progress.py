"""How far a run is, of whatever takes long: a bar on a terminal, one line in a notebook, lines in a log, or nothing."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import progress
from aviato.progress import Progress
from aviato.rl import Task, evaluate
from tests.terminal import said_on

BEGIN = """
import aviato, sys, time
from aviato import progress
from aviato.rl import Task, evaluate
if sys.argv[1:] == ["soon"]: progress.FIRST_SECONDS = 0.0
"""
RUNS = {
    "evaluate": "evaluate([Task(command=['true'])] * 4).result()",
    "as_completed": """
with aviato.Session() as session:
    sandbox = session.sandbox()
    for each in aviato.as_completed([sandbox.exec(["true"]) for n in range(24)]): each.result()
""",
    "upload 'large": """
import os, tempfile
with aviato.Sandbox() as sandbox, tempfile.TemporaryDirectory() as directory:
    with open(directory + "/large", "wb") as file: file.write(os.urandom(1 << 20) * 4)
    sandbox.upload(directory + "/large", "there").result()
""",
    "upload 'tree": """
import os, tempfile
with aviato.Sandbox() as sandbox, tempfile.TemporaryDirectory() as directory:
    os.mkdir(directory + "/tree")
    with open(directory + "/tree/large", "wb") as file: file.write(os.urandom(1 << 20) * 4)
    sandbox.upload(directory + "/tree", "there").result()
""",
    "download 'out": """
import tempfile
with aviato.Sandbox() as sandbox, tempfile.TemporaryDirectory() as directory:
    sandbox.exec(["sh", "-c", "head -c 4000000 /dev/urandom > out"], check=True).result()
    sandbox.download("out", directory + "/large").result()
""",
    "bench: machine": """
from aviato.bench import script
module = type("M", (), {"SIZES": {}})
def perform(module, run, folder):
    return type("R", (), {"problems": []})
script.perform = perform
script.several({"machine": module, "other": module}, base_url=None, rounds=None, quick=True, folder=None)
""",
}


def on_a_terminal(url: str, source: str, *, both: bool = False, soon: bool = True, **environment: str) -> str:
    """What a terminal is sent on stderr, and with `both` on stdout too."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "AVIATO_BASE_URL": url, "TERM": "xterm", "COLUMNS": "120", **environment}
    command = [sys.executable, "-c", BEGIN + source, *(["soon"] if soon else [])]
    out = theirs if both else subprocess.DEVNULL
    with subprocess.Popen(command, stdout=out, stderr=theirs, env=variables, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = said_on(ours)
        assert process.wait(30) == 0, shown.decode(errors="replace")
    return shown.decode(errors="replace")


@pytest.fixture
def sandbox(server: Any) -> Iterator[aviato.Sandbox]:
    with aviato.Sandbox(base_url=server.url) as made:
        yield made


@pytest.mark.parametrize("name", RUNS)
def test_a_bar_on_a_terminal(server: Any, name: str) -> None:
    shown = on_a_terminal(server.url, RUNS[name])
    assert name in shown and "━" in shown, shown
    assert shown.rstrip().endswith(("\x1b[2K", "\x1b[?25h")) and len(shown) < 100_000, "nothing of it is left behind"
    unit = r"\d+(\.\d+)?/?.* [MG]B" if "load" in name else r"\d+/\d+"
    assert re.search(unit, shown), shown


def test_nothing_where_the_environment_says_so(server: Any) -> None:
    assert on_a_terminal(server.url, "\n".join(RUNS.values()), AVIATO_PROGRESS="0") == ""


def test_nothing_where_a_line_cannot_be_drawn_anew(server: Any) -> None:
    """An editor's shell: what is drawn there stays, and is no bar."""
    assert on_a_terminal(server.url, RUNS["as_completed"], TERM="dumb") == ""


def test_it_takes_a_second_whatever_is_done_meanwhile(server: Any) -> None:
    slow = "evaluate([Task(command=['sleep', '1.6'])] * 2, max_concurrency=2).result()"
    assert re.search(r"0/2\S* \S*0:00:0[1-9]", on_a_terminal(server.url, slow, soon=False))
    assert on_a_terminal(server.url, "progress.FIRST_SECONDS = 1000\n" + slow.replace("1.6", "0.1"), soon=False) == ""


def test_what_is_printed_meanwhile_stands_above_it(server: Any) -> None:
    source = RUNS["as_completed"].replace("each.result()", "print('a line', each.result().returncode)")
    shown = on_a_terminal(server.url, source, both=True)
    assert "as_completed" in shown
    lines = re.findall(r"[^\n]*a line 0\r\n", shown)
    assert len(lines) == 24 and all(re.search(r"(^|\x1b\[2K|\r)a line 0", each) for each in lines), lines


def test_few_are_not_many(server: Any) -> None:
    few = """
with aviato.Sandbox() as sandbox:
    for _ in aviato.as_completed([sandbox.exec(['true']) for _ in range(3)]): pass
"""
    assert on_a_terminal(server.url, few) == ""
    asked = few.replace("range(3)])", "range(3)], progress=True)")
    assert "as_completed" in on_a_terminal(server.url, asked, AVIATO_PROGRESS="0")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BETWEEN_LINES_SECONDS", 0.0)


@pytest.mark.usefixtures("often")
def test_lines_in_a_log(
    sandbox: aviato.Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_bytes(b"x" * 3_000_000)
    with caplog.at_level(logging.INFO, "aviato"):
        sandbox.upload(tmp_path / "in", "there").result()
        sandbox.download("there", tmp_path / "out").result()
        list(aviato.as_completed([sandbox.exec(["true"]) for _ in range(10)]))
    told = [each for each in caplog.messages if " done" in each]
    assert "upload 'in': 3.0 MB of 3.0 MB done" in told and "download 'there': 3.0 MB done" in told, told
    assert told[-1] == "as_completed: 10 of 10 done"
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("often")
def test_time_that_passes_is_in_the_log_too(
    server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.05)
    with caplog.at_level(logging.INFO, "aviato"):
        evaluate([Task(command=["sleep", "0.5"])], base_url=server.url).result(60)
    told = [each for each in caplog.messages if each.startswith("evaluate")]
    assert told[0] == "evaluate: 0 of 1 done" and told[-1] == "evaluate: 1 of 1 done (1 passed)"


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("value", ["0", "off", "False", "no"])
def test_no_lines_either(
    sandbox: aviato.Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setenv(progress.VARIABLE, value)
    with caplog.at_level(logging.INFO, "aviato"):
        list(aviato.as_completed([sandbox.exec(["true"]) for _ in range(10)]))
        assert not any(" done" in each for each in caplog.messages)
        list(aviato.as_completed([sandbox.exec(["true"]) for _ in range(10)], progress=True))
        assert "as_completed: 10 of 10 done" in caplog.messages


def test_who_is_told(sandbox: aviato.Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.VARIABLE, "0")
    (tmp_path / "in").write_bytes(b"x" * 3_000_000)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"x" * 3_000_000)
    told: dict[str, list[tuple[int, int | None]]] = {}

    def note(name: str) -> Any:
        return lambda done, total: told.setdefault(name, []).append((done, total))

    async def main() -> None:
        async with aviato.AsyncClient(base_url=sandbox._state.config.connection.base_url) as client:
            other = await client.from_id(sandbox.sandbox_id)
            await other.upload(tmp_path / "in", "async", progress=note("async upload"))
            await other.download("async", tmp_path / "async", progress=note("async download"))
        items = [sandbox.exec(["true"]) for _ in range(3)]
        _ = [each async for each in aviato.as_completed(items, progress=note("async items"))]

    sandbox.upload(tmp_path / "in", "there", progress=note("upload")).result()
    sandbox.upload(tmp_path / "tree", "tree", progress=note("tree")).result()
    sandbox.download("tree", tmp_path / "back", progress=note("download tree")).result()
    _ = list(aviato.as_completed([sandbox.exec(["true"]) for _ in range(3)], progress=note("items")))
    asyncio.run(main())
    assert told["upload"][-1] == told["async upload"][-1] == (3_000_000, 3_000_000)
    assert told["async download"][-1] == (3_000_000, None)
    assert all(told[name][-1][0] > 3_000_000 and told[name][-1][1] is None for name in ("tree", "download tree"))
    assert told["items"] == told["async items"] == [(1, 3), (2, 3), (3, 3)]
    assert all(done == sorted(done) for done in ([one for one, _ in each] for each in told.values()))


@pytest.mark.parametrize("call", ["upload", "download", "as_completed", "evaluate"])
def test_what_it_cannot_be(call: str) -> None:
    wrong: Any = "yes"
    sandbox = aviato.Sandbox()
    calls: dict[str, Any] = {
        "upload": lambda: sandbox.upload("/etc/passwd", "there", progress=wrong),
        "download": lambda: sandbox.download("there", "here", progress=wrong),
        "as_completed": lambda: aviato.as_completed([], progress=wrong),
        "evaluate": lambda: evaluate([], progress=wrong),
    }
    with pytest.raises(TypeError, match="progress must be True, False, None, or a callable"):
        calls[call]()


class ZMQInteractiveShell:
    """What a kernel of Jupyter says that it is."""


class Written(io.StringIO):
    """What a cell shows."""


def test_one_line_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Written()
    monkeypatch.setattr(sys, "stderr", cell)
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(ZMQInteractiveShell)}))
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress, "BETWEEN_BARS_SECONDS", 0.0)
    run = Progress("evaluate", 4)
    for note in ("passed", "failed", "passed", "passed"):
        run.advance(note)
    pieces = cell.getvalue().split("\r")
    assert pieces[0] == "" and pieces[-1].rstrip(" ") == "evaluate: 100% 4 of 4, 0 s, 1 failed, 3 passed\n"
    assert "evaluate:  50% 2 of 4, 0 s, 1 failed, 1 passed" in [each.rstrip() for each in pieces]
    assert cell.getvalue().count("\n") == 1
    gone = Progress("upload 'x'", None, unit="bytes")
    gone.advance(count=1_500_000)
    gone.close()
    assert "upload 'x': 1.5 MB, 0 s" in cell.getvalue()


def test_a_run_that_is_left_half_way_leaves_the_screen_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_is_terminal", lambda file: True)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", Written())
    left = Progress("left", 4)
    left.advance()
    second = Progress("second", 4)
    second.advance()
    assert left._screen is not None and second._screen is None, "a terminal has room for one"
    del left
    gc.collect()
    second.advance()
    assert second._screen is not None
    second.close()


def test_who_is_not_told_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "_begin_to_tick", lambda *_: pytest.fail("no clock is needed"))
    monkeypatch.setattr(progress, "_may_draw", lambda: False)
    monkeypatch.setattr(progress.logger, "level", logging.WARNING)
    logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]
    begun = time.perf_counter()
    for _ in range(1000):
        with Progress("upload", 1):
            pass
    assert time.perf_counter() - begun < 5
    logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]
