"""Metrics and W&B where it matters which process it is: late import, exit, fork, spawn, and an interpreter without wandb."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aviato.installation import extra_command
from tests.integrations import offline_run, wandb_service

wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install -e '.[wandb]'")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(server: Any, tmp_path: Path) -> Callable[..., list[str]]:
    """Run a program of a user's, and return the lines that it printed."""

    def run(source: str, *flags: str, **environment: str) -> list[str]:
        # A process that finds another's wandb service in its environment uses that, and leaves its run to it.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_SERVICE")}
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(source))
        done = subprocess.run(
            [sys.executable, *flags, "-W", "error::DeprecationWarning:aviato", str(path)],
            capture_output=True,
            text=True,
            timeout=250,
            env={**inherited, "AVIATO_BASE_URL": server.url, "WANDB_DIR": str(tmp_path), **environment},
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def ours(files_dir: str) -> list[tuple[int, int]]:
    return [(row["aviato/step"], row["aviato/executions"]) for row in offline_run.rows(files_dir) if "aviato/step" in row]


@pytest.mark.parametrize("report_to", [None, ["wandb"]])
def test_nothing_imports_wandb_but_the_user(script: Callable[..., list[str]], report_to: Any) -> None:
    (loaded,) = script(f"""
        import sys
        from aviato import Session
        with Session(report_to={report_to!r}) as session:
            session.sandbox().exec(["true"]).result()
            session.log_metrics(step=1)
        print(sorted(name for name in sys.modules if name.split(".")[0] in ("wandb", "opentelemetry", "prometheus_client")))
    """)
    assert loaded == "[]"


def test_without_wandb(script: Callable[..., list[str]], tmp_path: Path) -> None:
    """An interpreter with all that is installed here but wandb, in a folder where wandb has left one of its own."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in filter(os.path.isdir, sys.path):
        for entry in Path(folder).iterdir() if "packages" in folder else ():
            if not entry.name.startswith("wandb") and not (packages / entry.name).is_symlink():
                (packages / entry.name).symlink_to(entry)
    (tmp_path / "wandb").mkdir()
    lines = script(
        """
        import aviato
        with aviato.Session() as session:
            session.sandbox().exec(["true"]).result()
            print(session.log_metrics(step=1), session.get_metrics()["aviato/executions"])
        try:
            aviato.Session(report_to=["wandb"])
        except aviato.AviatoValidationError as error:
            print(error)
        import wandb
        try:
            aviato.Session(report_to=["wandb"])
        except aviato.AviatoValidationError as error:
            print(error.field_violations)
        """,
        "-S",
        PYTHONPATH=f"{ROOT}:{packages}",
    )
    assert lines[0] == "False 1"
    assert lines[1].endswith(f"install it with: {extra_command('wandb')}")
    assert lines[2] == "{'report_to': 'not installed'}"


def test_what_is_left_is_logged_at_exit(script: Callable[..., list[str]]) -> None:
    (files_dir,) = script("""
        import aviato, wandb
        session = aviato.Session()
        print(wandb.init(project="exit").dir)
        sandbox = session.sandbox()
        sandbox.exec(["true"]).result()
        session.log_metrics(step=2)
        sandbox.exec(["true"]).result()
        wandb.log({"loss": 1})
        sandbox.exec(["true"]).result()
    """)
    assert ours(files_dir) == [(2, 1), (2, 2)]


def test_what_waits_goes_out_at_exit(script: Callable[..., list[str]]) -> None:
    """The run is not finished by the program, and the trainer's steps come after ours."""
    (files_dir,) = script("""
        import aviato, wandb
        session = aviato.Session()
        run = wandb.init(project="exit")
        print(run.dir)
        sandbox = session.sandbox()
        for step in range(4):
            sandbox.exec(["true"]).result()
            session.log_metrics(step=step)
        for step in range(2):
            run.log({"loss": step}, step=step)
        sandbox.exec(["true"]).result()
    """)
    assert ours(files_dir) == [(0, 1), (1, 1), (2, 1), (3, 2)]
    assert [(row["_step"], row["loss"]) for row in offline_run.rows(files_dir) if "loss" in row] == [(0, 0), (1, 1)]


def test_what_a_thread_counts_until_the_end_goes_out_at_exit(script: Callable[..., list[str]]) -> None:
    """It outlives the main thread, so sessions log what is left after the rows that wait have gone out."""
    (files_dir,) = script("""
        import threading
        import aviato, wandb
        print(wandb.init(project="exit").dir)
        session, other = aviato.Session(), aviato.Session()
        sandboxes = [session.sandbox(), other.sandbox()]
        for step in range(3):
            aviato.results([sandbox.exec(["true"]) for sandbox in sandboxes])
            session.log_metrics(step=step)
            other.log_metrics(step=step + 10)

        def work():
            threading.main_thread().join()
            aviato.results([sandbox.exec(["true"]) for sandbox in sandboxes])

        threading.Thread(target=work).start()
    """)
    counts: dict[int, int] = {}
    for step, count in ours(files_dir):
        counts[step] = counts.get(step, 0) + count
    assert counts == {0: 1, 1: 1, 2: 2, 10: 1, 11: 1, 12: 2}


ORDERS = """
    import aviato, wandb
    session = aviato.Session()
    run = wandb.init(project="aviato-tests", entity="tests", id="abc", resume={resume!r}, settings=wandb.Settings({settings}))
    print(run.dir)
    sandbox = session.sandbox()

    def ours(step):
        sandbox.exec(["true"]).result()
        assert session.log_metrics(step)

    ours(None)
    for step in range({first} + 1, {first} + 4):
        ours(step)
    for step in range({first}, {first} + 3):
        run.log({{"loss": step}}, step=step)
        ours(step + 100)
        run.log({{"reward": step}}, step=step)
    run.log({{"grad_norm": 1}}, commit=False)
    ours(1000)
    run.log({{"loss": 1}})
    run.log({{"loss": 2}})
    session.close().result()
    run.finish()
"""


def test_a_resumed_run(script: Callable[..., list[str]]) -> None:
    """It stands at 100. Rows of ours that are far ahead, or behind it, move nothing."""
    with wandb_service.serve(wandb_service.Service(last_step=99)) as address:
        source = ORDERS.format(resume="must", settings="", first=100)
        files_dir, *_ = script(source, WANDB_BASE_URL=address, WANDB_API_KEY=wandb_service.KEY, WANDB_MODE="online")
    expected = [*range(100, 104), 200, 201, 202, 1000]
    assert ours(files_dir) == [(step, 1) for step in expected]
    theirs = [
        (row["_step"], row.get("loss"), row.get("reward"), row.get("grad_norm"))
        for row in offline_run.rows(files_dir)
        if {"loss", "reward", "grad_norm"} & row.keys()
    ]
    assert theirs == [*((step, step, step, None) for step in (100, 101)), (102, 1, 102, 1), (103, 2, None, None)]


def test_a_shared_run(script: Callable[..., list[str]]) -> None:
    """Its service numbers the rows and takes a row of each call; only what a trainer keeps open may be parted."""
    with wandb_service.serve(wandb_service.Service()) as address:
        source = ORDERS.format(resume=None, settings="mode='shared', x_primary=True", first=0)
        files_dir, *_ = script(source, WANDB_BASE_URL=address, WANDB_API_KEY=wandb_service.KEY, WANDB_MODE="online")
    rows = offline_run.rows(files_dir)
    assert ours(files_dir) == [(step, 1) for step in (0, 1, 2, 3, 100, 101, 102, 1000)]
    assert [row["loss"] for row in rows if "loss" in row] == [0, 1, 2, 1, 2]
    assert [row["reward"] for row in rows if "reward" in row] == [0, 1, 2]
    assert [row["grad_norm"] for row in rows if "grad_norm" in row] == [1]


def test_a_forked_child_counts_its_own_and_leaves_the_run_alone(script: Callable[..., list[str]]) -> None:
    files_dir, *rest = script("""
        import os
        import aviato, wandb
        run = wandb.init(project="fork")
        print(run.dir, flush=True)
        with aviato.Session() as session:
            sandbox = session.sandbox()
            sandbox.exec(["true"]).result()
            child = os.fork()
            if child == 0:
                aviato.results([sandbox.exec(["true"]), session.sandbox().exec(["true"])])
                print(session.log_metrics(step=9), session.get_metrics()["aviato/executions"], flush=True)
                session.close().result()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            run.log({"loss": 1}, step=0)
            session.log_metrics(step=0)
            run.log({"loss": 2}, step=1)
        run.finish()
    """)
    assert rest == ["False 2"]
    rows = offline_run.rows(files_dir)
    assert [row["loss"] for row in rows] == [1, 2]
    assert ours(files_dir) == [(0, 1)]


@pytest.mark.skipif(wandb.__version__.startswith("0.24"), reason="wandb 0.24 itself hangs at the exit of a forked child")
def test_what_waits_is_not_the_childs(script: Callable[..., list[str]]) -> None:
    """It ends as any program does, with the rows that wait in its memory, too; wandb fails if it is asked there."""
    files_dir, *rest = script("""
        import os, sys
        import aviato, wandb
        run = wandb.init(project="fork")
        print(run.dir, flush=True)
        with aviato.Session() as session:
            sandbox = session.sandbox()
            for step in range(3):
                sandbox.exec(["true"]).result()
                session.log_metrics(step=step)
            child = os.fork()
            if child == 0:
                os.dup2(1, 2)
                sys.exit(0)
            print(os.waitpid(child, 0)[1])
            run.log({"loss": 1}, step=0)
        run.finish()
    """)
    assert "0" in rest
    assert not [line for line in rest if "rows of metrics" in line]
    assert ours(files_dir) == [(0, 1), (1, 1), (2, 1)]
    assert [row["loss"] for row in offline_run.rows(files_dir) if "loss" in row] == [1]


def test_a_spawned_child_sees_no_run(script: Callable[..., list[str]]) -> None:
    lines = script("""
        import multiprocessing, sys

        def work():
            import aviato
            with aviato.Session() as session:
                session.sandbox().exec(["true"]).result()
                print(session.log_metrics(step=1), "wandb" in sys.modules, flush=True)

        if __name__ == "__main__":
            import wandb
            with wandb.init(project="spawn"):
                child = multiprocessing.get_context("spawn").Process(target=work)
                child.start()
                child.join()
                print(child.exitcode)
    """)
    assert lines == ["False False", "0"]
