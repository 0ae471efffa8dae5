"""Snapshots and forks, and what is said of one."""

from __future__ import annotations

import aviato
from aviato import AsyncClient, Sandbox
from aviato.wire.ids import new_snapshot_id
from tests.surface.harness import Place, acheck, check
from tests.surface.names import SNAPSHOT_ATTRIBUTES


@check(
    *("Sandbox.snapshot", "Sandbox.snapshot(name=)", "Sandbox.snapshot(expires_after_seconds=)", "Sandbox.list_snapshots"),
    *("Sandbox.delete_snapshot", "Sandbox.delete_snapshot(missing_ok=)"),
    *(f"Snapshot.{name}" for name in SNAPSHOT_ATTRIBUTES),
)
def snapshots(place: Place) -> None:
    box = place.box()
    taken = box.snapshot(name="surface-snapshot:1", expires_after_seconds=100).result(60)
    assert (taken.name, taken.sandbox_id, taken.image) == ("surface-snapshot:1", box.sandbox_id, "host")
    assert taken.snapshot_id.startswith("sn-") and taken.image_id.startswith("sha256:") and taken.size_bytes is None
    assert taken.expires_at is not None and 90 < taken.expires_at - taken.created_at < 110
    assert taken in Sandbox.list_snapshots().result(60)
    Sandbox.delete_snapshot(taken.snapshot_id).result(60)
    Sandbox.delete_snapshot(taken.snapshot_id, missing_ok=True).result(60)
    assert taken not in Sandbox.list_snapshots().result(60)


@check("Sandbox.reset", "Sandbox.reset(to=)")
def resets(place: Place) -> None:
    box = place.box()
    box.write_file("/tmp/x", b"x").result(60)
    taken = box.snapshot().result(60)
    box.reset().result(60)
    assert box.exec(["ls", "/tmp"]).result(60).stdout == ""
    box.reset(to=taken).result(60)
    assert box.read_file("/tmp/x").result(60) == b"x"
    Sandbox.delete_snapshot(taken.snapshot_id).result(60)


@check(
    *("Session.pool", "Session.pool(warmup=)", "Pool.sandbox", "Pool.ready", "Pool.size", "Pool.close", "Pool.__enter__"),
)
def pools(place: Place) -> None:
    with place.session.pool(1, warmup=["echo x >/tmp/x"]) as pool:
        assert pool.size == 1 and pool.ready().result(60) in (0, 1)
        assert pool.sandbox().read_file("/tmp/x").result(60) == b"x\n"
        pool.close().result(60)


@check("SandboxSnapshotError")
def unknown(place: Place) -> None:
    try:
        Sandbox.delete_snapshot(new_snapshot_id()).result(60)
    except aviato.SandboxSnapshotError as error:
        assert error.reason == "not_found"
    else:
        raise AssertionError("it was known")


@check("Sandbox.fork", "Sandbox.stop(snapshot_on_stop=)")
def forks(place: Place) -> None:
    box = place.box()
    box.write_file("/tmp/x", b"x").result(60)
    assert [child.read_file("/tmp/x").result(60) for child in box.fork(2)] == [b"x", b"x"]
    taken = box.stop(snapshot_on_stop=True).result(60)
    assert place.box(container_image=taken.snapshot_id).read_file("/tmp/x").result(60) == b"x"
    Sandbox.delete_snapshot(taken.snapshot_id).result(60)


@acheck(
    *(
        "Sandbox.snapshot",
        "Sandbox.fork",
        "Sandbox.list_snapshots",
        "Sandbox.delete_snapshot",
        "Sandbox.stop(snapshot_on_stop=)",
    )
)
async def awaited(place: Place) -> None:
    box = place.box()
    await box.write_file("/tmp/x", b"x")
    [child] = box.fork()
    assert await child.read_file("/tmp/x") == b"x"
    taken = await box.snapshot()
    last = await box.stop(snapshot_on_stop=True)
    assert {taken.snapshot_id, last.snapshot_id} <= {one.snapshot_id for one in await Sandbox.list_snapshots()}
    for one in (taken, last):
        await Sandbox.delete_snapshot(one.snapshot_id)


@acheck("Sandbox.reset", "Session.pool", "Pool.__aenter__", "Pool.ready", "Pool.close")
async def anew(place: Place) -> None:
    async with place.session.pool(1) as pool:
        assert await pool.ready() in (0, 1)
        box = pool.sandbox()
        await box.write_file("/tmp/x", b"x")
        await box.reset()
        assert (await box.exec(["ls", "/tmp"])).stdout == ""
        await pool.close()


@acheck("AsyncClient.snapshots", "AsyncClient.delete_snapshot")
async def core(place: Place) -> None:
    async with AsyncClient() as client:
        box = await client.sandbox()
        await box.write_file("/tmp/x", b"x")
        [child] = await box.fork()
        assert await child.read_file("/tmp/x") == b"x"
        taken = await box.snapshot()
        last = await box.stop(snapshot_on_stop=True)
        assert last is not None and {taken, last} <= set(await client.snapshots())
        for one in (taken, last):
            await client.delete_snapshot(one.snapshot_id)


@check(
    *(f"Image.{name}" for name in ("from_", "run", "copy", "env", "workdir", "user", "pip_install", "build", "base", "steps"))
)
def built(place: Place) -> None:
    (place.path / "file").write_text(str(place.path))
    image = (
        aviato.Image.from_("host").copy(place.path / "file", "/srv/file").env(A="b").workdir("/srv").user("root").run("pwd >p")
    )
    assert (image.base, len(image.steps)) == ("host", 5)
    assert str(image.pip_install("x").steps[-1]) == "run python3 -m pip install --no-cache-dir x"
    found = image.build(base_url=place.url).result(60)
    assert (found.environment, found.working_dir, found.user) == ({"A": "b"}, "/srv", "root")
    box = place.box(container_image=image)
    assert box.read_file("/srv/file").result(60) == str(place.path).encode() and box.read_file("/srv/p").result(60) == b"/srv\n"


@check(
    *("Image.from_dockerfile", "Image.build(name=)"),
    *(f"Image.from_dockerfile({name}=)" for name in ("context", "target", "build_args")),
)
def of_a_dockerfile(place: Place) -> None:
    (place.path / "file").write_text("content")
    (place.path / "Dockerfile").write_text("FROM host AS one\nARG A\nCOPY file /srv/$A\nFROM none")
    image = aviato.Image.from_dockerfile(
        place.path / "Dockerfile", context=place.path, target="one", build_args={"A": place.path.name}
    )
    assert "docker.io/library/surface-built:1" in image.build(name="surface-built:1").result(60).names
    assert place.box(container_image="surface-built:1").read_file(f"/srv/{place.path.name}").result(60) == b"content"


@acheck("Image.build")
async def built_by_await(place: Place) -> None:
    assert (await aviato.Image.from_("host").run(f"echo {place.path}").build()).status == "here"
