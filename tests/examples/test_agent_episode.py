"""The example of agent episodes, as a user runs it, with a model that plays its part well, badly, and not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.openai_server import OpenAIServer, Reply, Request, ToolCall, broken_tool, malformed, text, tool

pytest.importorskip("openai")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rl_training" / "agent_episode.py"
MEDIAN = """def median(numbers):
    numbers, half = sorted(numbers), len(numbers) // 2
    return numbers[half] if len(numbers) % 2 else (numbers[half - 1] + numbers[half]) / 2
"""
GOOD = [
    Reply(tool_calls=[ToolCall("read_file", {"path": "median.py"}), ToolCall("bash", {"command": "ls; echo 7 > note"})]),
    tool("write_file", path="median.py", content=MEDIAN),
    tool("bash", command="cat note; python3 -c 'import median; print(median.median([2, 1]))'; exit 3"),
    tool("bash", command="head -c 20000 /dev/zero | tr '\\0' x"),
    text("Done."),
]
BAD = [
    tool("submit", code="1"),
    broken_tool("bash", '{"command": "ls'),
    broken_tool("bash", "[]"),
    tool("read_file"),
    tool("read_file", path="/missing"),
    tool("write_file", path="slug.py", content="import os\nos._exit(0)\n"),
    text(None),
]


def script(request: Request) -> Reply:
    if "median" in request.prompt:
        return GOOD[request.turn]
    if "slug" in request.prompt:
        return BAD[request.turn]
    return malformed() if request.turn else tool("bash", command="true")


def run(server: Any, api: OpenAIServer) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AVIATO_BASE_URL": server.url, "OPENAI_API_KEY": str(api.key)}
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--base-url", api.url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)


def test_good_bad_and_cut_short(server: Any) -> None:
    with OpenAIServer(script) as api:
        done = run(server, api)
        last = {request.prompt.split("(")[0]: request for request in api.requests}
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("  chunks.py: JSONDecodeError: ")
    assert lines[1:] == [
        "  median.py: reward=1.0 after 5 tool calls",
        "  slug.py: reward=0.0 after 6 tool calls",
        "  chunks.py: reward=None after 1 tool calls",
    ]
    before, listing, written, carried, much = last["median"].observations
    assert before.startswith("def median(numbers):\n    return numbers[")
    assert (listing, written, carried) == ("exit=0\nmedian.py\n", "The file is written.", "exit=3\n7\n1.5\n")
    assert much.endswith("[… 12007 characters left out …]")
    unknown, broken, no_object, missing, no_file, _ = last["slug"].observations
    assert "no tool 'submit'" in unknown
    assert all("these are no arguments of" in observation for observation in (broken, no_object, missing))
    assert "/missing" in no_file
    assert api.refused == []
    tools = {entry["function"]["name"] for entry in api.requests[0].body["tools"]}
    assert tools == {"bash", "read_file", "write_file"}


def test_a_model_that_ends_its_sandbox_has_failed(server: Any) -> None:
    def kill(request: Request) -> Reply:
        return text("") if request.turn else tool("bash", command="rm -f *.py; kill -9 -1; kill -9 1")

    with OpenAIServer(kill) as api:
        done = run(server, api)
    assert [line.split(" after")[0] for line in done.stdout.splitlines()] == [
        f"  {name}.py: reward=0.0" for name in ("median", "slug", "chunks")
    ]
