"""An item of `evaluate` costs one request, and a lost answer is a failure of the machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from aviato.core import following
from aviato.core.client import Client
from aviato.exceptions import SandboxUnavailableError
from aviato.rl import Task, Verdict, evaluate
from aviato.transport.http import HttpTransport
from aviato.transport.run_stream import RunStream
from aviato.wire.execution import Acknowledgements
from aviato.wire.frames import HEAD, FrameType
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

    streamed = HttpTransport.ask_in_stream

    async def asked(self: HttpTransport, body: bytes) -> Any:
        answer = await streamed(self, body)
        found["POST /v1/runs"] += answer is not None
        return answer

    monkeypatch.setattr(HttpTransport, "open", opened)
    monkeypatch.setattr(HttpTransport, "ask_in_stream", asked)
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
    session.close().result(30)
    assert not aviato.Sandbox.list(tags=["cancelled"]).result(20)  # Those of other tests may be about to end.


BATCHES = {
    "commands": [Task(command=["sh", "-c", f"exit {number % 2}"]) for number in range(40)],
    "input": [Task(command=["sh", "-c", "exit $(cat)"], stdin=f"{number % 2}") for number in range(40)],
    "tests": [Task(code=f"{'# ' + '.' * 8000}\nn = {number}", tests=["assert n % 2 == 0"]) for number in range(40)],
}


@pytest.mark.parametrize("kind", BATCHES)
def test_of_a_batch_most_items_go_over_one_stream(session: aviato.Session, sent: Counter[str], kind: str) -> None:
    requests = Counter[str]()
    usual = HttpTransport.open

    async def opened(self: HttpTransport, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        requests[f"{method} {path}"] += 1
        return await usual(self, method, path, *arguments, **options)

    HttpTransport.open = opened  # type: ignore[method-assign]
    try:
        outcomes = evaluate(BATCHES[kind], session=session, max_concurrency=4).result(50)
    finally:
        HttpTransport.open = usual  # type: ignore[method-assign]
    assert [outcome.passed for outcome in outcomes] == [True, False] * 20
    assert sent["POST /v1/runs"] == 40 and requests["POST /v1/runs"] <= 12


def test_what_came_over_a_stream_is_confirmed_there(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []
    by_request: list[str] = []
    usual, sending = RunStream._send, Client.acknowledge

    def send(self: RunStream, frame: bytes) -> None:
        if frame[0] == FrameType.CONFIRMED:
            said.append((len(frame) - HEAD.size) // 8)
        usual(self, frame)

    async def acknowledge(self: Client, acknowledgements: Acknowledgements) -> None:
        by_request.extend(ack.exec_id for ack in acknowledgements.execs)
        await sending(self, acknowledgements)

    monkeypatch.setattr(RunStream, "_send", send)
    monkeypatch.setattr(Client, "acknowledge", acknowledge)
    tasks = [Task(command=["echo", str(number)]) for number in range(60)]
    assert all(outcome.passed for outcome in evaluate(tasks, session=session, max_concurrency=4).result(50))
    time.sleep(0.3)  # They are told in the background.
    assert sum(said) >= 48 and len(said) < 30 and len(by_request) <= 12


def test_items_whose_stream_is_cut_end_once_and_well(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, cuts = RunStream.ask, []

    async def cut(self: RunStream, body: bytes, seconds: float) -> Any:
        if len(cuts) < 5:
            cuts.append(self._loop.call_later(0.02 * len(cuts), self.close))
        return await usual(self, body, seconds)

    monkeypatch.setattr(RunStream, "ask", cut)
    tasks = [Task(command=["sh", "-c", f"sleep 0.1; echo {number}"]) for number in range(40)]
    outcomes = evaluate(tasks, session=session, max_concurrency=4, retry_budget_seconds=0).result(50)
    assert len(cuts) == 5 and {outcome.attempts for outcome in outcomes} == {1}
    assert [outcome.result.stdout for outcome in outcomes if outcome.result is not None] == [f"{i}\n" for i in range(40)]
