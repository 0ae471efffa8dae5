"""Snapshots and forks of real sandboxes: what goes along, what does not, and that nobody sees another's."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aviato
from aviato import AsyncClient, AviatoValidationError, Sandbox, SandboxImageError, SandboxSnapshotError, Session
from aviato.wire.ids import new_snapshot_id
from tests.images.programs import busybox, one_program, tools
from tests.images.whole_images import make_layout, tar_of

pytestmark = pytest.mark.usefixtures("served")
TREE = "cd / && find workspace srv etc/made -printf '%P %y %m %U:%G %l\\n' | sort && cat workspace/text"


@pytest.fixture
def image(tmp_path: Path) -> str:
    """One with a shell, of two layers, some of whose files go."""
    below = {**tools("sh"), "tmp/": b"", "kept": b"kept", "gone": b"gone"}
    above = {"full/one": b"1", "full/two": b"2", "own": (0o640, 7, 8, b"own")}
    return f"oci:{make_layout(tmp_path / 'image', [tar_of(below), tar_of(above)], {'Env': ['PATH=/bin', 'OF=image']})}"


def run(sandbox: Any, command: str, **options: Any) -> str:
    return str(sandbox.exec(["sh", "-c", command], check=True, **options).result().stdout)


@pytest.fixture
def begun(session: Session) -> Iterator[list[str]]:
    """Snapshots that the test has made, to be removed."""
    made: list[str] = []
    yield made
    for snapshot_id in made:
        Sandbox.delete_snapshot(snapshot_id, missing_ok=True).result()


def test_files_go_along_and_what_comes_later_is_each_one_s_own(session: Session, begun: list[str]) -> None:
    first = session.sandbox(tags=["prepared"], environment_variables={"OF": "first"})
    run(first, "mkdir -p /srv/d && echo one >text && ln text hard && ln -s text soft && mkfifo pipe && chmod 6755 /srv/d")
    run(first, "truncate -s 1M sparse && mkdir -p /etc/made/deep && echo x >/etc/made/deep/f")
    run(first, "rm -r /var/log && mkdir /var/log && rm /etc/group")
    before = run(first, TREE)
    taken = first.snapshot().result()
    begun.append(taken.snapshot_id)
    assert isinstance(taken, aviato.Snapshot)
    assert taken.sandbox_id == first.sandbox_id and taken.name is None and taken.expires_at is None and taken.image == "host"
    assert taken.size_bytes is None and abs(taken.created_at - time.time()) < 60
    [listed] = [one for one in Sandbox.list_snapshots().result() if one.snapshot_id == taken.snapshot_id]
    assert listed.size_bytes is not None and 0 < listed.size_bytes < 1 << 20  # A hole takes no place.
    run(first, "echo later >text && touch late")
    second = session.sandbox(container_image=taken.snapshot_id)
    assert run(second, TREE) == before
    assert run(second, "ls -A /var/log; test -e /etc/group || echo none; stat -c %h hard; hostname").split() == [
        "none",
        "2",
        second.sandbox_id,
    ]
    assert run(second, "echo ${OF:-nothing}") == "nothing\n"  # Variables are a sandbox's, and not in its files.
    run(second, "echo own >text")
    third = session.sandbox(container_image=taken.snapshot_id)
    assert run(third, "cat text; ls late 2>&1 | wc -l") == "one\n1\n"
    assert run(first, "cat text") == "later\n"
    assert second.status == "running" and taken.snapshot_id in str(Sandbox.list_snapshots().result())


def test_of_an_image_with_layers(session: Session, image: str, begun: list[str]) -> None:
    first = session.sandbox(container_image=image)
    run(first, "rm gone && rm -r full && mkdir full && echo 3 >full/three && echo more >>kept && touch /tmp/new", cwd="/")
    taken = first.snapshot().result()
    begun.append(taken.snapshot_id)
    assert taken.image == image
    first.stop().result()
    second = session.sandbox(container_image=taken.snapshot_id)
    assert (
        run(second, "cat kept; ls full; ls gone 2>&1 | wc -l; ls /tmp; echo $OF", cwd="/") == "keptmore\nthree\n1\nnew\nimage\n"
    )
    run(second, "rm -r full && touch again", cwd="/")
    deeper = second.snapshot().result()
    begun.append(deeper.snapshot_id)
    third = session.sandbox(container_image=deeper.snapshot_id)
    assert run(third, "ls -d full 2>&1 | wc -l; ls again kept", cwd="/") == "1\nagain\nkept\n"
    assert run(third, "ls -d full >/dev/null 2>&1; echo $?", cwd="/") != "0\n"


def test_of_a_directory(make_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "sh").write_bytes(busybox().read_bytes())
    (root / "bin" / "sh").chmod(0o755)
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(image=f"bare={root}").url)
    with Session() as session:
        first = session.sandbox(container_image="dir:bare")
        run(first, "echo x >/made")
        taken = first.snapshot().result()
        assert taken.image == "dir:bare"
        assert run(session.sandbox(container_image=taken.snapshot_id), "read x </made; echo $x") == "x\n"
    assert not (root / "made").exists()


def test_one_of_an_image_without_a_shell(session: Session, tmp_path: Path, begun: list[str]) -> None:
    first = session.sandbox(container_image=one_program(tmp_path / "image"))
    first.write_file("/data/x", b"x").result()
    taken = first.snapshot().result()
    begun.append(taken.snapshot_id)
    second = session.sandbox(container_image=taken.snapshot_id)
    assert second.read_file("/data/x").result() == b"x"
    assert "aviato-init" in second.exec(["/program", "--version"]).result().stdout


def test_children_of_a_fork(session: Session) -> None:
    parent = session.sandbox(
        tags=["a"], environment_variables={"A": "1", "B": "1"}, resources={"processes": 50, "memory": "256Mi"}
    )
    run(parent, "echo prepared >text; mkdir d; seq 1000 >d/numbers")
    children = parent.fork(8, environment_variables={"B": "2"}, tags=["child"], resources={"memory": "128Mi"})
    assert len({child.sandbox_id for child in children} | {parent.sandbox_id}) == 9
    refs = [
        child.exec(["sh", "-c", f"echo {n} >>text; cat text; hostname; echo $A $B"], check=True)
        for n, child in enumerate(children)
    ]
    for number, (child, ref) in enumerate(zip(children, refs, strict=True)):
        assert ref.result().stdout.split() == ["prepared", str(number), child.sandbox_id, "1", "2"]
    assert children[0].get_status() == "running" and children[0].tags == ("a", "child")
    assert children[0].limits["memory"].value == 128 << 20 and children[0].limits["processes"].value == 50
    assert run(parent, "cat text") == "prepared\n"
    [grandchild] = children[3].fork()
    assert run(grandchild, "cat text") == "prepared\n3\n"
    assert session.sandbox_count == 10
    grader = {"test_x.py": b"assert open('/workspace/text').read() == 'prepared\\n'"}
    graded = children[5].grade(grader, ["python3", "test_x.py"])
    assert graded.result().passed, graded.result().message
    assert not [one for one in Sandbox.list_snapshots().result() if one.sandbox_id == parent.sandbox_id]
    counted = session.get_metrics()
    assert (counted["aviato/forks"], counted["aviato/sandboxes_created"], "aviato/snapshots" in counted) == (9, 10, False)
    image = children[0]._state.config.create["image"]
    for sandbox in (parent, grandchild, *children):
        sandbox.stop().result()
    _goes(image)


def _goes(image: str) -> None:
    """A fork's own one goes with the last of its children, when the server next looks."""

    async def is_there() -> bool:
        async with AsyncClient() as client:
            await client.delete_snapshot(new_snapshot_id(), missing_ok=True)
            return image in str(await client.images())

    deadline = time.monotonic() + 50
    while asyncio.run(is_there()):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_fork_by_await(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            parent = await client.sandbox()
            await parent.exec(["sh", "-c", "echo x >text"], check=True)
            children = await parent.fork(3)
            read = await asyncio.gather(*(child.exec(["cat", "text"], check=True) for child in children))
            assert [one.stdout for one in read] == ["x\n"] * 3
            taken = await parent.stop(snapshot_on_stop=True)
            assert taken is not None and taken.snapshot_id in [one.snapshot_id for one in await client.snapshots()]
            again = await client.sandbox(container_image=taken.snapshot_id)
            assert (await again.exec(["cat", "text"], check=True)).stdout == "x\n"
            await client.delete_snapshot(taken.snapshot_id)
            assert (await again.exec(["cat", "text"], check=True)).stdout == "x\n"
            named = await again.snapshot(name="by-await:1", expires_after_seconds=100)
            assert named.name == "by-await:1" and named.expires_at is not None
            await client.delete_snapshot(named.snapshot_id)

    asyncio.run(main())


def test_a_child_that_fails_is_its_own_failure(session: Session) -> None:
    parent = session.sandbox()
    run(parent, "echo x >text")
    good = parent.fork(2)
    bad = parent.fork(1, resources={"memory": "4000Ti"})
    with pytest.raises(AviatoValidationError, match="memory"):
        bad[0].exec(["true"]).result()
    assert [run(child, "cat text") for child in good] == ["x\n"] * 2
    for wrong, error in (({"n": 0}, AviatoValidationError), ({"n": "2"}, TypeError), ({"tag": ["x"]}, TypeError)):
        with pytest.raises(error):
            parent.fork(**wrong)  # type: ignore[arg-type]


def test_what_the_parent_does_next_does_not_reach_its_children(session: Session) -> None:
    parent = session.sandbox()
    run(parent, "head -c 30000000 /dev/urandom >large; md5sum large >sum")
    children = parent.fork(2)
    parent.stop().result()
    assert [run(child, "md5sum -c sum") for child in children] == ["large: OK\n"] * 2
    with session.sandbox() as other:
        run(other, "echo x >text")
        [child] = other.fork()
    assert run(child, "cat text") == "x\n"


def test_of_a_sandbox_that_ends_or_has_ended(session: Session) -> None:
    parent = session.sandbox()
    parent.wait()
    parent.stop().result()
    [child] = parent.fork()
    with pytest.raises(aviato.SandboxNotRunningError):
        parent.snapshot().result()
    with pytest.raises(aviato.SandboxError):
        child.exec(["true"]).result()


def test_stopping_with_a_snapshot(session: Session, begun: list[str]) -> None:
    sandbox = session.sandbox()
    run(sandbox, "echo x >text")
    taken = sandbox.stop(snapshot_on_stop=True).result()
    begun.append(taken.snapshot_id)
    assert sandbox.get_status() == "terminated"
    assert run(session.sandbox(container_image=taken.snapshot_id), "cat text") == "x\n"


def test_names_expiry_and_removal(session: Session, begun: list[str]) -> None:
    first = session.sandbox()
    run(first, "echo 1 >text")
    one = first.snapshot("prepared:1").result()
    begun.append(one.snapshot_id)
    assert one.name == "prepared:1"
    using = session.sandbox(container_image="prepared:1")
    assert run(using, "cat text") == "1\n"
    run(first, "echo 2 >text")
    two = first.snapshot("prepared:1").result()
    begun.append(two.snapshot_id)
    assert run(session.sandbox(container_image="prepared:1"), "cat text") == "2\n"
    assert run(session.sandbox(container_image=one.snapshot_id), "cat text") == "1\n"
    Sandbox.delete_snapshot(one.snapshot_id).result()
    assert run(using, "cat text") == "1\n"
    with pytest.raises(SandboxImageError, match="was deleted"):
        session.sandbox(container_image=one.snapshot_id).exec(["true"]).result()
    with pytest.raises(SandboxSnapshotError) as caught:
        Sandbox.delete_snapshot(one.snapshot_id).result()
    assert caught.value.reason == "not_found" and not caught.value.is_infrastructure
    Sandbox.delete_snapshot(one.snapshot_id, missing_ok=True).result()
    short = first.snapshot(expires_after_seconds=0.2).result()
    begun.append(short.snapshot_id)
    deadline = time.monotonic() + 60
    while short.snapshot_id in [found.snapshot_id for found in Sandbox.list_snapshots().result()]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(SandboxImageError):
        session.sandbox(container_image=short.snapshot_id).exec(["true"]).result()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda one: one.snapshot(name=5), TypeError),
        (lambda one: one.snapshot(name=""), AviatoValidationError),
        (lambda one: one.snapshot(name="oci:/x").result(), SandboxSnapshotError),
        (lambda one: one.snapshot(name="a b").result(), SandboxSnapshotError),
        (lambda one: one.snapshot(name=new_snapshot_id()).result(), SandboxSnapshotError),
        (lambda one: one.snapshot(expires_after_seconds=0), AviatoValidationError),
        (lambda _: Sandbox.delete_snapshot("sn-x").result(), SandboxSnapshotError),
        (lambda _: Sandbox.delete_snapshot(new_snapshot_id()).result(), SandboxSnapshotError),
    ],
)
def test_bad_input(sandbox: Sandbox, call: Callable[[Sandbox], Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call(sandbox)
    if isinstance(caught.value, SandboxSnapshotError):
        assert not caught.value.is_infrastructure
    assert sandbox.exec(["echo", "x"]).result().stdout == "x\n"


def test_commands_stand_still_meanwhile_and_go_on(session: Session, begun: list[str]) -> None:
    """Two files that are always written one after the other are never seen half."""
    sandbox = session.sandbox()
    run(sandbox, "head -c 30000000 /dev/urandom >large")
    process = sandbox.exec(["sh", "-c", "n=0; while :; do n=$((n+1)); echo $n >t; mv t a; echo $n >t; mv t b; done"])
    deadline = time.monotonic() + 60
    while not run(sandbox, "cat b 2>/dev/null || true"):
        assert time.monotonic() < deadline
    for _ in range(3):
        taken = sandbox.snapshot().result()
        begun.append(taken.snapshot_id)
        a, b = map(int, run(session.sandbox(container_image=taken.snapshot_id), "cat a b").split())
        assert 0 <= a - b <= 1
        before = int(run(sandbox, "cat a") or 0)
        deadline = time.monotonic() + 60
        while int(run(sandbox, "cat a") or 0) <= before:
            assert time.monotonic() < deadline
    process.cancel()


def test_a_file_that_no_layer_can_have_is_said(sandbox: Sandbox) -> None:
    run(sandbox, "touch /srv/.wh.name; sleep 1000 >/dev/null 2>&1 &")  # One at rest would leave it as it is.
    with pytest.raises(SandboxSnapshotError, match=r"\.wh\.name") as caught:
        sandbox.snapshot().result()
    assert not caught.value.is_infrastructure
    run(sandbox, "rm /srv/.wh.name")
    Sandbox.delete_snapshot(sandbox.snapshot().result().snapshot_id).result()


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=200), min_size=2, max_size=12))
def test_children_have_no_byte_of_a_sibling(session: Session, texts: list[bytes]) -> None:
    parent = session.sandbox()
    run(parent, "echo common >common")
    children = parent.fork(len(texts))
    writes = [child.write_file("/workspace/own", text) for child, text in zip(children, texts, strict=True)]
    for write in writes:
        write.result()
    for child, text in zip(children, texts, strict=True):
        assert child.read_file("/workspace/own").result() == text
        assert [one.path for one in child.list_files("/workspace").result()] == ["/workspace/common", "/workspace/own"]
    for sandbox in (parent, *children):
        sandbox.stop().result()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_goes_leaves_none_and_the_next_one_takes_it(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, sig: signal.Signals
) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        parent = session.sandbox(detached=True)
        run(parent, "for n in $(seq 200); do head -c 400000 /dev/urandom >f$n; done; cat f* | md5sum >sum")
        going = parent.snapshot()
        children = parent.fork(2)
        store = next(Path(server.state_dir).glob("images/ids-*"))
        deadline = time.monotonic() + 60
        while not [*store.glob("blobs/*.tree/root/workspace/f*")] and not going.done():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        server.stop(sig)
        server.restart()
        taken = going.result()
        others = [session.sandbox(container_image=taken.snapshot_id), *children]
        for one in others:
            assert run(one, "cat f* | md5sum | cmp - sum && echo whole") == "whole\n"
        assert run(parent, "cat f* | md5sum | cmp - sum && echo whole") == "whole\n"
        assert [one.snapshot_id for one in Sandbox.list_snapshots().result() if one.expires_at is None] == [taken.snapshot_id]
        parent.stop().result()
        detached = session.sandbox(container_image=taken.snapshot_id, detached=True)
        run(detached, "echo more >more")
        Sandbox.delete_snapshot(taken.snapshot_id).result()
        server.stop(signal.SIGTERM)
        server.restart()
        [child] = detached.fork()
        assert run(child, "cat more; cat f* | md5sum | cmp - sum && echo whole") == "more\nwhole\n"
        for one in (detached, *children, child):
            one.stop().result()


@pytest.mark.deep
def test_256_children_run_256_commands(served: Any) -> None:
    with Session(max_concurrency=64) as session:
        parent = session.sandbox()
        run(parent, "mkdir repo && cd repo && for n in $(seq 200); do echo $n >f$n; done")
        children = parent.fork(256)
        parent.stop().result()
        for number, child in enumerate(children):
            result = child.exec(
                ["sh", "-c", f"cat repo/f{number % 200 + 1}; echo {number} >mine; ls; cat mine"], check=True
            ).result()
            assert result.stdout.split() == [str(number % 200 + 1), "mine", "repo", str(number)]
            child.stop().result()
