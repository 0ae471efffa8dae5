"""The way of a command through the package, as docs/architecture.md lists it: from `Sandbox.exec` to process 1 and back."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.called import Function, calls
from tests.conftest import in_interpreter, make_state_dir, remove, start_server

ROOT = Path(__file__).resolve().parents[2]
MOST = 102
"""Functions of client and server together. More is a way that has become longer: say why, or make another step less."""
SPANS = 5
QUIET_SECONDS = 0.3
"""So long after a command all that is told or put on record of it later was."""
AFTER_NANOSECONDS = 50_000_000
"""What closes up behind an answer belongs to its command; what is told of many commands at once does not."""
RECORD = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tests.called import record\nrecord({{path!r}})\n"
CLIENT = """
import json, time
import aviato
spans = []
with aviato.Sandbox() as sandbox:
    sandbox.exec(["true"]).result()
    for _ in range({spans}):
        time.sleep({quiet})
        begin = time.monotonic_ns()
        sandbox.exec(["true"]).result()
        spans.append((begin, time.monotonic_ns() + {after}))
    time.sleep({quiet})
print(json.dumps(spans))
"""
ENCODINGS = {
    "client": {Function("core/client.py", "encode_exec"): 1, Function("core/client.py", "decode"): 1},
    "server": {Function("server/operations/table.py", "parse_body"): 1, Function("server/link/payload.py", "as_json"): 1},
}
"""What makes text of a command and reads it, and how often: its request, and on the way back its end."""

Traced = dict[str, list[Counter[Function]]]


@pytest.fixture(scope="module")
def traced(_private_environment: None) -> Traced:
    """What client and server call for each of several commands, one after the other, in a sandbox that runs."""
    directory = make_state_dir()
    files = {side: directory / side for side in ("client", "server")}
    running = start_server(directory, first=RECORD.format(path=str(files["server"])))
    try:
        program = RECORD.format(path=str(files["client"])) + CLIENT.format(
            spans=SPANS, quiet=QUIET_SECONDS, after=AFTER_NANOSECONDS
        )
        done = in_interpreter(program, timeout=250, AVIATO_BASE_URL=running.url)
        assert done.returncode == 0, done.stderr
        spans = [(begin, end) for begin, end in json.loads(done.stdout)]
        return {side: calls(path, spans) for side, path in files.items()}
    finally:
        running.stop()
        remove(directory)


def usual(found: list[Counter[Function]]) -> set[Function]:
    """What most of the commands call: a timer that comes at one of them is none of it, nor a machine that was slow once."""
    often = Counter(function for counted in found for function in counted)
    return {function for function, times in often.items() if times > SPANS // 2}


def listed(side: str) -> list[Function]:
    """The functions that the page has for a side."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    part = re.search(rf"^\*\*{side}\*\*.*?\n\n(.*?)(?=^\*\*|^#|\Z)", page, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    assert part is not None
    rows = re.findall(r"^\* `([^`]+)`: (.*?)(?=^\* |\Z)", part[1], re.MULTILINE | re.DOTALL)
    return [Function(file, name) for file, names in rows for name in re.findall(r"`([^`]+)`", names)]


def rows(found: list[Counter[Function]]) -> str:
    """How the page has them: a file a row, in the order of the first calls."""
    names: dict[str, list[str]] = {}
    way = usual(found)
    for function in dict.fromkeys(function for counted in found for function in counted):
        if function in way:
            names.setdefault(function.file, []).append(f"`{function.name}`")
    lines = [f"* `{file}`: {', '.join(of_file)}" for file, of_file in names.items()]
    return "\n".join(textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


@pytest.mark.parametrize("side", ["client", "server"])
def test_the_way_is_as_the_page_says(traced: Traced, side: str) -> None:
    said = listed(side)
    assert len(said) == len(set(said))
    assert set(said) == usual(traced[side]), rows(traced[side])


def test_the_way_is_as_long_as_it_was(traced: Traced) -> None:
    assert sum(len(usual(found)) for found in traced.values()) <= MOST


@pytest.mark.parametrize("side", ["client", "server"])
def test_each_way_is_written_once_and_read_once(traced: Traced, side: str) -> None:
    for function, times in ENCODINGS[side].items():
        assert sorted(counted[function] for counted in traced[side])[SPANS // 2] == times, function
