"""`POST /run_code` with real sandboxes, read as verl reads it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from aviato.cli.serve import command
from tests.conftest import RunningServer
from tests.matrices import every
from tests.rl.machine import kill_the_new_supervisor, supervisors
from tests.run_code.served import KEY, base_url, judged, over_tcp, verl_client

Run = Callable[..., dict[str, Any]]


def test_what_verl_makes_of_it(run_code: Run) -> None:
    double = "print(int(input()) * 2)"
    assert judged(200, run_code(double, stdin="21\n"), "42\n\n") is True
    assert judged(200, run_code(double, stdin="21"), "43") is False
    assert judged(200, run_code("import sys; sys.exit(3)"), "") == -2
    assert judged(200, run_code("this is no Python"), "") == -2
    body = run_code("print('so far', flush=True)\nwhile True: pass", run_timeout=0.5)
    assert judged(200, body, "so far") == -3
    assert body["run_result"]["stdout"] == "so far\n" and body["run_result"]["return_code"] is None
    assert 0.4 < body["run_result"]["execution_time"] < 5


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
def test_a_compiled_language(run_code: Run) -> None:
    body = run_code("#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * 2; }", "cpp", stdin="21")
    assert judged(200, body, "42") is True and body["compile_result"]["status"] == "Finished"
    body = run_code("int main() {", "cpp")
    assert judged(200, body, "") == -4 and "error" in body["compile_result"]["stderr"] and body["run_result"] is None
    # Its own run-time failure is no failure of the compilation, which would spoil every later case of the batch.
    assert judged(200, run_code("int main() { return 1; }", "cpp"), "") == -2
    assert judged(200, run_code('#include "/dev/zero"', "cpp", compile_timeout=0.5), "") == -4


@pytest.mark.parametrize(
    ("language", "program", "code"),
    [
        ("bash", "bash", "echo $((6 * 7))"),
        ("nodejs", "node", "console.log(6 * 7)"),
        ("perl", "perl", "print 6 * 7;"),
        ("java", "javac", "public class Main { public static void main(String[] a) { System.out.println(42); } }"),
    ],
)
def test_other_languages(run_code: Run, language: str, program: str, code: str) -> None:
    """Under verl's memory limit. A compiler that does not work in the image is the machine's failure and not the model's."""
    body = run_code(code, language, memory_limit_MB=1024)
    if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin") is None:
        assert f"{language} cannot be run here" in body["message"] and body["compile_result"] is None
    else:
        assert judged(200, body, "42") is True, body


def test_languages_that_are_not_there(run_code: Run, base: str) -> None:
    body = run_code("theorem", "lean")
    assert judged(200, body, "") == -1 and "python" in body["message"]
    response = requests.post(f"{base}/run_code", json={"code": "", "language": "klingon"}, timeout=20)
    assert response.status_code == 400 and "language" in response.json()["error"]["field_violations"]


def test_files_in_and_out(run_code: Run, base: str) -> None:
    code = "import shutil, helper\nshutil.copy('data/in.bin', 'out.bin'); print(helper.NAME)"
    data = bytes(range(256))
    files = {"data/in.bin": b64encode(data).decode(), "helper.py": b64encode(b"NAME = 'h'").decode(), "none": None}
    body = run_code(code, files=files, fetch_files=["out.bin", "not there"])
    assert body["run_result"]["stdout"] == "h\n" and list(body["files"]) == ["out.bin"]
    assert b64decode(body["files"]["out.bin"]) == data
    for wrong in ({"files": {"x": "no base64!"}}, {"files": {"run_code.py": ""}}, {"fetch_files": [""]}, {"run_timeout": 0}):
        response = requests.post(f"{base}/run_code", json={"code": "", "language": "python", **wrong}, timeout=20)
        assert response.status_code == 400, wrong
    response = requests.post(f"{base}/run_code", json={"code": "", "language": "python", "files": {"/proc/x": ""}}, timeout=20)
    assert response.status_code == 422 and response.json()["error"]["filepath"] == "/proc/x"


def test_output_over_the_cap(run_code: Run) -> None:
    body = run_code("print('a' * (5 << 20))")
    assert body["status"] == "Success" and len(body["run_result"]["stdout"]) == 4 << 20
    assert f"stdout cut at {4 << 20} of {(5 << 20) + 1} bytes" in body["message"]
    assert judged(200, body, "a" * (5 << 20)) is False


def test_memory_limit(run_code: Run) -> None:
    body = run_code("x = bytearray(512 << 20)", memory_limit_MB=256)
    assert judged(200, body, "") == -2 and "MemoryError" in body["run_result"]["stderr"]
    assert judged(200, run_code("x = bytearray(512 << 20)", memory_limit_MB=1024), "") is True


HOSTILE = {
    "kill everyone": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "kill process 1": (
        "import os\nfor s in range(1, 65):\n    try: os.kill(1, s)\n    except OSError: pass\nraise SystemExit(1)"
    ),
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "remove everything": "import os; os.system('rm -rf --no-preserve-root / 2>/dev/null'); os._exit(1)",
    "lock everything": "import os; os.system('chmod 000 / /workspace /tmp 2>/dev/null'); os._exit(1)",
    "close everything": "import os; os.closerange(0, 4096); os._exit(1)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "print for ever": "while True: print('x' * 65536)",
    "print binary": "import os; os.write(1, bytes(range(256)) * 100); os._exit(1)",
    "end with the pipes open": "import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(600)\nos._exit(1)",
    "a daemon at the limit": "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(600)",
    "forge an answer": 'print(\'{"status": "SandboxError"}\'); import os; os._exit(1)',
    "a pipe to fetch": "import os; os.mkfifo('f'); os._exit(1)",
    "an endless file to fetch": "import os; os.symlink('/dev/zero', 'f'); os._exit(1)",
    "a file of the kernel's to fetch": "import os; os.symlink('/proc/self/maps', 'f'); os._exit(1)",
    "what process 1 has open to fetch": "import os; os.symlink('/proc/self/fd/5', 'f'); os._exit(1)",
    "a directory to fetch": "import os; os.mkdir('f'); os._exit(1)",
    "a file too large to fetch": "import os; os.truncate(os.open('f', os.O_CREAT | os.O_WRONLY), 3 << 30); os._exit(1)",
    "a loop to fetch": "import os; os.symlink('f', 'f'); os._exit(1)",
    "NUL": "raise SystemExit(1)  # \0\n",
    "half a character": "\ud800",
    "deep nesting": "(" * 100_000,
    "limit the processor time of process 1": "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
    "limit the memory of process 1": (
        "import os, resource, time\ntry: resource.prlimit(1, resource.RLIMIT_AS, (0, 0))\nexcept Exception: pass\n"
        "os.system('head -c 100000000 /dev/zero'); os._exit(1)"
    ),
    "limit the files of process 1": (
        "import os, resource, time\ntry: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))\nexcept Exception: pass\n"
        "os._exit(1)"
    ),
    "stopped": "import os, signal; os.kill(0, signal.SIGSTOP)",
}


@pytest.mark.attack
@pytest.mark.parametrize("name", every(3, HOSTILE))
def test_nothing_inside_looks_like_a_failure_of_the_machine(run_code: Run, name: str) -> None:
    body = run_code(HOSTILE[name], run_timeout=1.5, fetch_files=["f"], stdin="unread" * 200_000)
    assert body["status"] == "Failed" and judged(200, body, None) in (-2, -3), body
    assert body["files"].get("f") in (None, "")


def test_a_kill_reaches_the_whole_tree(tcp: tuple[RunningServer, str], run_code: Run) -> None:
    run_code("import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(600)", run_timeout=0.3)
    none_left(tcp[0])


def none_left(server: RunningServer) -> None:
    deadline = time.monotonic() + 15
    while left := supervisors(server.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_client_that_leaves_takes_its_sandbox_along(tcp: tuple[RunningServer, str], base: str) -> None:
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(
            f"{base}/run_code", json={"code": "import time; time.sleep(50)", "language": "python", "run_timeout": 60}, timeout=1
        )
    none_left(tcp[0])


def test_the_machine_fails_once(tcp: tuple[RunningServer, str], run_code: Run) -> None:
    none_left(tcp[0])
    killer = threading.Thread(target=kill_the_new_supervisor, args=(tcp[0].pid, set()))
    killer.start()
    body = run_code("import time; time.sleep(1); print(42)")
    killer.join()
    assert judged(200, body, "42") is True


def test_the_machine_fails_again_and_again() -> None:
    with over_tcp() as (server, base):
        ended = threading.Event()

        def kill() -> None:
            while not ended.wait(0.02):
                for pid in supervisors(server.pid):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            answer = requests.post(
                f"{base}/run_code", json={"code": "import time; time.sleep(20)", "language": "python"}, timeout=50
            )
        finally:
            ended.set()
            thread.join()
        assert answer.status_code == 200 and answer.json()["status"] == "SandboxError", answer.text


def test_the_server_goes_meanwhile() -> None:
    """504, so that the client asks the next server."""
    with over_tcp() as (server, base), ThreadPoolExecutor(1) as pool:
        body = {"code": "import time; time.sleep(30)", "language": "python", "run_timeout": 40}
        asked = pool.submit(requests.post, f"{base}/run_code", json=body, timeout=50)
        deadline = time.monotonic() + 20
        while not supervisors(server.pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        left = supervisors(server.pid)
        server.stop(signal.SIGTERM)
        assert asked.result(20).status_code == 504
        # Other sandboxes live on, but nobody will ask for the results of these.
        while any(Path(f"/proc/{pid}/root").exists() for pid in left):
            assert time.monotonic() < deadline + 20
            time.sleep(0.02)


def test_a_key_for_one_route(tcp: tuple[RunningServer, str]) -> None:
    url = base_url(tcp[0])
    limited = ("", "only-run-code")
    body = {"code": "print(1)", "language": "python"}
    assert requests.post(f"{url}/run_code", json=body, auth=limited, timeout=20).status_code == 200
    for path in ("/v1/sandboxes", "/v1/health", "/health", "/v1/openapi.json", "/nothing"):
        answer = requests.get(url + path, auth=limited, timeout=20)
        assert answer.status_code == 401 and "/run_code only" in answer.text
        assert requests.get(url + path, auth=("any", KEY), timeout=20).status_code in (200, 404)
    assert requests.post(f"{url}/run_code", json=body, timeout=20).status_code == 401


def test_a_key_for_a_route_that_is_none(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-secret /run_cod\n")
    done = CliRunner().invoke(command, ["--port", "0", "--state-dir", str(tmp_path), "--api-key-file", str(keys)])
    assert done.exit_code == 1 and "'/run_cod', which is no route" in done.output and "a-secret" not in done.output


def test_verls_own_client(base: str) -> None:
    client = verl_client()
    cases = {"inputs": [str(number) for number in range(40)], "outputs": [str(number * 2) for number in range(40)]}
    results, _ = client.check_correctness(f"{base}/run_code", cases, "print(int(input()) * 2)")
    assert results == [True] * 40
    wrong = "n = int(input())\nprint(n * 2 if n != 7 else 0)\nassert n != 9"
    results, metadata = client.check_correctness(f"{base}/run_code", cases, wrong)
    assert [results[7], results[9]] == [False, -2] and results.count(True) == 38
    assert "AssertionError" in metadata[9]["stderr"]
    called = {"inputs": ["[1, 2]\n3", "[]\n4"], "outputs": ["[1, 2, 3]", "[4]"], "fn_name": "join"}
    assert client.check_correctness(f"{base}/run_code", called, "def join(a, b): return a + [b]")[0] == [True, True]
    slow = {"inputs": ["", ""], "outputs": ["", ""]}
    assert client.check_correctness(f"{base}/run_code", slow, "while True: pass", timeout=1)[0] == [-3, -3]
