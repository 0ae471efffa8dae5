"""Issues of repositories, in a small repository of git: diffs that resolve them, and diffs that do not.

SWE-bench's own grading was run on the logs of these runs: its verdict is that of `HARNESS`.
"""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.exceptions import AviatoValidationError
from aviato.rl import Outcome, Task, Verdict, evaluate
from aviato.rl.datasets import problem_of, swe, task_of
from aviato.rl.datasets.swe_logs import PARSERS, Resolved, pytest_log, r2e_log, unittest_log
from tests.attacks.grading.test_hacks import ENV, tools

SETUP = "mkdir repo && tar -xf repo.tar -C repo"
PYTEST = "python3 -m pytest -rA -p no:cacheprovider"
FILES = {
    "double.py": "def double(n):\n    return n * n\n\n\ndef half(n):\n    return n / 2\n",
    "old.py": "NAME = 'old'\n",
    "test_double.py": "from double import double, half\n\n\ndef test_half():\n    assert half(4) == 2\n",
}
TESTED = (
    FILES["test_double.py"]
    + "\n\ndef test_double():\n    assert double(3) == 6\n\n\ndef test_two():\n    assert double(2) == 4\n"
)


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def diff(folder: Path, files: dict[str, str | None]) -> str:
    """What changes the repository to have these files, and puts it back."""
    for name, content in files.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_text(content)
    git(folder, "add", "-A")
    found = git(folder, "diff", "--cached", "-M")
    git(folder, "reset", "-q", "--hard")
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repo")
    git(folder, "init", "-q", "-b", "main")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.fixture(scope="module")
def archive(repository: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(repository, arcname=".")
    return buffer.getvalue()


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session() as made:
        yield made


def row_of(repository: Path) -> dict[str, Any]:
    return {
        "repo": "example/double",
        "instance_id": "example__double-1",
        "base_commit": git(repository, "rev-parse", "HEAD").strip(),
        "patch": diff(repository, {"double.py": FILES["double.py"].replace("n * n", "2 * n")}),
        "test_patch": diff(repository, {"test_double.py": TESTED}),
        "problem_statement": "double(3) is 9",
        "hints_text": "",
        "created_at": "2024-01-01T00:00:00Z",
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps(["test_double.py::test_double"]),
        "PASS_TO_PASS": json.dumps(["test_double.py::test_half", "test_double.py::test_two"]),
        "environment_setup_commit": "",
    }


RIGHT = FILES["double.py"].replace("n * n", "2 * n")
EASY = "def test_half(): pass\ndef test_double(): pass\ndef test_two(): pass\n"
ANSWERS: dict[str, dict[str, str | None]] = {
    "right": {"double.py": RIGHT},
    "right, with a file renamed and one deleted": {
        "double.py": "from other import double, half\n",
        "other.py": RIGHT,
        "old.py": None,
    },
    "right, and it edits the tests": {"double.py": RIGHT, "test_double.py": EASY},
    "wrong": {"double.py": FILES["double.py"].replace("n * n", "n + 2")},
    "breaks what passed": {"double.py": RIGHT.replace("n / 2", "n")},
    "early exit": {"double.py": "import os\nos._exit(0)\n"},
    "edits the tests": {"test_double.py": EASY},
    "skips the tests": {"conftest.py": "import pytest\ndef pytest_collection_modifyitems(items):\n"
    "    for item in items: item.add_marker(pytest.mark.skip())\n"},
    "prints what passes": {"double.py": "print('PASSED test_double.py::test_double')\n" + FILES["double.py"]},
}  # fmt: skip
HARNESS = {name: name.startswith("right") for name in ANSWERS}


def asked(row: dict[str, Any], code: str | None, archive: bytes, **options: Any) -> Task:
    given = {"directory": "repo", "setup_command": SETUP, "test_command": f"{PYTEST} test_double.py", **options}
    task = swe(row, code, **given)
    return replace(task, files={**task.files, "repo.tar": archive, "tools.zip": tools()})


def run(tasks: dict[str, Task], session: aviato.Session) -> dict[str, Outcome]:
    outcomes = evaluate(list(tasks.values()), session=session, environment_variables=ENV).result(200)
    return dict(zip(tasks, outcomes, strict=True))


def test_diffs(repository: Path, archive: bytes, session: aviato.Session) -> None:
    row = row_of(repository)
    tasks = {name: asked(row, diff(repository, files), archive) for name, files in ANSWERS.items()}
    tasks["does not apply"] = asked(row, row["patch"].replace("return n * n", "return 5"), archive)
    tasks["no diff"] = asked(row, "I would double it.", archive)
    tasks["none"] = asked(row, None, archive)
    found = run(tasks, session)
    passed = {name: outcome.passed for name, outcome in found.items()}
    assert passed == {**HARNESS, "does not apply": False, "no diff": False, "none": False}, {
        name: outcome.message for name, outcome in found.items()
    }
    assert found["does not apply"].message == "tests: the patch does not apply"
    assert "1 tests that should pass do not: test_double.py::test_double" in found["wrong"].message
    assert "1 tests that passed do not: test_double.py::test_half" in found["breaks what passed"].message
    assert found["none"].verdict is Verdict.SKIPPED


def test_a_row_that_names_its_image(repository: Path, archive: bytes, session: aviato.Session) -> None:
    """The repository lies in the image, as in those of SWE-bench; here that is a snapshot with a name."""
    row = row_of(repository) | {"image": "example/double:1"}
    made = session.sandbox()
    made.write_file("/opt/tools.zip", tools()).result()
    made.write_file("/tmp/repo.tar", archive).result()
    made.exec(["sh", "-c", "mkdir /testbed && tar -xf /tmp/repo.tar -C /testbed && rm /tmp/repo.tar"], check=True).result()
    taken = made.stop(snapshot_on_stop=True).result()
    named = session.sandbox(container_image=taken.snapshot_id).snapshot(name=row["image"]).result()
    try:
        tasks = {name: swe(row, diff(repository, ANSWERS[name]), test_command=f"{PYTEST} test_double.py") for name in HARNESS}
        outcomes = evaluate(
            list(tasks.values()),
            session=session,
            container_image=row["image"],
            environment_variables={"PYTHONPATH": "/opt/tools.zip"},
        ).result(200)
        found = {name: outcome.passed for name, outcome in zip(tasks, outcomes, strict=True)}
        assert found == HARNESS, {name: outcome.message for name, outcome in zip(tasks, outcomes, strict=True)}
    finally:
        for one in (taken, named):
            aviato.Sandbox.delete_snapshot(one.snapshot_id).result()


def test_a_row_s_own_script(repository: Path, archive: bytes, session: aviato.Session) -> None:
    """What SWE-bench has since its rows carry their script: the patch of the tests is in it."""
    row = row_of(repository)
    script = "\n".join(
        [
            "#!/bin/bash",
            "set -uxo pipefail",
            f"git checkout {row['base_commit']} test_double.py",
            f"git apply -v - <<'EOF_114329324912'\n{row['test_patch']}\nEOF_114329324912",
            ": '>>>>> Start Test Output'",
            f"{PYTEST} test_double.py",
            ": '>>>>> End Test Output'",
            f"git checkout {row['base_commit']} test_double.py",
        ]
    )
    row |= {"eval_script": script, "log_parser": "parse_log_pytest", "image": "example", "test_patch": ""}
    answers = ("right", "wrong", "early exit", "edits the tests", "prints what passes")
    tasks = {name: asked(row, diff(repository, ANSWERS[name]), archive, test_command=None) for name in answers}
    found = run(tasks, session)
    assert {name: outcome.passed for name, outcome in found.items()} == {name: HARNESS[name] for name in answers}


BACK = "--- a/double.py\n+++ b/double.py\n@@ -1,2 +1,2 @@\n def double(n):\n-    return 2 * n\n+    return n * n\n"
NOTHING = "--- /dev/null\n+++ b/notes.txt\n@@ -0,0 +1 @@\n+nothing\n"


def test_a_diff_is_never_applied_backwards(repository: Path, archive: bytes, session: aviato.Session) -> None:
    """As `patch --batch` would, which takes one that asks for the bug for the opposite of what has been applied."""
    row = row_of(repository)
    fixed = f"{SETUP} && sed -i 's/n \\* n/2 * n/' repo/double.py"
    tasks = {
        "asks for what is there": asked(row, BACK.replace("-    return 2 * n", "-    return 3 * n"), archive),
        "what is there": asked(row, row["patch"], archive, setup_command=fixed + " && git -C repo commit -qam 'fixed'"),
    }
    tasks = {name: replace(task, code="export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a\n"
                           f"{task.code}") for name, task in tasks.items()}  # fmt: skip
    found = run(tasks, session)
    assert {name: (outcome.passed, outcome.message) for name, outcome in found.items()} == {
        "asks for what is there": (False, "tests: the patch does not apply"),
        "what is there": (True, ""),
    }


def test_a_patch_of_tests_that_renames_them_or_has_no_last_newline(
    repository: Path, archive: bytes, session: aviato.Session
) -> None:
    row = row_of(repository)
    renamed = row | {
        "test_patch": diff(repository, {"test_double.py": None, "test_new.py": TESTED}),
        "FAIL_TO_PASS": ["test_new.py::test_double"],
        "PASS_TO_PASS": ["test_new.py::test_half"],
    }
    cut = row | {"test_patch": row["test_patch"].rstrip("\n")}
    tasks = {
        f"{name}, {answer}": asked(of, diff(repository, ANSWERS[answer]), archive, test_command=None)
        for name, of in (("renamed", renamed), ("cut", cut))
        for answer in ("right", "wrong")
    }
    found = run(tasks, session)
    passed = {name: outcome.passed for name, outcome in found.items()}
    assert passed == {name: name.endswith("right") for name in tasks}, {name: one.message for name, one in found.items()}


def of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Git fetches from what is one's own."""
    member.uid = member.gid = 0
    return member


@pytest.mark.parametrize("where", ["a branch", "a branch of origin's", "a branch to be fetched", "nowhere"])
def test_a_row_of_swe_smith_is_graded_on_its_branch(
    where: str, repository: Path, session: aviato.Session, tmp_path: Path
) -> None:
    """It has the bug, and then a commit without the tests that show it, from before which is graded."""
    name = "example__double.12345678.lm_rewrite__abc"
    made, mirror = tmp_path / "made", tmp_path / "mirror"
    git(tmp_path, "clone", "-q", str(repository), str(mirror))
    (mirror / "double.py").write_text(RIGHT)
    (mirror / "test_double.py").write_text(TESTED)
    git(mirror, "commit", "-qam", "fine")
    git(mirror, "checkout", "-q", "-b", name)
    (mirror / "double.py").write_text(FILES["double.py"])
    git(mirror, "commit", "-qam", "Bug Patch")
    git(mirror, "rm", "-q", "test_double.py")
    git(mirror, "commit", "-qm", "Remove F2P Tests")
    git(mirror, "checkout", "-q", "main")
    if where == "a branch to be fetched":
        git(tmp_path, "clone", "-q", "--single-branch", "-b", "main", str(mirror), str(made))
        git(made, "remote", "set-url", "origin", "../mirror")
    elif where == "nowhere":
        git(tmp_path, "clone", "-q", "--single-branch", "-b", "main", str(mirror), str(made))
        git(made, "remote", "set-url", "origin", "../nothing")
    else:
        git(tmp_path, "clone", "-q", str(mirror), str(made))
        git(made, "checkout", "-q", *([name] if where == "a branch" else ["main"]))
        git(made, "checkout", "-q", "main")
        git(made, "remote", "remove", "origin") if where == "a branch" else None
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, called in ((made, "repo"), (mirror, "mirror")):
            tar.add(path, arcname=called, filter=of_root)
    row = {
        "instance_id": name,
        "repo": "swesmith/example__double.12345678",
        "image_name": "example",
        "patch": "",
        "FAIL_TO_PASS": ["test_double.py::test_double"],
        "PASS_TO_PASS": ["test_double.py::test_half"],
    }
    fix = "--- a/double.py\n+++ b/double.py\n@@ -1,2 +1,2 @@\n def double(n):\n-    return n * n\n+    return 2 * n\n"
    tasks = {
        answer: asked(row, code, buffer.getvalue(), setup_command="tar -xf repo.tar", test_command=None)
        for answer, code in (("right", fix), ("wrong", NOTHING))
    }
    found = run(tasks, session)
    wanted = {"right": None, "wrong": None} if where == "nowhere" else {"right": 1.0, "wrong": 0.0}
    assert {answer: one.reward() for answer, one in found.items()} == wanted, {name: one.message for name, one in found.items()}
    assert where != "nowhere" or "not appear to be a git repository" in found["right"].message


def named_tests(log: str) -> dict[str, str]:
    return dict(line.split(": ") for line in log.strip().splitlines())


def test_no_line_that_is_printed_brings_it_about_that_there_is_no_verdict(
    repository: Path, archive: bytes, session: aviato.Session
) -> None:
    row = row_of(repository) | {"FAIL_TO_PASS": ["double"], "PASS_TO_PASS": ["half"]}
    program = (
        "from double import double, half\nprint('double:', 'PASSED' if double(3) == 6 else 'FAILED')\n"
        "print('half:', 'PASSED' if half(4) == 2 else 'FAILED')\n"
    )
    options = {"test_command": f"python3 -c {shlex.quote(program)}", "parse_log": named_tests}
    prints = {"double.py": "print('hello')\n" + FILES["double.py"]}
    tasks = {
        name: asked(row, diff(repository, files), archive, **options)
        for name, files in {"right": ANSWERS["right"], "wrong": ANSWERS["wrong"], "wrong, and prints": prints}.items()
    }
    found = run(tasks, session)
    rewards = {name: outcome.reward() for name, outcome in found.items()}
    assert rewards == {"right": 1.0, "wrong": 0.0, "wrong, and prints": 0.0}


def test_a_log_may_be_large(repository: Path, archive: bytes, session: aviato.Session) -> None:
    row = row_of(repository)
    much = f"head -c 6000000 /dev/zero | tr '\\0' x; echo; {PYTEST} test_double.py"
    task = asked(row, diff(repository, ANSWERS["right"]), archive, test_command=much)
    [outcome] = run({"right": task}, session).values()
    assert outcome.passed, outcome.message


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize("line", ["_" * 100_000, "PASSED " + "[/" * 50_000, ".py:" * 25_000, "x.py: _" * 15_000])
def test_no_line_of_a_log_takes_long(name: str, line: str) -> None:
    begin = time.process_time()
    PARSERS[name](line)
    assert time.process_time() - begin < 5


def test_rows_of_swe_smith_and_r2e(repository: Path, archive: bytes, session: aviato.Session) -> None:
    smith = {
        "instance_id": "main",  # its name is that of a branch
        "repo": "swesmith/example__double.12345678",
        "image_name": "example",
        "patch": "",
        "problem_statement": "half(3) is 2",
        "FAIL_TO_PASS": ["test_double.py::test_half"],
        "PASS_TO_PASS": ["test_double.py::test_half", "test_other.py::test_elsewhere"],
    }
    r2e = {
        "repo_name": "double",
        "docker_image": "example",
        "commit_hash": "0",
        "expected_output_json": json.dumps({"test_half": "PASSED", "\x1b[1mtest_double\x1b[0m": "FAILED"}),
    }
    good = diff(repository, {"old.py": "NAME = 'new'\n"})
    bad = diff(repository, {"double.py": FILES["double.py"].replace("n / 2", "n")})
    shown = (
        "printf '=== short test summary info ===\\n%s test_double.py::test_half\\nFAILED test_double.py::test_double - x\\n'"
    )
    told = f"if grep -q 'n / 2' double.py; then {shown} PASSED; else {shown} FAILED; fi"
    tasks = {
        "smith, good": asked(smith, good, archive, test_command=None),
        "smith, bad": asked(smith, bad, archive, test_command=None),
        "r2e, good": asked(r2e, good, archive, test_command=told),
        "r2e, bad": asked(r2e, bad, archive, test_command=told),
    }
    found = {name: outcome.passed for name, outcome in run(tasks, session).items()}
    assert found == {name: name.endswith("good") for name in tasks}


def test_tests_that_the_log_of_a_row_of_swe_smith_does_not_name(
    repository: Path, archive: bytes, session: aviato.Session
) -> None:
    """Rows have them: what is gone with the right answer, and names with an address. Its harness takes them for passed."""
    row = {
        "instance_id": "main",
        "repo": "swesmith/example__double.12345678",
        "image_name": "example",
        "patch": "",
        "FAIL_TO_PASS": ["test_double.py::test_half", "test_double.py::test_double[gone]", "test_double.py::test_cut[a"],
        "PASS_TO_PASS": ["test_double.py::test_half[<object object at 0x7f0000000000>]"],
    }
    right: dict[str, str | None] = {"old.py": "NAME = 'new'\n", "test_other.py": "def test_fails(): assert 0\n"}
    answers: dict[str, dict[str, str | None]] = {
        "right": right,
        "wrong": {"double.py": FILES["double.py"].replace("n / 2", "n")},
        "cannot be imported": {"double.py": "def ("},
        "leaves": {"double.py": "import os\nos._exit(0)\n"},
        "leaves as one that failed": {"double.py": "import os\nos._exit(1)\n"},
    }
    codes = {name: diff(repository, files) for name, files in answers.items()}
    tasks = {name: asked(row, code, archive, test_command=None) for name, code in codes.items()}
    tasks["right, where another test fails"] = asked(
        row, codes["right"], archive, test_command=f"{PYTEST} test_double.py test_other.py"
    )
    tasks["another's row"] = asked({**row, "repo": "example/double"}, codes["right"], archive, test_command=None)
    found = {name: outcome.passed for name, outcome in run(tasks, session).items()}
    assert found == {name: name.startswith("right") for name in tasks}


RUNTESTS = """#!/usr/bin/env python3
import sys, unittest
options, labels = sys.argv[1:6], sys.argv[6:]
assert options == ["--verbosity", "2", "--settings=test_sqlite", "--parallel", "1"], options
sys.path[:0] = ["tests", "."]
unittest.main(module=None, argv=["runtests", "-v", *labels])
"""
SYMPY = """#!/usr/bin/env python3
import os, sys
assert sys.argv[1:] == ["-C", "--verbose", "tests/doubles/test_double.py"] and "PYTHONWARNINGS" in os.environ
sys.path[:0] = ["."]
from double import double, half
for name, right in (("test_half", half(4) == 2), ("test_double", double(3) == 6)):
    print(name, "ok" if right else "F")
"""
CASES = """import unittest
from double import double, half

class Doubles(unittest.TestCase):
    def test_double(self):
        "It doubles."
        print("Testing against something.")
        self.assertEqual(double(3), 6)
    def test_half(self):
        "It halves."
        self.assertEqual(half(4), 2)
"""


def test_repositories_with_runners_of_their_own(repository: Path, archive: bytes, session: aviato.Session) -> None:
    (repository / "tests" / "doubles").mkdir(parents=True, exist_ok=True)
    row = row_of(repository) | {"test_patch": diff(repository, {"tests/doubles/test_double.py": CASES}), "version": "4.2"}
    named = {"django": ["It doubles.", "It halves."], "sympy": ["test_double", "test_half"]}
    setup = f"{SETUP} && mkdir -p repo/tests repo/bin && cp runtests.py repo/tests/ && cp test repo/bin/ && chmod +x repo/*/*"
    tasks = {}
    for name, (failing, passing) in named.items():
        of = row | {"repo": f"{name}/{name}", "FAIL_TO_PASS": [failing], "PASS_TO_PASS": [passing]}
        for answer in ("right", "wrong", "breaks what passed", "early exit"):
            task = asked(of, diff(repository, ANSWERS[answer]), archive, test_command=None, setup_command=setup)
            own = {**task.files, "runtests.py": RUNTESTS.encode(), "test": SYMPY.encode()}
            tasks[f"{name}, {answer}"] = replace(task, files=own)
    found = run(tasks, session)
    passed = {name: outcome.passed for name, outcome in found.items()}
    assert passed == {name: name.endswith("right") for name in tasks}, {name: one.message for name, one in found.items()}


def test_where_there_is_no_repository_nobody_has_failed(repository: Path, session: aviato.Session) -> None:
    row = row_of(repository)
    tasks = {
        "no repository": swe(row, row["patch"]),
        "no setup": swe(row, row["patch"], directory="repo", setup_command="exit 3"),
    }
    for name, outcome in run(tasks, session).items():
        assert outcome.verdict is Verdict.INFRASTRUCTURE and "repository is not in the sandbox" in outcome.message, name


def test_what_a_row_becomes(repository: Path) -> None:
    row = row_of(repository)
    task = task_of("swe", row, "diff")
    assert (task.language, task.timeout_seconds, problem_of("swe", row).code_language) == ("bash", 1800.0, "diff")
    assert task.files["model.patch"] == b"diff\n" and task.files["tests.patch"] == row["test_patch"].encode()
    assert "python -m pytest -rA -p no:cacheprovider test_double.py\n" in (task.code or "")
    assert "cd -- /testbed" in (task.code or "")
    odd = swe({**row, "base_commit": "0'; exit 1", "FAIL_TO_PASS": ["a b.py::test"], "test_patch": ""}, "diff").code or ""
    assert """git checkout -q '0'"'"'; exit 1' -- 'a b.py'""" in odd
    for fields, why in (
        ({"FAIL_TO_PASS": "[]"}, "no tests in 'FAIL_TO_PASS'"),
        ({"FAIL_TO_PASS": "what"}, "'FAIL_TO_PASS' is no JSON"),
        ({"FAIL_TO_PASS": ["test_x (tests.Case)"]}, "its tests are not pytest's"),
        ({"eval_script": "true", "log_parser": "parse_log_karma"}, "log_parser is 'karma'"),
        ({"expected_output_json": "{}"}, "no tests in 'expected_output_json'"),
    ):
        with pytest.raises(AviatoValidationError, match="cannot be judged") as caught:
            swe({**row, **fields})
        assert why in str(caught.value)


def test_logs() -> None:
    log = (
        "tests/test_a.py::test_old PASSED                [ 50%]\n\x1b[32mPASSED\x1b[0m tests/test_a.py::test_b[x y]\n"
        "FAILED tests/test_a.py::test_c - assert 1 == 2\nSKIPPED [2] tests/test_a.py:3: no\n"
        "XFAIL tests/test_a.py::test_d - why\n"
        "ERROR tests/test_a.py\nPASSED\nall PASSED here\n"
    )
    assert pytest_log(log) == {
        "tests/test_a.py::test_old": "PASSED",
        "tests/test_a.py::test_b[x y]": "PASSED",
        "tests/test_a.py::test_c": "FAILED",
        "tests/test_a.py::test_d": "XFAIL",
        "tests/test_a.py": "ERROR",
    }
    django = (
        "test_a (m.T) ... ok\ntest_b (m.T) ... FAIL\ntest_c (m.T) ... skipped 'no'\n"
        "test_d (m.T) ... Testing against Django\nok\n"
        "test_e (m.T) ... ERROR\n"
    )
    wanted = {"a": "PASSED", "b": "FAILED", "c": "SKIPPED", "d": "PASSED", "e": "ERROR"}
    assert unittest_log(django) == {f"test_{name} (m.T)": status for name, status in wanted.items()}
    r2e = (
        "noise PASSED a::b\n=== short test summary info ===\nPASSED t.py::T::test_a\nFAILED t.py::test_b - x\n== 1 failed ==\n"
    )
    assert r2e_log(r2e) == {"T.test_a": "PASSED", "test_b": "FAILED"}


LOGS = [
    # parser, line of a log, what SWE-bench's own parser of that name finds
    ("requests", "PASSED t.py::test_a[/usr/x/y]", {"t.py::test_a[/y]": "PASSED"}),
    ("requests", "PASSED t.py::test_a[//x/y]", {"t.py::test_a[//x/y]": "PASSED"}),
    ("requests", "PASSED t.py::test_a[/x*/y]", {"t.py::test_a[/x*/y]": "PASSED"}),
    ("requests", "FAILED t.py::test_a[1-2] - assert 1", {"t.py::test_a[1-2]": "FAILED"}),
    ("pytest", "PASSED t.py::test_a[/usr/x/y]", {"t.py::test_a[/usr/x/y]": "PASSED"}),
    ("pytest", "PASSED [100%]", {"[100%]": "PASSED"}),
    ("pytest", "SKIPPED [1] t.py:3: no", {}),
    ("matplotlib", "PASSED t.py::test_a[MouseButton.RIGHT]", {"t.py::test_a[3]": "PASSED"}),
    ("matplotlib", "PASSED t.py::test_a[1-MouseButton.LEFT]", {"t.py::test_a[1-1]": "PASSED"}),
    ("django", "test_a (m.T) ...  OK", {"test_a (m.T)": "PASSED"}),
    ("django", "FAIL: test_a (m.T)", {"test_a": "FAILED"}),
    ("django", "ERROR: test_a (m.T)", {"test_a": "ERROR"}),
    ("django", "It works. ... ok", {"It works.": "PASSED"}),
    ("django", "test_a (m.T) ... skipped 'no database'", {"test_a (m.T)": "SKIPPED"}),
    ("django", "test_a (m.T) ... expected failure", {}),
    ("django", "Applying sites.0002_alter_domain_unique...test_a (m.T) ... ok", {"test_a (m.T)": "PASSED"}),
    ("sympy", "test_a ok", {"test_a": "PASSED"}),
    ("sympy", "test_a[1] F", {"test_a[1]": "FAILED"}),
    ("sympy", "test_a E", {"test_a": "ERROR"}),
    ("sympy", "test_a f", {}),
    ("sympy", "________ sympy/core/tests/test_a.py:test_b ________", {"sympy/core/tests/test_a.py:test_b": "FAILED"}),
    ("requests", "PASSED t.py::test_a[/usr/x/y-[z]]", {"t.py::test_a[/y-[z]]": "PASSED"}),
]


@pytest.mark.parametrize(("name", "line", "found"), LOGS)
def test_lines_of_a_log(name: str, line: str, found: dict[str, str]) -> None:
    assert PARSERS[name](line) == found


def test_a_repository_tells_how_its_tests_run() -> None:
    row = {"base_commit": "0", "test_patch": "--- a/tests/a/b.py\n+++ b/tests/a/b.py\n", "FAIL_TO_PASS": ["test_x (a.b.T)"]}
    told = {
        ("django/django", "4.2"): "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 a.b\n",
        ("django/django", "1.9"): "./tests/runtests.py --verbosity 2 a.b\n",
        ("sympy/sympy", "1.1"): "bin/test -C --verbose tests/a/b.py\n",
    }
    for (repo, version), command in told.items():
        assert command in (swe({**row, "repo": repo, "version": version}, "diff").code or ""), repo
    parsers = {"psf/requests": "requests", "matplotlib/matplotlib": "matplotlib", "pallets/flask": "pytest"}
    for repo, name in parsers.items():
        judge = swe({**row, "repo": repo, "FAIL_TO_PASS": ["tests/a/b.py::test"]}).tests[0].judge  # type: ignore[union-attr]
        assert isinstance(judge, Resolved) and judge.parse_log is PARSERS[name]
