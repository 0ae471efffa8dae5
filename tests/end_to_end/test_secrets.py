"""`secrets`: named by the caller, set by the server, seen by the commands of their sandbox alone."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox, SandboxDefaults, Secret, Session
from tests.conftest import SECRETS, embedded_pids, in_interpreter, start_server

TOKEN = SECRETS["AVIATO_SECRET_HF_TOKEN"]
ENV = Secret(store="env", name="HF_TOKEN")
SHOW = ["sh", "-c", "echo $HF_TOKEN"]


def run(source: str, state: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    prelude = "import os, aviato\nfrom aviato import Sandbox, Secret\n"
    return in_interpreter(prelude + source, timeout=50, **{"AVIATO_STATE_DIR": str(state), **environment})


def test_every_command_has_them(served: Any) -> None:
    with Sandbox(command="sh", args=["-c", "echo main $HF_TOKEN; sleep 60"], secrets=[ENV]) as sandbox:
        assert next(iter(sandbox.stream_logs(follow=True).lines())) == f"main {TOKEN}"
        assert sandbox.exec(SHOW).result().stdout == f"{TOKEN}\n"
        assert sandbox.exec(SHOW, env={"HF_TOKEN": "own"}).result().stdout == "own\n"
        assert sandbox.shell(SHOW).result().returncode == 0
        copy = pickle.loads(pickle.dumps(sandbox))
        assert copy.exec(SHOW).result().stdout == f"{TOKEN}\n"
        found = Sandbox.from_id(sandbox.sandbox_id).result()
        assert found.exec(SHOW).result().stdout == f"{TOKEN}\n"
    with Sandbox() as other:
        assert other.exec(SHOW).result().stdout == "\n"


def test_async_form_sessions_and_functions(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox(secrets=[ENV]) as sandbox:
            assert (await sandbox.exec(SHOW)).stdout == f"{TOKEN}\n"

    asyncio.run(main())
    with Session(SandboxDefaults(secrets=[ENV])) as session:
        assert session.sandbox().exec(SHOW).result().stdout == f"{TOKEN}\n"

        @session.function()
        def length() -> int:
            import os

            return len(os.environ["HF_TOKEN"])

        assert length().result() == len(TOKEN)


def test_those_of_the_call_win_over_the_defaults(tmp_path: Path, make_server: Any) -> None:
    (tmp_path / "token").write_text("of-the-file\n")
    server = make_server(secrets_dir=tmp_path)
    defaults = SandboxDefaults(secrets=[ENV], base_url=server.url)
    mine = Secret(store="file", name="token", env_var="HF_TOKEN")
    for chosen in (
        defaults,
        SandboxDefaults.from_dict({"secrets": [ENV], "base_url": server.url}),
        pickle.loads(pickle.dumps(defaults)),
    ):
        assert (chosen.merge_secrets(), chosen.merge_secrets([mine])) == ((ENV,), (mine,))
    with Sandbox(defaults=defaults, secrets=[mine]) as sandbox:
        assert sandbox.exec(SHOW).result().stdout == "of-the-file\n"
    with pytest.raises(aviato.AviatoValidationError, match=r"'other'.*there is none"):
        Sandbox.run(base_url=server.url, secrets=[Secret(store="file", name="other", env_var="OTHER")])


def test_a_grade_has_none(served: Any) -> None:
    """What a grader needs is given to it by name; what the policy had is not passed on."""
    with Sandbox(secrets=[ENV]) as sandbox:
        sandbox.write_file("answer.txt", b"42").result()
        look = "import os\nassert 'HF_TOKEN' not in os.environ\n"
        result = sandbox.grade({"test.py": look.encode()}, ["python", "test.py"], result_paths=["answer.txt"]).result()
        assert result.passed, result.message


NEEDLE = "needle-0f6e"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"secrets": NEEDLE}, TypeError),
        ({"secrets": [NEEDLE]}, TypeError),
        ({"secrets": {"TOKEN": NEEDLE}}, TypeError),
        ({"secrets": [{"store": "env", "name": NEEDLE}]}, TypeError),
        ({"secrets": [ENV, ENV]}, None),
        ({"secrets": [ENV], "environment_variables": {"HF_TOKEN": NEEDLE}}, ValueError),
        ({"secrets": [ENV, Secret(store="file", name="x", env_var="HF_TOKEN")]}, None),
        ({"secrets": [Secret(store="file", name=f"n{number}", env_var=f"N{number}") for number in range(65)]}, ValueError),
        ({"defaults": lambda: SandboxDefaults(secrets=[NEEDLE])}, TypeError),  # type: ignore[list-item]
    ],
)
def test_bad_arguments_are_refused_at_the_call(arguments: dict[str, Any], error: type[Exception] | None) -> None:
    with pytest.raises(error or aviato.AviatoValidationError) as caught:
        Sandbox(**{name: value() if callable(value) else value for name, value in arguments.items()})
    assert NEEDLE not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize(
    "fields",
    [
        {"store": "vault", "name": "A"},
        {"store": "env", "name": ""},
        {"store": "env", "name": f"{NEEDLE}/="},
        {"store": "env", "name": "A\n"},
        {"store": "env", "name": "A.B"},
        {"store": "env", "name": "1A"},
        {"store": "env", "name": "A" * 129},
        {"store": "file", "name": "../a", "env_var": "A"},
        {"store": "file", "name": "..", "env_var": "A"},
        {"store": "file", "name": ".hidden", "env_var": "A"},
        {"store": "file", "name": "a/b", "env_var": "A"},
        {"store": "file", "name": "a\0", "env_var": "A"},
        {"store": "file", "name": "a.b"},
        {"store": "file", "name": "a", "env_var": f"{NEEDLE}="},
        {"store": "file", "name": "a", "env_var": ""},
        {"store": "env", "name": 1},
        {"store": "env", "name": None},
        {"store": None, "name": "A"},
        {"store": "env", "name": "A", "env_var": 1},
    ],
)
def test_bad_names_are_refused_when_the_secret_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Secret(**fields)
    assert NEEDLE not in str(caught.value)


def test_one_that_the_server_lacks_is_named(served: Any) -> None:
    for secret, said in (
        (Secret(store="env", name="NOWHERE"), "AVIATO_SECRET_NOWHERE"),
        (Secret(store="file", name="token", env_var="TOKEN"), "--secrets-dir"),
    ):
        with pytest.raises(aviato.AviatoValidationError, match=said) as caught:
            Sandbox(secrets=[secret]).start().result()
        assert not caught.value.is_infrastructure and "secrets" in caught.value.field_violations


def test_variables_of_a_client_are_not_for_another_server(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_SECRET_HF_TOKEN", "of-the-client")
    monkeypatch.setenv("AVIATO_SECRET_NOWHERE", "of-the-client")
    with Sandbox(secrets=[ENV]) as sandbox:
        assert sandbox.exec(SHOW).result().stdout == f"{TOKEN}\n"
    with pytest.raises(aviato.AviatoValidationError, match="server's environment has no AVIATO_SECRET_NOWHERE"):
        Sandbox(secrets=[Secret(store="env", name="NOWHERE")]).start().result()


def test_a_restart_keeps_those_that_run_and_finds_those_of_the_queue_again(make_server: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("before")
    server = make_server(max_sandboxes=1, secrets_dir=tmp_path)
    secrets = [ENV, Secret(store="file", name="token", env_var="FILE")]
    show = ["sh", "-c", "echo $HF_TOKEN $FILE"]
    with Sandbox(base_url=server.url, secrets=secrets) as first:
        first.wait()
        with Sandbox(base_url=server.url, secrets=secrets) as second:
            server.stop(signal.SIGTERM)
            (tmp_path / "token").write_text("after")
            again = start_server(Path(server.state_dir).parent, max_sandboxes=1, secrets_dir=tmp_path)
            server.process = again.process
            assert first.exec(show).result().stdout == f"{TOKEN} before\n"
            first.stop().result()
            assert second.exec(show).result().stdout == f"{TOKEN} after\n"


def test_the_embedded_server_sets_each_caller_s_own(state: Path) -> None:
    source = """
with Sandbox(secrets=[Secret(store="env", name="MINE", env_var="TOKEN")]) as box:
    print(box.exec(["sh", "-c", "echo $TOKEN"]).result().stdout, end="")
"""
    for value in ("one-needle", "two-needle"):
        done = run(source, state, AVIATO_SECRET_MINE=value)
        assert (done.stdout, done.stderr) == (f"{value}\n", "")
    [pid] = embedded_pids(state)
    assert b"needle" not in Path(f"/proc/{pid}/environ").read_bytes()
    done = run(source, state)
    assert "AviatoValidationError" in done.stderr and "AVIATO_SECRET_MINE is not set in this process" in done.stderr
    done = run("os.environb[b'AVIATO_SECRET_MINE'] = b'needle\\xff'\n" + source, state)
    assert "no UTF-8" in done.stderr and "needle" not in done.stderr.replace("b'needle", "")
    assert embedded_pids(state) == [pid]


def test_the_embedded_server_reads_files_too(state: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-the-file")
    source = """
box = Sandbox(secrets=[Secret(store="file", name="token", env_var="T")])
print(box.exec(["sh", "-c", "echo $T"]).result().stdout)
"""
    assert run(source, state, AVIATO_SECRETS_DIR=str(tmp_path)).stdout == "of-the-file\n\n"


def test_a_restart_of_the_embedded_server_loses_those_of_the_queue_and_says_so(state: Path) -> None:
    source = """
import glob, signal
secrets = [Secret(store="env", name="MINE")]
first = Sandbox(secrets=secrets).wait()
second = Sandbox(secrets=secrets)
second.start().result()
[pid] = [int(open(name).read()) for name in glob.glob(os.environ["AVIATO_STATE_DIR"] + "/embedded/*/lock")]
os.kill(pid, signal.SIGKILL)
print(first.exec(["sh", "-c", "echo ${#MINE}"]).result(25).stdout, end="")
try:
    second.wait(25)
except aviato.SandboxFailedError as error:
    print(error.reason, error.is_infrastructure, "only in the memory of the server" in str(error), "needle" in str(error))
first.stop().result()
"""
    done = run(source, state, AVIATO_SECRET_MINE="needle", AVIATO_MAX_SANDBOXES="1")
    assert done.stdout == "6\nstart_failed True True False\n", done.stderr
