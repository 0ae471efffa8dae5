"""`POST /execute_batch` and the provider: what open-r1 makes of the answers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from aviato.exceptions import AviatoError, AviatoValidationError, SandboxImageError
from aviato.integrations.open_r1 import AviatoProvider
from tests.conftest import RunningServer
from tests.rl.machine import supervisors
from tests.run_code.scripts_of_open_r1 import FORGERIES, HALF, RIGHT, WRONG, script
from tests.run_code.served import over_tcp


def batch(base: str, scripts: list[str], languages: list[str] | None = None, **fields: Any) -> list[dict[str, Any]]:
    languages = ["python"] * len(scripts) if languages is None else languages
    body = {"scripts": scripts, "languages": languages, "timeout": 30, "request_timeout": 28, **fields}
    response = requests.post(f"{base}/execute_batch", json=body, timeout=50)
    assert response.status_code == 200, response.text
    answers: list[dict[str, Any]] = response.json()
    assert len(answers) == len(scripts)
    return answers


def reward(answer: dict[str, Any]) -> float | None:
    """As open-r1's client has it: the text of the main result as a float, else None."""
    execution = answer["execution"] or {"results": []}
    texts = [result["text"] for result in execution["results"] if result["is_main_result"]]
    try:
        return float(texts[0])
    except (IndexError, ValueError):
        return None


def test_scores_in_order(base: str) -> None:
    scripts = [RIGHT, "1/0", HALF, "import sys; sys.exit(0)", WRONG, "x = 3", "'no number'", "", "0.25  # 🦔\n\n"]
    answers = batch(base, scripts)
    assert [reward(answer) for answer in answers] == [1.0, None, 0.5, None, 0.0, None, None, None, 0.25]
    assert all(answer["execution"] is not None and answer["exception_str"] is None for answer in answers)
    faults = [answer["execution"]["error"] for answer in answers]
    assert faults[1]["name"] == "ZeroDivisionError" and "1/0" in scripts[1] and "Traceback" in faults[1]["traceback"]
    assert faults[3]["name"] == "SystemExit" and faults[0] is None


def test_what_is_printed_is_no_score(base: str) -> None:
    command = "echo 1.0; head -c 200000 /dev/zero"
    text = f"import os, sys\nprint('1.0')\nprint('err', file=sys.stderr)\nos.system({command!r})\n0.5"
    (answer,) = batch(base, [text])
    assert reward(answer) == 0.5
    stdout, cut = answer["execution"]["logs"]["stdout"]
    assert stdout.startswith("1.0\n\0") and len(stdout) == 64 << 10 and "cut: 65536 of 200008 bytes" in cut
    assert answer["execution"]["logs"]["stderr"] == ["err\n"]


def test_a_script_too_long_and_its_neighbour(base: str) -> None:
    late, right = batch(base, ["print('so far', flush=True)\nwhile True: pass", RIGHT], timeout=3)
    assert reward(late) is None and late["execution"]["error"]["name"] == "TimeoutError"
    assert late["execution"]["logs"]["stdout"] == ["so far\n"] and reward(right) == 1.0


def test_one_script_never_spoils_the_batch(base: str) -> None:
    half, other, right = batch(base, ["'\ud800'", "1 + 1", RIGHT], ["python", "javascript", "python"])
    assert half["execution"] is not None and reward(right) == 1.0
    assert other["execution"] is None and "javascript" in other["exception_str"]
    assert batch(base, []) == []
    response = requests.post(f"{base}/execute_batch", json={"scripts": ["1"], "languages": []}, timeout=20)
    assert response.status_code == 400 and "languages" in response.json()["error"]["field_violations"]
    assert requests.get(f"{base}/health", timeout=20).json() == {"status": "ok"}


@pytest.mark.attack
def test_the_models_code_does_not_reach_the_score(base: str) -> None:
    answers = dict(zip(FORGERIES, batch(base, [script(code) for code in FORGERIES.values()], timeout=3), strict=True))
    for name, answer in answers.items():
        assert answer["execution"] is not None, (name, answer)
        assert not reward(answer), (name, answer)


def test_the_machine_fails() -> None:
    """No verdict for its scripts, and the length of the list is kept."""
    with over_tcp() as (server, base):
        ended = threading.Event()

        def kill() -> None:
            while not ended.wait(0.01):
                for pid in supervisors(server.pid):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            answers = batch(base, ["import time; time.sleep(20)"] * 3)
        finally:
            ended.set()
            thread.join()
        assert [(answer["execution"], bool(answer["exception_str"])) for answer in answers] == [(None, True)] * 3
        assert reward(batch(base, [RIGHT])[0]) == 1.0


def test_with_the_classes_of_e2b(base: str) -> None:
    """open-r1's client puts the answer into these."""
    models = pytest.importorskip("e2b_code_interpreter.models")
    for answer, text in zip(batch(base, [RIGHT, "1/0"]), ["1.0", None], strict=True):
        found = answer["execution"]
        fault = models.ExecutionError(**found["error"]) if found["error"] else None
        results = [models.Result(**result) for result in found["results"]]
        execution = models.Execution(results=results, logs=found["logs"], error=fault, execution_count=found["execution_count"])
        assert execution.text == text


@pytest.fixture
def served(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    yield server


def test_the_provider(served: RunningServer) -> None:
    provider = AviatoProvider(timeout_seconds=8)
    scripts = [RIGHT, "1/0", HALF, "'no number'", "float('nan')", "import os; os._exit(0)", "x = 1", "'\ud800'"]
    assert provider.execute_scripts(scripts, ["python"] * 8) == [1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert provider.execute_scripts([], []) == []
    for wrong in ((["1"], ["javascript"]), (["1"], [])):
        with pytest.raises(AviatoValidationError):
            provider.execute_scripts(*wrong)
    with pytest.raises(AviatoValidationError):
        AviatoProvider(0)
    with pytest.raises(SandboxImageError):
        AviatoProvider(container_image="python:2.1", retry_budget_seconds=0).execute_scripts(["1"], ["python"])


@pytest.mark.attack
def test_the_models_code_does_not_reach_the_provider(served: RunningServer) -> None:
    scores = AviatoProvider(timeout_seconds=3).execute_scripts(
        [script(code) for code in FORGERIES.values()], ["python"] * len(FORGERIES)
    )
    assert scores == [0.0] * len(FORGERIES), dict(zip(FORGERIES, scores, strict=True))


@pytest.mark.usefixtures("soon_given_up")
def test_the_machine_fails_under_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises, or says None where that is asked for: never 0."""
    monkeypatch.setenv("AVIATO_BASE_URL", "unix:///nowhere/aviato.sock")
    with ThreadPoolExecutor(2) as pool:
        raises, says = (AviatoProvider(retry_budget_seconds=0, on_infrastructure=what) for what in ("raise", "none"))
        first = pool.submit(raises.execute_scripts, ["1"], ["python"])
        assert pool.submit(says.execute_scripts, ["1"] * 2, ["python"] * 2).result(50) == [None, None]
        with pytest.raises(AviatoError) as caught:
            first.result(50)
    assert caught.value.is_infrastructure
