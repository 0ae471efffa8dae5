"""The landlock backend as its users meet it: asked for, on record, and where namespaces are really forbidden."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import aviato
from aviato.server.backends.local import landlock_calls as calls
from aviato.server.backends.registry import make_backend
from tests.conftest import SECRETS

pytestmark = pytest.mark.skipif(not calls.abi(), reason="this kernel has no Landlock")
x86_64_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is for x86-64")
FORBID = [sys.executable, str(Path(__file__).parents[1] / "cli" / "forbid_namespaces.py")]
AVIATO = [sys.executable, "-m", "aviato"]


@pytest.fixture
def served(make_server, monkeypatch):
    server = make_server(backend="landlock")
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return server


def test_blocking_code(served):
    with aviato.Sandbox(environment_variables={"GREETING": "hello"}) as sandbox:
        sandbox.write_file("program.py", b"import os; print(os.environ['GREETING'], open('data').read())").result()
        sandbox.write_file("data", b"world").result()
        done = sandbox.exec(["python", "program.py"], check=True).result()
        assert done.stdout == "hello world\n"
        live = sandbox.exec(["sh", "-c", "for i in 1 2 3; do echo $i; done; exit 3"])
        assert list(live.stdout.lines()) == ["1", "2", "3"] and live.result().returncode == 3
        with pytest.raises(aviato.SandboxCommandTimeoutError) as late:
            sandbox.exec(["sh", "-c", "setsid sleep 60 & echo out; wait"], timeout_seconds=0.5).result()
        assert late.value.exec_result.stdout == "out\n" and not late.value.is_infrastructure
        running = sandbox.exec(["sleep", "60"])
        running.cancel()
        assert [os.path.basename(one.path) for one in sandbox.list_files(".").result()] == ["data", "program.py"]
        names = {promise.partition(":")[0] for promise in sandbox.unkept_promises}
        assert {"processes", "files", "paths", "sockets", "supervisor"} <= names
        assert ("uid" in names) == (os.geteuid() != 0)
        assert sandbox.limits["memory"].strength == "watched" and sandbox.limits["cpu"].strength == "none"
        again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
        again.get_status()
        assert again.unkept_promises == sandbox.unkept_promises
    with pytest.raises(aviato.SandboxNotRunningError):
        sandbox.exec(["true"]).result()


LOOK = """
import os, sys
found = set()
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found |= {pid} if sys.argv[1].encode() in file.read() and int(pid) != os.getpid() else set()
    except OSError:
        continue
print(len(found))
"""


def test_secrets_are_for_their_own_sandbox(served):
    """The machine's /proc is there, and what others were started with is not."""
    token = SECRETS["AVIATO_SECRET_HF_TOKEN"]
    secret = aviato.Secret(store="env", name="HF_TOKEN")
    with aviato.Sandbox(secrets=[secret], command="sleep", args=["600"]) as owner, aviato.Sandbox() as other:
        assert owner.exec(["sh", "-c", "echo $HF_TOKEN"]).result().stdout == f"{token}\n"
        assert owner.exec(["python", "-c", LOOK, token]).result().stdout == "1\n"
        assert other.exec(["python", "-c", LOOK, token]).result().stdout == "0\n"


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_a_detached_sandbox_outlives_its_server(served):
    sandbox = aviato.Sandbox(detached=True)
    sandbox.exec(["sh", "-c", "echo kept > file; (setsid sleep 63.25 &)"]).result()
    served.stop(15)
    served.restart()
    assert sandbox.read_file("file").result() == b"kept\n"
    assert sandbox.unkept_promises
    sandbox.stop().result()
    assert subprocess.run(["pgrep", "-f", "sleep 63.25"], check=False, capture_output=True).returncode == 1


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    directory = tempfile.mkdtemp(prefix="aviato-landlock-", dir="/tmp")
    Path(directory).chmod(0o711)
    yield {**os.environ, "AVIATO_STATE_DIR": f"{directory}/state", "AVIATO_IDLE_EXIT": "1"}
    shutil.rmtree(directory, ignore_errors=True)


def run(environment, *command, **options):
    return subprocess.run(
        [*FORBID, *AVIATO, *command], env=environment, capture_output=True, text=True, timeout=250, check=False, **options
    )


@x86_64_only
def test_where_namespaces_are_forbidden(environment):
    """The error names it with what it gives up, nothing takes it unasked, and asked for it runs."""
    failed = run(environment, "run", "true")
    assert failed.returncode == 125
    assert "AVIATO_BACKEND=landlock" in failed.stderr and "less isolation" in failed.stderr
    asked = {**environment, "AVIATO_BACKEND": "landlock"}
    done = run(asked, "run", "sh", "-c", "unshare -U true 2>/dev/null || echo still forbidden; exit 4")
    assert (done.returncode, done.stdout) == (4, "still forbidden\n"), done.stderr


@x86_64_only
def test_doctor_lists_what_is_not_promised(environment):
    report = json.loads(run(environment, "doctor", "--json").stdout)
    offer = next(check for check in report["checks"] if check["name"] == "without namespaces")
    assert not report["ok"] and "AVIATO_BACKEND=landlock" in offer["detail"]
    report = json.loads(run({**environment, "AVIATO_BACKEND": "landlock"}, "doctor", "--json", "--plan").stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert report["ok"] and checks["landlock"]["ok"] and any(step.startswith("restrict") for step in report["plan"])
    assert not checks["not promised: processes"]["ok"]
    assert ("not promised: uid" in checks) == (os.geteuid() != 0)


async def refused(directory: str) -> str:
    backend = make_backend("landlock", directory=Path(directory))
    try:
        with pytest.raises(aviato.SandboxUnavailableError) as caught:
            await backend.open()
    finally:
        await backend.close()
    return str(caught.value)


@pytest.mark.anyio
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have such a directory")
async def test_a_state_directory_that_sandboxes_could_read_or_not_come_to():
    for parent, mode, words in (("/usr/local/share", 0o711, "every sandbox may read"), ("/var/tmp", 0o700, "closed")):
        with tempfile.TemporaryDirectory(dir=parent) as directory:
            Path(directory).chmod(mode)
            assert words in await refused(directory)


def test_a_grade(served):
    with aviato.Sandbox() as sandbox:
        sandbox.write_file("solution.py", b"def add(a, b): return a + b\n").result()
        sandbox.write_file("answer.txt", b"42\n").result()
        test = {"test_it.py": b"from solution import add\nassert add(1, 2) == 3\n"}
        given = {"result_paths": ["solution.py"], "timeout_seconds": 20}
        assert sandbox.grade(test, ["python3", "test_it.py"], mode="in_process", **given).result().passed
        # Without sockets inside there is no way from tests to code in another sandbox: an error, and never a verdict.
        with pytest.raises(aviato.AviatoValidationError, match="in_process"):
            sandbox.grade(test, ["python3", "test_it.py"], mode="separate", **given).result()
        data = {"check.py": b"assert open('answer.txt').read() == '42\\n'\n"}
        graded = sandbox.grade(data, ["python3", "check.py"], result_paths=["answer.txt"], mode="separate", timeout_seconds=20)
        assert graded.result().passed


def test_a_separate_verdict_is_refused_where_it_needs_a_grader(served):
    """Cases that only compare what calls return need none."""
    from aviato.rl import Task, evaluate

    code = "def add(a, b): return a + b"
    with pytest.raises(aviato.AviatoValidationError, match="in_process"):
        evaluate([Task(code=code, tests=("n = 1\nassert add(n, 2) == 3",), grading="separate")]).result(50)
    outcomes = [Task(code=code, tests=(f"assert add(1, 2) == {due}",), grading="separate") for due in (3, 4)]
    assert [(one.passed, one.grading_mode) for one in evaluate(outcomes).result(50)] == [
        (True, "separate"),
        (False, "separate"),
    ]


def test_a_reset_leaves_nothing(served):
    with aviato.Sandbox() as sandbox:
        sandbox.write_file("left", b"x").result()
        sandbox.exec(["sh", "-c", "(setsid sleep 987654 &) >/dev/null 2>&1 </dev/null; echo x >more"], check=True).result()
        process = sandbox.exec(["sleep", "60"])
        with aviato.Sandbox() as other:
            new = other.exec(["sh", "-c", "ls -A; ls /proc/self/fd | wc -l"]).result().stdout
        sandbox.reset().result()
        with pytest.raises(aviato.SandboxExecutionError, match="was reset"):
            process.result()
        assert sandbox.list_files(".").result() == []
        assert sandbox.exec(["sh", "-c", "ls -A; ls /proc/self/fd | wc -l"]).result().stdout == new
        assert sandbox.get_status() == "running"
        deadline = time.monotonic() + 10
        while [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"987654" in _read(path)]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
