"""The environment as a trainer uses it, without a trainer: tools, grading, what the machine does, and what it must not do."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from aviato.rl import Outcome
from aviato.rl.trl import SandboxEnvironment, SelfGradingEnvironment, environment_reward
from aviato.rl.trl.observations import cut
from tests.rl.machine import kill_supervisor

TESTS = ["assert double(2) == 4", "assert double(3) == 6"]
RIGHT = "def double(n): return 2 * n\n"


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.16.0")
    with aviato.Session() as made:
        yield made


@pytest.fixture
def environment(session: aviato.Session) -> SandboxEnvironment:
    made = SandboxEnvironment(session=session, command_timeout_seconds=2, observation_bytes=200)
    made.reset(prompt="?", tests=TESTS)
    return made


def tools(kind: type) -> list[str]:
    """What TRL offers to the model: every public method but two."""
    names = [name for name, _ in inspect.getmembers(kind, predicate=inspect.isfunction) if not name.startswith("_")]
    return sorted(set(names) - {"reset", "get_reward"})


def test_only_the_tools_are_public_and_all_are_described() -> None:
    assert tools(SandboxEnvironment) == tools(SelfGradingEnvironment) == ["bash", "read_file", "write_file"]
    assert not hasattr(SandboxEnvironment, "get_reward")
    made = SandboxEnvironment()
    assert sorted(name for name in dir(made) if not name.startswith("_")) == ["bash", "read_file", "reset", "write_file"]
    for name in tools(SandboxEnvironment):
        tool = getattr(made, name)
        described = inspect.signature(tool)
        assert not inspect.iscoroutinefunction(tool)
        for parameter in described.parameters.values():
            assert parameter.annotation == "str" and f"{parameter.name}: " in tool.__doc__


def test_an_episode(environment: SandboxEnvironment) -> None:
    assert environment.write_file("solution.py", RIGHT) == f"{len(RIGHT)} bytes written"
    assert environment.read_file("solution.py") == RIGHT
    assert environment.bash("python3 -c 'from solution import double; print(double(4))'; exit 3") == "exit=3\n8\n"
    assert environment.bash("echo out; echo err >&2") == "exit=0\nout\nerr\n"
    assert environment_reward()(environments=[environment]) == [1.0]


def test_reset_costs_nothing_and_uses_instances_again(session: aviato.Session, server: Any) -> None:
    environments = [SandboxEnvironment(session=session) for _ in range(8)]
    assert session.sandbox_count == 0
    begin = time.monotonic()
    for environment in environments:
        environment.reset(tests=TESTS)
    spent = time.monotonic() - begin
    assert session.sandbox_count == 8  # started without being used
    assert environments[0].write_file("left", "over") == "4 bytes written"
    assert spent < 0.25
    for environment in environments:
        environment.reset(tests=TESTS)
    assert "Error" in environments[0].read_file("left")
    deadline = time.monotonic() + 20
    while session.sandbox_count > 8:  # the first ones end by themselves
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_the_model_does_wrong_is_text(environment: SandboxEnvironment) -> None:
    assert "no_such" in environment.read_file("no_such.txt")
    assert environment.bash(["ls"]) == "Error: command must be text"  # type: ignore[arg-type]
    assert environment.read_file(None) == "Error: path must be text"  # type: ignore[arg-type]
    assert environment.write_file("x", 1) == "Error: content must be text"  # type: ignore[arg-type]
    assert environment.write_file("x", "a\ud800b") == "3 bytes written"
    assert "Error" in environment.bash("echo \0")
    assert "Error" in environment.read_file("\0")
    assert "Error" in environment.read_file("/")
    assert environment.bash("exit 0; " + "x" * 200_000).startswith(("exit=", "Error: "))
    slow = environment.bash("echo begun; sleep 60")
    assert slow == "The command ran longer than 2 seconds and was ended.\nbegun\n"
    assert SandboxEnvironment().bash("true").startswith("Error: there is no episode")
    assert environment_reward()(environments=[environment]) == [0.0]  # no solution was written


def test_long_output_is_cut_visibly(environment: SandboxEnvironment) -> None:
    text = environment.bash("head -c 100000 /dev/zero | tr '\\0' a; echo end >&2")
    assert text.startswith("exit=0\naaaa") and text.endswith("aaa" + "end\n")
    assert "\n[… 99804 of 100004 bytes left out …]\n" in text
    environment.write_file("long", "b" * 70_000)
    assert environment.read_file("long") == "b" * 200 + "\n[… 69800 of 70000 bytes left out …]\n"
    assert cut("é".encode() * 10, None, 6) == "é\n[… 14 of 20 bytes left out …]\né"


def test_rows_say_what_is_there_and_what_is_asked(session: aviato.Session) -> None:
    made = [SandboxEnvironment(session=session) for _ in range(6)]
    made[0].reset(files={"a/b.txt": "given", "c": None}, test_command="test -f done")
    assert made[0].bash("cat a/b.txt && ls c; touch done").startswith("exit=0\ngivenls: cannot access")
    made[1].reset(files={"done": ""}, test_command=["test", "-f", "done"])
    made[2].reset(test_command="test -f done", tests=None)
    made[3].reset(tests=[], test_command=None)
    made[4].reset(tests=TESTS)
    made[4].bash("mkfifo solution.py")
    made[5].reset(test_command=[1])
    outcomes: list[Outcome] = []
    assert environment_reward(skipped=-1.0, on_outcomes=outcomes.extend)(environments=[*made, object()]) == [
        *(1.0, 1.0, 0.0, -1.0, 0.0, -1.0),
        None,
    ]
    assert outcomes[3].message == "the row has nothing to test with"


def test_tests_run_where_the_model_never_was(environment: SandboxEnvironment) -> None:
    """What it does to its own sandbox's Python, or to its shell, changes no verdict."""
    environment.write_file("solution.py", "def double(n): return 5\n")
    environment.bash("mkdir -p ~/bin; printf '#!/bin/sh\\nexit 0\\n' > ~/bin/python3; chmod +x ~/bin/python3; echo x > json.py")
    assert environment_reward()(environments=[environment]) == [0.0]


def test_a_lost_sandbox_marks_the_episode(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, whole = (SandboxEnvironment(session=session) for _ in range(2))
    for environment in (lost, whole):
        environment.reset(tests=TESTS)
        environment.write_file("solution.py", RIGHT)
    assert lost._sandbox is not None
    kill_supervisor(lost._sandbox.sandbox_id)
    logged: dict[str, float] = {}
    assert lost.bash("true") == lost.read_file("solution.py") == "The tool is not available now."
    assert environment_reward()(environments=[lost, whole], log_metric=logged.__setitem__) == [None, 1.0]
    assert logged["environment_reward/infrastructure"] == 0.5
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.5.0")
    with pytest.raises(aviato.SandboxError) as caught:
        environment_reward()(environments=[lost, whole])
    assert caught.value.is_infrastructure
    lost.reset(tests=TESTS)  # the next episode is a new one
    assert lost.write_file("solution.py", RIGHT) == f"{len(RIGHT)} bytes written"
    assert environment_reward()(environments=[lost]) == [1.0]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_environment_that_owns_its_reward(session: aviato.Session, anyio_backend: str) -> None:
    made = SelfGradingEnvironment(session=session)
    made.reset(tests=TESTS, files={"solution.py": RIGHT})
    assert await made.get_reward() == 1.0
    assert made._sandbox is not None
    kill_supervisor(made._sandbox.sandbox_id)
    assert await made.get_reward() is None


def in_a_child(factory: Any, reward: Any, base_url: str, queue: Any) -> None:
    os.environ["AVIATO_BASE_URL"] = base_url
    made = factory()
    made.reset(test_command="test -f done")
    queue.put((made.bash("touch done"), reward(environments=[made])))


def test_it_works_in_a_spawned_process(session: aviato.Session) -> None:
    factory = functools.partial(SandboxEnvironment, command_timeout_seconds=5, tags=("episode",))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=in_a_child, args=(factory, environment_reward(), os.environ["AVIATO_BASE_URL"], queue))
    child.start()
    try:
        assert queue.get(timeout=250) == ("exit=0\n", [1.0])
    finally:
        child.join(20)
        queue.close()
        queue.join_thread()
    used = SandboxEnvironment(session=aviato.Session(aviato.SandboxDefaults(tags=("from-the-parent",))))
    used.reset(tests=TESTS)
    copy = pickle.loads(pickle.dumps(used))
    assert (copy._session, copy._sandbox, copy._options["defaults"].tags) == (None, None, ("from-the-parent",))


def test_a_mistake_is_refused_when_it_is_made() -> None:
    for wrong in ({"observation_bytes": 0}, {"command_timeout_seconds": -1}, {"tags": "one"}, {"no_such_option": 1}):
        with pytest.raises((TypeError, aviato.AviatoValidationError)):
            SandboxEnvironment(**wrong)  # type: ignore[arg-type]
    with pytest.raises(aviato.AviatoValidationError, match="environment_factory"):
        environment_reward()(completions=["x"])


def test_rows_of_data_sets(session: aviato.Session) -> None:
    mbpp = {"task_id": 1, "text": "Double a number.", "test_list": ["assert double(2) == 4", "assert double(3) == 6"]}
    stdin = {"input_output": '{"inputs": ["2\\n"], "outputs": ["4\\n"]}'}
    programs = ("print(int(input()) * 2)\nexit()", "print(5)")
    answers = {"mbpp": (mbpp, (RIGHT, "def double(n): return n")), "apps": (stdin, programs)}
    for name, (row, codes) in answers.items():
        environments = [SandboxEnvironment(session=session, dataset=name) for _ in codes]
        for one, code in zip(environments, codes, strict=True):
            one.reset(**row)
            assert one.write_file("solution.py", code).endswith("bytes written")
        assert environment_reward(on_infrastructure="none")(environments=environments) == [1.0, 0.0]
    with pytest.raises(aviato.AviatoValidationError, match="dataset must be one of"):
        SandboxEnvironment(dataset="no such data set")
