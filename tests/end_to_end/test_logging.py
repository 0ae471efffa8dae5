"""What the client says by `logging`: nothing where nobody asks, and what happened where somebody does."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.core.client import Client
from aviato.exceptions import SandboxUnavailableError
from aviato.log import logger
from aviato.policy.retry import RetryPolicy
from aviato.rl import Task, evaluate

NEEDLE = "s3cr3t-value"
WARNS = """
import gc, logging, os, sys, tempfile
if sys.argv[1:]: pass
LEVEL = os.environ.get("LEVEL")
if LEVEL: logging.basicConfig(level=LEVEL, format="%(levelname)s %(name)s %(message)s")
import aviato
from aviato.core.transfer import logger
with aviato.Sandbox() as sandbox:
    sandbox.exec(["sh", "-c", "mkdir tree; mkfifo tree/pipe"]).result()
    sandbox.download("tree", tempfile.mkdtemp() + "/out").result()   # leaves the pipe out, and warns
    forgotten = sandbox.read_file("/not/there")
    while not forgotten.done(): pass
    del forgotten; gc.collect()                                      # failed and nobody looked at it
logging.getLogger("aviato.server").warning("one of a module below")
"""


def test_a_program_that_does_not_ask_hears_what_it_must_not_miss(script: Any, state: Path) -> None:
    """And nothing of what goes well."""
    well = "import aviato\nwith aviato.Sandbox() as sandbox:\n    sandbox.exec(['true']).result()\n"
    found = script(well, AVIATO_STATE_DIR=str(state))
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    for level in ("", "WARNING"):
        found = script(WARNS, AVIATO_STATE_DIR=str(state), LEVEL=level)
        left_out, forgotten, below = found.stderr.splitlines()
        assert "'pipe'" in left_out and "nobody looked at it" in forgotten and "one of a module below" in below
        names = [line.split(" ")[:2] for line in (left_out, forgotten, below)]
        assert not level or names == [["WARNING", "aviato"], ["ERROR", "aviato"], ["WARNING", "aviato.server"]]


@pytest.mark.parametrize(
    "module", ["aviato.api.sandbox", "aviato.api.session", "aviato.aio.async_client", "aviato.rl", "aviato.policy.retry"]
)
def test_whatever_is_imported_sets_up_no_handler(script: Any, module: str) -> None:
    found = script(f"import {module}, logging\nassert not logging.getLogger('aviato').handlers and not logging.root.handlers\n")
    assert (found.returncode, found.stderr) == (0, "")


def test_where_the_embedded_server_is(script: Any, state: Path) -> None:
    program = "import logging, aviato\nlogging.basicConfig(level='INFO')\naviato.Sandbox.run().stop().result()\n"
    first, second = (script(program, AVIATO_STATE_DIR=str(state)).stderr for _ in range(2))
    found = re.search(r"the embedded server has started in \d+\.\d+ s: pid (\d+), socket (\S+), log (\S+)\n", first)
    assert found is not None, first
    assert Path(f"/proc/{found[1]}").exists() and Path(found[2]).is_socket() and "starts in" in Path(found[3]).read_text()
    assert "embedded server" not in second, "it was there"


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "aviato" and record.levelno == level]


def until(said: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stopped(session: aviato.Session) -> str:
    sandbox = session.sandbox()
    sandbox.exec(["true"]).wait()
    sandbox.stop().result()
    return sandbox.sandbox_id


def of_a_lifetime(session: aviato.Session) -> str:
    sandbox = session.sandbox(max_lifetime_seconds=0.3)
    until(lambda: sandbox.status == "terminated")
    return sandbox.sandbox_id


def of_a_main_command(session: aviato.Session) -> str:
    sandbox = session.sandbox(command="sh", args=["-c", "exit 3"])
    sandbox.wait_until_complete().result()
    return sandbox.sandbox_id


def of_a_function(session: aviato.Session) -> str:
    call = session.function()(_three)()
    call.result()
    return call._call.sandbox_id


def _three() -> int:
    return 3


def of_an_async_client(session: aviato.Session) -> str:
    async def main() -> str:
        async with aviato.AsyncClient(base_url=session._connection.base_url) as client, await client.sandbox() as sandbox:
            await sandbox.exec(["true"])
            return sandbox.sandbox_id

    return asyncio.run(main())


ENDS = {
    stopped: r"terminated \(stopped\)",
    of_a_lifetime: r"terminated \(lifetime\)",
    of_a_main_command: r"failed \(exited\), returncode 3",
    of_a_function: r"terminated \(stopped\)",
    of_an_async_client: r"terminated \(stopped\)",
}


@pytest.mark.parametrize("make", ENDS)
def test_the_life_of_a_sandbox(server: Any, caplog: pytest.LogCaptureFixture, make: Callable[[aviato.Session], str]) -> None:
    with caplog.at_level(logging.INFO, "aviato"), aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as session:
        made = make(session)
        until(lambda: any(f"{made} has ended" in each for each in lines(caplog, logging.INFO)))
    told = [each for each in lines(caplog, logging.INFO) if made in each]
    assert len(told) == 2, told
    assert re.fullmatch(rf"sandbox {made}( \(host\))? runs, after \d+\.\d+ s", told[0])
    assert re.fullmatch(rf"sandbox {made} has ended after \d+\.\d+ s: {ENDS[make]}", told[1])
    assert not lines(caplog, logging.DEBUG) and not lines(caplog, logging.WARNING)


def test_the_life_of_those_of_an_evaluation(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    tasks = [Task(code="x = 1", tests=["assert x == 1"]), Task(command=["true"])]
    with caplog.at_level(logging.INFO, "aviato"), aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as session:
        assert [each.passed for each in evaluate(tasks, session=session).result(30)] == [True, True]
    told = lines(caplog, logging.INFO)
    assert sum(" runs, after " in each for each in told) == 2 and sum(" has ended" in each for each in told) == 2, told


def test_a_process_that_leaves_its_sandboxes_says_so(script: Any, server: Any) -> None:
    program = "import logging, aviato\nlogging.basicConfig(level='INFO')\nkept = [aviato.Sandbox.run() for _ in range(3)]\n"
    assert "3 sandboxes have ended with the lease of this process" in script(program, AVIATO_BASE_URL=server.url).stderr


def test_each_command_at_debug(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "aviato"), aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as session:
        sandbox = session.sandbox()
        done = sandbox.exec(["sh", "-c", "echo 12345; exit 3"])
        late = sandbox.exec(["sleep", "9"], timeout_seconds=0.1)
        done.wait()
        late.wait()
    told = lines(caplog, logging.DEBUG)
    assert f"command {done.exec_id} in {sandbox.sandbox_id} begins: 'sh -c echo 12345; exit 3'" in told
    ended = {exec_id: [each for each in told if f"{exec_id} has ended" in each] for exec_id in (done.exec_id, late.exec_id)}
    assert re.fullmatch(
        r"command \S+ has ended after \d\.\d+ s: returncode 3, 6 bytes of stdout, 0 of stderr", ended[done.exec_id][0]
    )
    assert " has ended by its time limit after 0.1" in ended[late.exec_id][0] and ": returncode 137," in ended[late.exec_id][0]


def test_no_secret_is_in_a_log(server: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_API_KEY", NEEDLE)
    defaults = aviato.SandboxDefaults(base_url=server.url, environment_variables={"ONE": NEEDLE})
    secret = aviato.Secret(store="env", name="HF_TOKEN")
    with caplog.at_level(logging.DEBUG, "aviato"), aviato.Session(defaults) as session:
        sandbox = session.sandbox(environment_variables={"TWO": NEEDLE}, secrets=[secret])
        sandbox.exec(["sh", "-c", "cat; env"], env={"THREE": NEEDLE}, stdin=NEEDLE).wait()
        sandbox.shell(["true"], env={"FOUR": NEEDLE}).result()
        sandbox.write_file("file", NEEDLE.encode()).result()
        sandbox.exec(["sh", "-c", "exit 3"], env={"FIVE": NEEDLE}, check=True).exception()
        session.function()(_three)().result()
    assert len(lines(caplog, logging.DEBUG)) >= 6
    assert NEEDLE not in caplog.text and "hf-token-of-the-tests" not in caplog.text


def test_what_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        left = [SandboxUnavailableError("gone\x1b[2J")]

        async def attempt() -> int:
            if left:
                raise left.pop()
            return 4

        return await RetryPolicy().call(attempt, budget_seconds=5, operation="create sandbox")

    with caplog.at_level(logging.INFO, "aviato"):
        assert asyncio.run(main()) == 4
    # This process may tell of servers of other tests as well.
    [told] = [line for line in lines(caplog, logging.INFO) if "gone" in line]
    assert re.fullmatch(r"create sandbox failed, trying again in 0\.\d\d s: gone\\x1b\[2J", told)


@pytest.mark.parametrize("alive", [True, False])
def test_a_server_that_has_gone_matters_to_who_has_sandboxes_there(
    make_server: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    server = make_server()
    monkeypatch.setattr(Client, "budget_seconds", 0.1)
    with caplog.at_level(logging.DEBUG, "aviato"):
        sandbox = aviato.Sandbox.run(base_url=server.url)
        if not alive:
            sandbox.stop().result()
        time.sleep(0.7)  # the lease is renewed for the first time
        server.stop(signal.SIGTERM)
        # Of servers of other tests this process may hear as well.
        until(lambda: any("could not be renewed" in each and server.url in each for each in caplog.messages))
    told = [each for each in lines(caplog, logging.WARNING) if server.url in each]
    assert len(told) == alive, told
    assert all("its sandboxes end without" in each for each in told)


def test_who_does_not_listen_pays_nothing(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviato.core.execution.beginning", lambda *_: pytest.fail("nobody reads this"))
    monkeypatch.setattr(logger, "level", logging.WARNING)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    with aviato.Sandbox(base_url=server.url) as sandbox:
        assert sandbox.exec(["true"]).wait() == 0
    logger.manager._clear_cache()  # type: ignore[attr-defined]
