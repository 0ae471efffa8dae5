"""`packages=`: what code inside can import, whoever asks for it and however it runs."""

from __future__ import annotations

import asyncio
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, AviatoValidationError, Sandbox, SandboxDefaults, SandboxExecutionError, Session
from aviato.grading.remedies import PACKAGES
from tests.conftest import make_state_dir, remove, start_server
from tests.environments import install, interpreter, make_environment, site_of

GREETINGS = "WORD = 'hello'\ndef greet(name):\n    return f'{WORD}, {name}'\n"
SAY = ["python", "-c", "import greetings; print(greetings.WORD)"]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Not below pytest's own directory, which is closed to ids of landlock's."""
    path = make_state_dir()
    path.chmod(0o755)
    yield path
    remove(path)


@pytest.fixture(scope="module")
def environment(place: Path) -> Path:
    return make_environment(place / "env", greetings=GREETINGS)


def test_blocking(served: Any, environment: Path) -> None:
    for given in (environment, str(environment), site_of(environment)):
        with Sandbox(packages=given) as sandbox:
            assert sandbox.exec(SAY).result().stdout == "hello\n"
    with Sandbox() as sandbox:
        assert "No module named 'greetings'" in sandbox.exec(SAY).result().stderr


def test_async_form_and_a_session(served: Any, environment: Path) -> None:
    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox(packages=environment) as sandbox:
            assert (await sandbox.exec(SAY)).stdout == "hello\n"
        with pytest.raises(AviatoValidationError, match="No such file"):
            async with AsyncClient() as client, await client.sandbox(packages="/absent"):
                pass
        async with Session() as session:
            assert (await session.sandbox(packages=str(environment)).exec(SAY)).stdout == "hello\n"

    asyncio.run(main())


def test_of_defaults_and_of_a_call(served: Any, environment: Path, place: Path) -> None:
    other = install(place / "target", greetings="WORD = 'good day'")
    with Session(SandboxDefaults(packages=environment)) as session:
        mine, theirs = session.sandbox(), session.sandbox(packages=other)
        assert [box.exec(SAY).result().stdout for box in (mine, theirs)] == ["hello\n", "good day\n"]


def test_a_path_is_the_callers(served: Any, environment: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))
    for given in ("./env", "~/env", Path("env")):
        with Sandbox(packages=given) as sandbox:
            assert sandbox.exec(SAY).result().stdout == "hello\n", given
    with pytest.raises(AviatoValidationError, match="'env' is no name of packages"):
        Sandbox(packages="env").start().result()


def test_a_pickle_carries_it(served: Any, environment: Path) -> None:
    with pickle.loads(pickle.dumps(Sandbox(packages=environment))) as sandbox:
        assert sandbox.exec(SAY).result().stdout == "hello\n"


def test_the_main_command_has_them(served: Any, environment: Path) -> None:
    with Sandbox(
        command="python3", args=["-c", "import greetings; print(greetings.greet('you'))"], packages=environment
    ) as box:
        assert "".join(box.stream_logs(follow=True)) == "hello, you\n"


def test_functions(session: Session, environment: Path) -> None:
    @session.function(packages=environment)
    def greet(name: str) -> str:
        import greetings

        return str(greetings.greet(name))

    @session.function()
    def lacks(name: str) -> str:
        import greetings

        return str(greetings.greet(name))

    assert greet.remote("you").result(60) == "hello, you"
    with pytest.raises(SandboxExecutionError, match="No module named 'greetings'; packages get into") as caught:
        lacks.remote("you").result(60)
    assert PACKAGES in str(caught.value) and caught.value.exception_message == "No module named 'greetings'"


def test_what_is_refused_is_refused_before_anything_starts(served: Any, environment: Path, place: Path) -> None:
    older = make_environment(place / "older", minor=interpreter().minor - 1, greetings=GREETINGS)
    refused = {
        place / "absent": "No such file or directory",
        "/": "cannot be had",
        "/proc": "neither a virtual environment",
        place: "neither a virtual environment",
        older: rf"Python 3\.{interpreter().minor - 1}, and the sandbox's python is {interpreter().version}",
        "absent": "no name of packages",
        Path(served.state_dir) / "serve": "cannot be had",
    }
    before = {one.sandbox_id for one in Sandbox.list(include_stopped=True).result()}
    for given, why in refused.items():
        with pytest.raises(AviatoValidationError, match=why) as caught:
            Sandbox(packages=given).start().result()
        assert caught.value.field_violations.keys() == {"packages"} and not caught.value.is_infrastructure
    assert {one.sandbox_id for one in Sandbox.list(include_stopped=True).result()} == before


def test_they_survive_a_queue_and_a_restart(make_server: Any, environment: Path) -> None:
    server = make_server(max_sandboxes=1)
    with Sandbox(base_url=server.url) as first:
        first.wait()
        with Sandbox(base_url=server.url, packages=environment) as second:
            server.stop(signal.SIGTERM)
            next_one = start_server(Path(server.state_dir).parent, max_sandboxes=1)
            server.process = next_one.process
            first.stop().result()
            assert second.exec(SAY).result(60).stdout == "hello\n"


def test_what_has_gone_until_a_place_was_free(make_server: Any, place: Path) -> None:
    server = make_server(max_sandboxes=1)
    soon_gone = make_environment(place / "soon gone", greetings=GREETINGS)
    with Sandbox(base_url=server.url) as first:
        first.wait()
        second = Sandbox(base_url=server.url, packages=soon_gone)
        second.start().result()
        remove(soon_gone)
        first.stop().result()
        with pytest.raises(aviato.SandboxFailedError, match=r"packages: .*No such file") as caught:
            second.exec(SAY).result(60)
        assert not caught.value.is_infrastructure


@pytest.fixture
def keyed(make_server: Any, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Go on with a key, or over the Unix socket, at a server with packages of its own."""
    (tmp_path / "keys").write_text("one\nother\n")
    server = make_server(port=0, api_key_file=tmp_path / "keys", packages=f"team={environment}")

    def enter(key: str | None) -> None:
        monkeypatch.setenv("AVIATO_BASE_URL", server.url if key is None else f"http://127.0.0.1:{server.port()}")
        monkeypatch.setenv("AVIATO_API_KEY", key or "")

    return enter


def test_who_comes_with_a_key_names_what_was_registered(keyed: Callable[[str | None], None], environment: Path) -> None:
    for key in ("one", "other", None):
        keyed(key)
        with Sandbox(packages="team", detached=True) as sandbox:
            assert sandbox.exec(SAY).result().stdout == "hello\n"
        with pytest.raises(AviatoValidationError, match=r"'absent' is no name.*registered: 'team'"):
            Sandbox(packages="absent", detached=True).start().result()
    said = set()
    keyed("one")
    for path in (environment, "/absent", "/root/.ssh", "/proc/self/root"):
        with pytest.raises(AviatoValidationError, match="no paths; registered: 'team'") as caught:
            Sandbox(packages=path, detached=True).start().result()
        said.add(str(caught.value))
    assert len(said) == 1, "whether there is such a directory is not told"
    keyed(None)
    with Sandbox(packages=environment, detached=True) as sandbox:
        assert sandbox.exec(SAY).result().stdout == "hello\n"


EMBEDDED = """
import aviato, sys
with aviato.Sandbox(packages=sys.argv[1]) as sandbox:
    print(sandbox.exec(["python", "-c", "import greetings; print(greetings.WORD)"]).result().stdout, end="")
try:
    aviato.Sandbox(packages="/absent").start().result()
except aviato.AviatoValidationError as error:
    print(error)
"""


@pytest.mark.parametrize("backend", ["local", "landlock"])
def test_the_embedded_server(script: Callable[..., Any], state: Path, environment: Path, backend: str) -> None:
    from aviato.server.backends.local import landlock_calls as calls

    if backend == "landlock" and not calls.abi():
        pytest.skip("this kernel has no Landlock")
    source = EMBEDDED.replace("sys.argv[1]", repr(str(environment)))
    done = script(source, AVIATO_STATE_DIR=str(state), AVIATO_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello\npackages: '/absent' cannot be had: No such file or directory on the server's machine\n"
