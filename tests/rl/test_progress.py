"""A run of many items shows how far it is: on a terminal a bar, in the log lines, and nothing where nobody wants it."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from aviato.progress import Progress
from aviato.rl import Task, evaluate
from tests.terminal import said_on

ROWS = """
import sys
from aviato.rl import Task, evaluate
tasks = [Task(code=f"import time; time.sleep(0.1)\\ndef f(): return {n}", tests=["assert f() % 2 == 0"]) for n in range(500)]
print(sum(one.passed for one in evaluate(tasks, max_concurrency=40, timeout_seconds=60, progress=eval(sys.argv[1])).result()))
"""


def on_a_terminal(url: str, progress: str) -> tuple[str, str]:
    """What 500 rows print, and what a terminal shows of them meanwhile."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "AVIATO_BASE_URL": url, "TERM": "xterm", "COLUMNS": "120"}
    started = subprocess.Popen(
        [sys.executable, "-c", ROWS, progress], stdout=subprocess.PIPE, stderr=theirs, env=variables, stdin=subprocess.DEVNULL
    )
    os.close(theirs)
    shown = said_on(ours)
    assert started.stdout is not None
    return started.communicate(timeout=250)[0].decode(), shown.decode(errors="replace")


def test_500_rows_show_their_progress(server: Any) -> None:
    printed, shown = on_a_terminal(server.url, "None")
    assert printed == "250\n"
    assert "evaluate" in shown and "/500" in shown and "passed" in shown and "failed" in shown
    assert len(shown) < 200_000


@pytest.mark.deep
def test_nothing_is_shown_where_nobody_wants_it(server: Any) -> None:
    assert on_a_terminal(server.url, "False") == ("250\n", "")


def test_no_terminal_no_bar(server: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    monkeypatch.setattr("aviato.progress.FIRST_SECONDS", 0.0)
    assert evaluate([Task(code="pass")] * 3).result(50)[2].passed
    assert capfd.readouterr() == ("", "")


def test_lines_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("aviato.progress.BETWEEN_LINES_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "aviato"):
        run = Progress("evaluate", 3)
        for note in ("passed", "failed", "passed"):
            run.advance(note)
    assert [record.getMessage() for record in caplog.records] == [
        "evaluate: 1 of 3 done (1 passed)",
        "evaluate: 2 of 3 done (1 failed, 1 passed)",
        "evaluate: 3 of 3 done (1 failed, 2 passed)",
    ]


def test_one_who_is_told_and_raises(caplog: pytest.LogCaptureFixture) -> None:
    def told(done: int, total: int) -> None:
        raise ValueError

    Progress("evaluate", 2, told).advance()
    assert "the progress callback of evaluate raised" in caplog.text
