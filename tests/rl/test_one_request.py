"""An item of `evaluate` costs one request, and a lost answer is a failure of the machine."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from aviato.core import following
from aviato.exceptions import SandboxUnavailableError
from aviato.rl import Task, Verdict, evaluate
from aviato.transport import http
from aviato.transport.http import HttpTransport
from aviato.transport.resolution import endpoint
from aviato.transport.session import Session
from aviato.wire.ids import new_sandbox_id

RIGHT = Task(code="def f(n): return n * 2", tests=["assert f(2) == 4"])
WRONG = Task(code="def f(n): return n * 3", tests=["assert f(2) == 4"])


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session() as made:
        yield made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found: Counter[str] = Counter()
    usual = HttpTransport.open

    async def opened(self: HttpTransport, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        found[f"{method} {path}"] += 1
        return await usual(self, method, path, *arguments, **options)

    monkeypatch.setattr(HttpTransport, "open", opened)
    return found


def test_one_request_an_item(session: aviato.Session, sent: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SOON_SECONDS", 60.0)  # On a busy machine the server is asked whether it runs yet.
    first = new_sandbox_id()
    tasks = [RIGHT, WRONG, Task(command=["sh", "-c", "cat >&2; exit 1"], stdin=b"x"), Task(command=["sleep", "0.5"])]
    outcomes = evaluate(tasks, session=session).result(50)
    assert [outcome.passed for outcome in outcomes] == [True, False, False, True]
    assert sent["POST /v1/runs"] == 4
    # Confirmations of earlier tests may be on their way, and what they still ask of their sandboxes.
    other = [path for path in sent if not path.startswith(("POST /v1/runs", "PUT /v1/leases", "POST /v1/acknowledgements"))]
    assert not [path for path in other if path.partition("/v1/sandboxes/")[2] >= first or "/v1/sandboxes/" not in path]


def test_an_item_with_files_has_them_before_it_begins(session: aviato.Session) -> None:
    task = Task(command=["cat", "data.txt"], files={"data.txt": b"here"})
    (outcome,) = evaluate([task], session=session).result(50)
    assert outcome.passed and outcome.result is not None and outcome.result.stdout == "here"


def test_a_session_with_places_gives_each_back(server: Any, monkeypatch: pytest.MonkeyPatch, sent: Counter[str]) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session(max_concurrency=2) as session:
        outcomes = evaluate([RIGHT] * 5, session=session).result(50)
    assert all(outcome.passed for outcome in outcomes)
    assert sent["POST /v1/runs"] == sum(outcome.attempts for outcome in outcomes)  # More than 5 on a busy machine.


def test_a_result_that_was_lost_on_its_way_is_asked_for_again(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, cut = HttpTransport.open, []

    async def opened(self: HttpTransport, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        response = await usual(self, method, path, *arguments, **options)
        if path == "/v1/runs" and not cut:
            cut.append(path)
            await response.read()
            raise SandboxUnavailableError("the connection was cut", reason="connection_lost")
        return response

    monkeypatch.setattr(HttpTransport, "open", opened)
    (outcome,) = evaluate([WRONG], session=session, retry_budget_seconds=0).result(50)
    assert (outcome.verdict, outcome.attempts) == (Verdict.FAILED, 1)


def test_a_server_without_the_request_is_asked_step_by_step(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = HttpTransport.open

    async def opened(self: HttpTransport, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        return await usual(self, method, path.replace("/v1/runs", "/v1/nothing-of-this-name"), *arguments, **options)

    monkeypatch.setattr(HttpTransport, "open", opened)
    assert [outcome.passed for outcome in evaluate([RIGHT, WRONG], session=session).result(50)] == [True, False]


def test_cancelled_it_leaves_nothing(session: aviato.Session) -> None:
    running = evaluate([Task(command=["sleep", "60"])] * 3, session=session, tags=["cancelled"])
    running.items[0].cancel()
    running.cancel()
    session.close().result(60)
    assert not aviato.Sandbox.list(tags=["cancelled"]).result(60)  # Those of other tests may be about to end.


BATCHES = {
    "commands": [Task(command=["sh", "-c", f"exit {number % 2}"]) for number in range(40)],
    "input": [Task(command=["sh", "-c", "exit $(cat)"], stdin=f"{number % 2}") for number in range(40)],
    "tests": [Task(code=f"{'# ' + '.' * 8000}\nn = {number}", tests=["assert n % 2 == 0"]) for number in range(40)],
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_has_one_connection(session: aviato.Session, server: Any, sent: Counter[str], kind: str) -> None:
    outcomes = evaluate(BATCHES[kind], session=session, max_concurrency=4).result(50)
    assert [outcome.passed for outcome in outcomes] == [True, False] * 20
    assert sent["POST /v1/runs"] == 40
    ours = http._servers[endpoint(server.url)]
    pools = [pools[ours] for pools in http._pools.values() if ours in pools]
    assert [len(pool.sessions._all) for pool in pools if pool.sessions is not None] == [1]


def test_whole_results_are_confirmed_many_at_a_time(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []
    usual = HttpTransport.open

    async def opened(self: HttpTransport, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        if path == "/v1/acknowledgements":
            said.append(len(json.loads(arguments[0])["execs"]))
        return await usual(self, method, path, *arguments, **options)

    monkeypatch.setattr(HttpTransport, "open", opened)
    tasks = [Task(command=["echo", str(number)]) for number in range(60)]
    assert all(outcome.passed for outcome in evaluate(tasks, session=session, max_concurrency=4).result(50))
    deadline = time.monotonic() + 60
    while sum(said) < 60 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(said) >= 60 and len(said) < 40


def test_items_whose_session_is_cut_end_once_and_well(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, cuts = Session.ask, []

    async def cut(self: Session, *arguments: Any, **options: Any) -> Any:
        if len(cuts) < 5:
            cuts.append(self.loop.call_later(0.02 * len(cuts), self.abort))
        return await usual(self, *arguments, **options)

    monkeypatch.setattr(Session, "ask", cut)
    tasks = [Task(command=["sh", "-c", f"sleep 0.1; echo {number}"]) for number in range(40)]
    outcomes = evaluate(tasks, session=session, max_concurrency=4, retry_budget_seconds=0).result(50)
    assert len(cuts) == 5 and {outcome.attempts for outcome in outcomes} == {1}
    assert [outcome.result.stdout for outcome in outcomes if outcome.result is not None] == [f"{i}\n" for i in range(40)]
