"""The comparison with others: scripts that can be shown, rows that say what isolates, reasons for who is not measured."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aviato.bench.run import Run
from aviato.bench.series import Series, ratio

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from peers import PEERS, SIZES, WORKS, Row, reporting, rows  # noqa: E402
from peers.driven import Driven, PeerError  # noqa: E402
from peers.environments import NotInstalledError, interpreter  # noqa: E402

QUICK = {name: size.quick for name, size in SIZES.items()}
BARE = PEERS["bare subprocess"]


def compare(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "compare.py"), *arguments]
    environment = {**os.environ, "COLUMNS": "200", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)


def written(tmp_path: Path, text: str, **changes: Any) -> Any:
    """A peer with this script."""
    (tmp_path / "own.py").write_text(text)
    return dataclasses.replace(BARE, script=str(tmp_path / "own"), **changes)


@pytest.mark.parametrize("name", PEERS)
def test_a_script_is_short_and_has_what_the_works_call(name: str) -> None:
    text = PEERS[name].path.read_text()
    assert len(text.splitlines()) <= 40
    functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    needed = {"create", "run", "stop"} | ({"write", "read", "snapshot"} - set(PEERS[name].lacks))
    assert needed <= functions


def test_every_row_says_its_isolation_and_only_isolating_peers_have_to_be_beaten() -> None:
    assert all(peer.isolation for peer in PEERS.values())
    assert {name for name, peer in PEERS.items() if peer.isolation == "none"} == {
        name for name, peer in PEERS.items() if not peer.isolates
    }
    assert {name for name, peer in PEERS.items() if peer.is_rival} == {"llm-sandbox", "sandlock", "kern", "podman", "Docker"}
    assert [name for name, peer in PEERS.items() if peer.kind == "floor"] == ["bare runc", "bare bwrap", "bare subprocess"]


def test_show_prints_the_script() -> None:
    done = compare("--show", "sandlock")
    assert done.stdout == PEERS["sandlock"].path.read_text() and done.returncode == 0


@pytest.mark.deep
def test_one_run_compares_everyone_that_is_here_and_says_why_the_others_are_not(server: Any, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    without = {"XDG_CACHE_HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    done = compare("--quick", "--no-install", "--json", str(result), AVIATO_BASE_URL=server.url, **without)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    measured = {(row["work"], row["name"]): row for row in found["figures"]["rows"]}
    assert set(measured) == {(work, name) for work in WORKS for name in PEERS}
    for (work, name), row in measured.items():
        assert row["isolation"]
        assert bool(row["measured"]) != bool(row["failure"])
        if name.startswith("aviato") and work not in PEERS[name].lacks and (work != "memory" or os.getuid() == 0):
            # A few sandboxes hold less than the memory of a server moves by itself.
            assert row["measured"] and (work == "memory" or min(row["measured"]) > 0), row["failure"]
    assert measured["create", "bare subprocess"]["ratio"]["value"] < 1
    assert measured["exec", "bare bwrap"]["failure"] == "keeps nothing between commands"
    assert "llm-sandbox==0.3.46 is not installed" in measured["create", "llm-sandbox"]["failure"]
    assert "SANDBOX_FUSION_ENDPOINT" in done.stdout and reporting.QUESTION in done.stdout
    podman = "podman is not installed" not in done.stdout
    assert bool(found["ratios"]) is podman and ("nobody to compare with" in done.stdout) is not podman


@pytest.mark.parametrize("name", ["llm-sandbox", "sandlock", "kern", "SWE-ReX"])
def test_a_peer_does_every_work_that_it_does_not_lack(name: str) -> None:
    try:
        interpreter(PEERS[name], install=False)
    except NotInstalledError as error:
        pytest.skip(str(error))
    for row in rows(Run(QUICK | {"rounds": 1}), peers=[name], install=False):
        expected = PEERS[name].lacks.get(row.work.name)
        if row.work.name != "memory" or os.getuid() == 0:
            assert row.failure == expected, row
            assert expected or len(row.seconds) == 1


def test_a_peer_whose_call_fails_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = BARE.path.read_text().replace("return done.returncode,", "return 3,")
    monkeypatch.setitem(PEERS, "broken", written(tmp_path, text, name="broken"))
    found = {row.name: row for row in rows(Run(QUICK), peers=["broken", "bare subprocess"], works=["exec"])}
    assert found["broken"].failure == "RuntimeError: /bin/true ended with status 3" and not found["broken"].seconds
    assert len(found["bare subprocess"].seconds) == 2


def test_who_fails_in_the_middle_leaves_the_others_their_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = BARE.path.read_text().replace(
        "def run(directory, argv):", "turns = [1, 1, 1, 1]\n\n\ndef run(directory, argv):\n    turns.pop()"
    )
    monkeypatch.setitem(PEERS, "broken", written(tmp_path, text, name="broken"))
    found = {row.name: row for row in rows(Run(QUICK | {"rounds": 5}), peers=["broken", "bare subprocess"], works=["exec"])}
    assert found["broken"].failure == "IndexError: pop from empty list" and not found["broken"].seconds
    assert len(found["bare subprocess"].seconds) == 5


@pytest.mark.parametrize("together", [False, True])
def test_a_row_does_not_depend_on_the_works_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, together: bool) -> None:
    begun = tmp_path / "begun"
    text = BARE.path.read_text() + f"\n\nopen({str(begun)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    text = text.replace('prefix="bare-"', f"dir={str(tmp_path)!r}")
    monkeypatch.setitem(PEERS, "noted", written(tmp_path, text, name="noted"))
    works = ["exec", "write", "read"]
    found = rows(Run(QUICK), peers=["noted"], works=works, together=together)
    assert [row.failure for row in found] == [None] * 3
    assert len(set(begun.read_text().split())) == (1 if together else 3)
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name.startswith("tmp")]


def test_a_file_is_read_though_nothing_was_measured_before(tmp_path: Path) -> None:
    (row,) = rows(Run(QUICK), peers=["bare subprocess"], works=["read"])
    assert row.failure is None and len(row.seconds) == 2


def test_what_cannot_be_had_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def interpreter(peer: Any, *, install: bool) -> list[str]:
        asked.append(peer.name)
        raise NotInstalledError("not here")

    monkeypatch.setattr("peers.driven.interpreter", interpreter)
    found = rows(Run(QUICK), peers=["sandlock"], works=["create", "exec"])
    assert [row.failure for row in found] == ["not here"] * 2 and asked == ["sandlock"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("import os\nos.write(2, b'out of luck')\nos._exit(1)", "its process ended: out of luck"),
        ("print('not an answer')\ndef create(): raise LookupError('a\\nb')", "LookupError: a b"),
    ],
)
def test_reasons_are_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with Driven(written(tmp_path, text), {}) as driven, pytest.raises(PeerError) as failed:
        driven.ask("create")
    assert str(failed.value).endswith(reason)


def test_a_peer_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("peers.driven.ANSWER_SECONDS", 0.5)
    with Driven(written(tmp_path, "import time\ntime.sleep(600)"), {}) as driven, pytest.raises(PeerError, match="no answer"):
        driven.ask("create")


def test_a_client_with_many_descriptors_hears_its_peers(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1_200:
        pytest.skip("no process may have so many descriptors here")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1_200), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1_030):
            stack.enter_context(open(os.devnull))
        assert stack.enter_context(Driven(BARE, {})).ask("exec") > 0


def test_a_peer_stops_what_it_keeps_when_its_input_ends(tmp_path: Path) -> None:
    text = BARE.path.read_text() + f"\n\ndef close():\n    open({str(tmp_path / 'closed')!r}, 'w').close()\n"
    with Driven(written(tmp_path, text.replace('prefix="bare-"', f"dir={str(tmp_path)!r}")), {}) as driven:
        driven.ask("exec")
        kept = [path for path in tmp_path.iterdir() if path.is_dir()]
        assert len(kept) == 1
    assert not kept[0].exists() and (tmp_path / "closed").exists()


@pytest.mark.deep
def test_what_cannot_be_installed_is_said_in_pip_s_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    peer = dataclasses.replace(BARE, requirements=("./nothing_of_that_name",))
    with pytest.raises(NotInstalledError, match="nothing_of_that_name"):
        interpreter(peer)
    with pytest.raises(NotInstalledError, match="is not installed in"):
        interpreter(peer, install=False)


@pytest.mark.parametrize(
    ("theirs", "verdict"), [([2.0, 2.1, 2.2] * 3, "ahead"), ([0.5, 0.6, 0.7] * 3, "behind"), ([0.5, 1.0, 2.0] * 3, "even")]
)
def test_ahead_is_an_interval_above_one(theirs: list[float], verdict: str) -> None:
    row = Row(PEERS["sandlock"], WORKS["exec"], theirs, ratio=ratio(Series("theirs", theirs), Series("ours", [1.0] * 9)))
    assert row.verdict == verdict
    found = reporting.report([row], QUICK)
    assert list(found.ratios) == ["beside sandlock, its best work: exec"]
    assert found.tables[-1].rows[-1][-1] == ("yes" if verdict == "ahead" else "no")
