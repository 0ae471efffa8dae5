"""Images that are built in sandboxes: what each step leaves, what is kept, and what goes wrong."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

import aviato
import aviato.aio.async_sandbox
from aviato import AsyncClient, AviatoValidationError, Image, SandboxImageError, Session
from aviato.rl import Task, evaluate
from tests.images.programs import tools
from tests.images.whole_images import make_layout, tar_of

pytestmark = pytest.mark.usefixtures("served")


def run(sandbox: Any, command: str, **options: Any) -> str:
    return str(sandbox.exec(["sh", "-c", command], check=True, **options).result().stdout)


def unique(tmp_path: Path) -> Image:
    """One that nobody has built."""
    return Image.from_("host").run(f"echo {tmp_path} >/srv/which")


def steps(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.getMessage().startswith("building: ")]
    caplog.clear()
    return [one.partition(": step ")[2] for one in found]


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="aviato")


def test_status_while_it_is_built(session: Session, tmp_path: Path) -> None:
    image = unique(tmp_path).run("sleep 1")
    sandbox = session.sandbox(container_image=image)
    seen, shown, asked = set(), set(), set()
    deadline = time.monotonic() + 60
    while sandbox.status != "running" and time.monotonic() < deadline:
        seen.add((str(sandbox.status), sandbox.status_reason))
        shown.add(repr(sandbox).partition(" ")[2].partition(" ")[2])
        asked.add(str(sandbox.get_status()))
        time.sleep(0.02)
    assert "pending (building)>" in shown and "pending" in asked
    assert ("pending", "building") in seen and (sandbox.get_status(), sandbox.status_reason) == ("running", None)
    failing = session.sandbox(container_image=unique(tmp_path).run("sleep 0.5; exit 1"))
    call = failing.exec(["true"])
    seen = set()
    while not call.done():
        seen.add((str(failing.status), failing.status_reason))
        time.sleep(0.02)
    assert ("pending", "building") in seen and (failing.status, failing.status_reason) == ("unspecified", None)
    with pytest.raises(SandboxImageError, match="returncode 1"):
        call.result()


def test_status_for_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        sandbox = aviato.Sandbox(container_image=unique(tmp_path).run("sleep 0.8"))
        call = sandbox.exec(["true"])
        seen = set()
        while not call.done():
            seen.add((str(sandbox.status), sandbox.status_reason))
            await asyncio.sleep(0.02)
        await call
        assert ("pending", "building") in seen and sandbox.status == "running"
        await sandbox.stop()

    asyncio.run(main())


def test_what_the_steps_leave(session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = tmp_path / "repo"
    (local / "deep").mkdir(parents=True)
    (local / "deep" / "file").write_text("content\n")
    (local / "link").symlink_to("deep/file")
    image = (
        unique(tmp_path)
        .copy(local, "/repo")
        .env(WHERE="built", AND="more")
        .workdir("/repo/deep")
        .run("pwd >/srv/pwd; echo $WHERE >/srv/where", ["sh", "-c", "rm /etc/group; cat file >/srv/copied"])
    )
    first = session.sandbox(container_image=image)
    second = session.sandbox(container_image=image, environment_variables={"AND": "else"})
    assert run(
        first, "cat /srv/pwd /srv/where /srv/copied; pwd; cat ../link; echo $WHERE $AND; ls /etc/group 2>&1 | wc -l"
    ) == ("/repo/deep\nbuilt\ncontent\n/repo/deep\ncontent\nbuilt more\n1\n")
    assert run(second, "echo $WHERE $AND; cat /srv/which") == f"built else\n{tmp_path}\n"
    assert [one.split(":")[0] for one in steps(caplog)] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    found = image.build().result()
    assert (
        found.status == "here" and found.working_dir == "/repo/deep" and found.environment == {"WHERE": "built", "AND": "more"}
    )
    (local / "deep" / "file").write_text("changed\n")
    changed = Image(image.base, image.steps).run("true")
    assert run(session.sandbox(container_image=changed), "cat file /srv/copied") == "changed\nchanged\n"
    assert [one.split(":")[0] for one in steps(caplog)] == ["2 of 5", "3 of 5", "4 of 5", "5 of 5"]
    assert not [one for one in aviato.Sandbox.list_snapshots().result() if one.name and "build" in one.name]


def test_of_an_image_and_its_user(session: Session, tmp_path: Path) -> None:
    files = {**tools("sh"), "etc/passwd": b"bob:x:5:6::/:/bin/sh\n"}
    layout = make_layout(tmp_path / "image", [tar_of({**files, "tmp/": (0o1777, 0, 0, b"")})], {"Env": ["PATH=/bin"]})
    image = Image.from_(f"oci:{layout}").run("echo made >/made").user("bob").workdir("/w").run("id -u >/tmp/own")
    sandbox = session.sandbox(container_image=image)
    users = "65535" in run(session.sandbox(), "cat /proc/self/uid_map")
    assert run(sandbox, "cat /made /tmp/own; pwd; id -u") == ("made\n5\n/w\n5\n" if users else "made\n0\n/w\n0\n")


def test_verdicts_are_of_it(session: Session, tmp_path: Path) -> None:
    image = unique(tmp_path).run("echo 42 >/srv/answer")
    task = Task(code="f = lambda: open('/srv/answer').read()", tests=["assert f() == '42\\n'"])
    [outcome] = evaluate([task], session=session, container_image=image).result()
    assert outcome.passed, outcome
    sandbox = session.sandbox(container_image=image)
    graded = sandbox.grade({"test_x.py": b"assert open('/srv/answer').read() == '42\\n'"}, ["python3", "test_x.py"]).result()
    assert graded.passed, graded.message


def test_verdicts_are_of_it_also_once_it_was_removed(session: Session, tmp_path: Path) -> None:
    image = unique(tmp_path).run("echo 42 >/srv/answer")
    task = Task(code="f = lambda: open('/srv/answer').read()", tests=["assert f() == '42\\n'"])

    async def remove(reference: str) -> None:
        async with AsyncClient() as client:
            await client.remove_image(reference, force=True)

    for _ in range(2):
        [outcome] = evaluate([task], session=session, container_image=image).result()
        assert outcome.passed, outcome
        asyncio.run(remove(image.build().result().reference))


def test_by_await(served: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = unique(tmp_path)

    async def main() -> None:
        assert (await image.build()).status == "here"
        async with AsyncClient() as client:
            made = await asyncio.gather(*(client.sandbox(container_image=image) for _ in range(4)))
            said = await asyncio.gather(*(one.exec(["cat", "/srv/which"], check=True) for one in made))
            assert [one.stdout for one in said] == [f"{tmp_path}\n"] * 4

    asyncio.run(main())
    assert len(steps(caplog)) == 1


def test_many_that_wait_for_one_build(session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = unique(tmp_path).run("sleep 0.3")
    sandboxes = [session.sandbox(container_image=pickle.loads(pickle.dumps(image))) for _ in range(8)]
    for sandbox in sandboxes:
        assert run(sandbox, "cat /srv/which") == f"{tmp_path}\n"
    assert len(steps(caplog)) == 2


def test_a_tree_that_changes_while_it_is_copied(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "tree"
    local.mkdir()
    (local / "file").write_text("planned")
    image = unique(tmp_path).copy(local, "/srv/tree")
    upload = aviato.aio.async_sandbox.AsyncSandbox.upload

    async def changed(self: Any, *arguments: Any, **options: Any) -> None:
        (local / "file").write_text("changed")
        await upload(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(aviato.aio.async_sandbox.AsyncSandbox, "upload", changed)
        with pytest.raises(SandboxImageError, match=r"copy .*was changed while it was built"):
            image.build().result()
    (local / "file").write_text("planned")
    assert run(session.sandbox(container_image=image), "cat /srv/tree/file") == "planned"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda image: image.run("echo why >&2; exit 3"), "returncode 3: why"),
        (lambda image: image.copy("/none/there", "/x"), "/none/there"),
        (lambda image: image.run(["no-such-program"]), "no-such-program"),
        (lambda image: image.copy("/etc/hostname", "/proc/x"), "/proc"),
    ],
)
def test_a_step_that_fails(session: Session, tmp_path: Path, step: Any, message: str) -> None:
    image = step(unique(tmp_path))
    before = {one.sandbox_id for one in aviato.Sandbox.list().result()}
    with pytest.raises(SandboxImageError, match=message) as caught:
        image.build().result()
    assert caught.value.reason == "build_failed" and caught.value.is_infrastructure
    sandbox = session.sandbox(container_image=image)
    for _ in range(2):
        with pytest.raises(SandboxImageError, match="cannot be built"):
            sandbox.exec(["true"]).result()
    [outcome] = evaluate([Task(code="print(1)", expected_output="1\n")], session=session, container_image=image).result()
    assert (outcome.is_infrastructure and outcome.passed is None) or not outcome.passed
    assert {one.sandbox_id for one in aviato.Sandbox.list().result()} <= before


def test_bad_input() -> None:
    for wrong in (lambda: Image.from_(5), lambda: Image.from_("x").run(3), lambda: Image.from_("x").env(A=1)):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            wrong()
    for wrong in (
        lambda: Image.from_(""),
        lambda: Image.from_("x").run(""),
        lambda: Image.from_("x").run([]),
        lambda: Image.from_("x").workdir("here"),
        lambda: Image.from_("x").pip_install(),
        lambda: Image.from_("x").run("a\0b"),
    ):
        with pytest.raises(AviatoValidationError):
            wrong()
    with pytest.raises(TypeError, match="str or an Image"):
        aviato.Sandbox(container_image=5)  # type: ignore[arg-type]
