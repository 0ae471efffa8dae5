"""Each hack of the table, by `grade` and by `evaluate`, with a right and a wrong solution."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import marshal
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Task, Verdict, evaluate
from tests.attacks.grading.hacks import ASSERTS, GRADERS, HACKS, RIGHT, WRONG
from tests.matrices import deep, every

pytestmark = pytest.mark.attack

ENV = {"PYTHONPATH": "/workspace/tools.zip"}
EVIL = "#include <unistd.h>\n__attribute__((constructor)) static void leave(void) { _exit(0); }\n"


@pytest.fixture
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@functools.cache
def tools() -> bytes:
    """pytest as an archive: the sandboxes' Python has none."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("pluggy-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: pluggy\nVersion: 1\n")
        for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py"):
            found = Path(importlib.import_module(name).__file__ or "")
            paths = [found] if found.name != "__init__.py" else list(found.parent.rglob("*.py"))
            for path in paths:
                below = found.parent if paths == [found] and found.name != "__init__.py" else found.parent.parent
                inside = str(path.relative_to(below))
                archive.write(path, inside)
                archive.writestr(f"{inside}c", compiled(path, f"/workspace/tools.zip/{inside}"))
    return buffer.getvalue()


def compiled(path: Path, inside: str) -> bytes:
    """Bytecode that is taken as it is: to compile all of pytest takes longer than all the rest of a run."""
    code = compile(path.read_bytes(), inside, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


@functools.cache
def evil(folder: Path) -> bytes | None:
    """A library that ends every program that loads it."""
    if shutil.which("cc") is None:
        return None
    (folder / "evil.c").write_text(EVIL)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "evil.so", folder / "evil.c"], check=True)
    return (folder / "evil.so").read_bytes()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes | None:
    return evil(tmp_path_factory.mktemp("evil"))


def grader_of(name: str) -> tuple[dict[str, bytes], list[str]]:
    texts, command = GRADERS[name]
    files = {path: text.encode() for path, text in texts.items()}
    return ({**files, "tools.zip": tools()} if name == "pytest" else files), command


def episode(sandbox: aviato.Sandbox, code: str, library: bytes | None) -> None:
    """The policy's last step: its solution is there, and ran once."""
    if library is not None:
        sandbox.write_file("/root/evil.so", library).result()
    sandbox.write_file("solution.py", code.encode()).result()
    sandbox.exec(["python3", "solution.py"], timeout_seconds=20).result()


@pytest.mark.parametrize("name", HACKS)
def test_by_grade(name: str, session: aviato.Session, library: bytes | None) -> None:
    hack = HACKS[name]
    files, command = grader_of("plain" if hack.naive == "login shell" else hack.naive)
    sandbox = session.sandbox()
    verdicts = {}
    for which, solution in (("right", RIGHT), ("wrong", WRONG)):
        episode(sandbox, f"{solution}\n{hack.source}\n", library)
        for mode in ("separate", "in_process"):
            graded = sandbox.grade(
                files,
                command,
                result_paths=["solution.py"],
                mode=mode,
                timeout_seconds=20,
                env=ENV,  # type: ignore[arg-type]
            ).result(50)
            assert graded.mode == mode
            assert graded.passed or graded.message
            verdicts[which, mode] = graded.passed
    assert verdicts == {
        ("right", "separate"): hack.separate,
        ("wrong", "separate"): False,
        ("right", "in_process"): hack.in_process[0],
        ("wrong", "in_process"): hack.in_process[1],
    }


@pytest.mark.parametrize("mode", ["separate", *deep(["in_process"])])
def test_by_evaluate(mode: str, session: aviato.Session) -> None:
    tasks = [
        Task(code=f"{solution}\n{hack.source}\n", tests=ASSERTS, grading=mode, timeout_seconds=20)
        for hack in HACKS.values()
        for solution in (RIGHT, WRONG)
    ]
    outcomes = evaluate(tasks, session=session, max_concurrency=4).result(55)
    verdicts = {name: (outcomes[2 * at].passed, outcomes[2 * at + 1].passed) for at, name in enumerate(HACKS)}
    listed = {
        name: (hack.separate, False) if mode == "separate" else hack.evaluated or hack.in_process
        for name, hack in HACKS.items()
    }
    assert verdicts == listed
    assert {outcome.grading_mode for outcome in outcomes} == {mode}
    assert Verdict.INFRASTRUCTURE not in {outcome.verdict for outcome in outcomes}


@pytest.mark.parametrize("name", every(4, HACKS))
def test_each_is_real(name: str, session: aviato.Session, library: bytes | None) -> None:
    """Positive control: a grader in the policy's own sandbox that goes by the returncode is deceived by the wrong solution."""
    hack = HACKS[name]
    if name == "LD_PRELOAD" and library is None:
        pytest.skip("no compiler to make a library with")
    files, command = grader_of(hack.naive)

    def passes(source: str) -> bool:
        sandbox = session.sandbox()
        if not hack.visible:
            episode(sandbox, f"{WRONG}\n{source}\n", library)
        for path, content in files.items():
            sandbox.write_file(path, content).result()
        if hack.visible:
            episode(sandbox, f"{WRONG}\n{source}\n", library)
        return sandbox.exec(command, env=ENV, timeout_seconds=30).result().returncode == 0

    assert passes(hack.source)
    assert not passes("")
