"""What a backend has not declared: asked for, it is refused by name, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aviato
from aviato import Image, NetworkOptions, Session
from aviato.promises.declared import Declared
from aviato.promises.serving import Server
from aviato.server.backends.capabilities import Capability


def _fork(session: Session) -> None:
    session.sandbox().fork(1)[0].wait()


def _pool(session: Session) -> None:
    with session.pool(1) as pool:
        pool.sandbox().wait()


def _grade(session: Session) -> None:
    sandbox = session.sandbox()
    sandbox.write_file("solution.py", b"n = 1\n").result()
    given: dict[str, Any] = {"result_paths": ["solution.py"], "timeout_seconds": 20}
    sandbox.grade({"t.py": b"import solution\n"}, ["python3", "t.py"], mode="separate", **given).result()


ASKED: dict[Capability, tuple[Callable[[Session], Any], ...]] = {
    Capability.PORTS: (lambda session: session.sandbox(ports=[8000]).wait(),),
    Capability.EGRESS: (lambda session: session.sandbox(network=NetworkOptions(egress_mode=["example.org"])).wait(),),
    Capability.INTERNET: (lambda session: session.sandbox(network=NetworkOptions(egress_mode="internet")).wait(),),
    Capability.PLACES: (
        lambda session: session.sandbox(runway_ids=["no-such-place"]).wait(),
        lambda session: session.sandbox(tower_ids=["no-such-place"]).wait(),
    ),
    Capability.LOCAL_SOCKETS: (_grade,),
    Capability.MOUNTED_FILES: (
        lambda session: session.sandbox(mounted_files=[{"mount_path": "/data/x", "file_content": b"x"}]).wait(),
    ),
    Capability.WORKING_DIR: (lambda session: session.sandbox(working_dir="/srv").wait(),),
    Capability.USERS: (
        lambda session: session.sandbox().exec(["true"], user="daemon").result(),
        lambda session: session.sandbox().exec(["true"], user=1234).result(),
    ),
    Capability.PACKAGES: (lambda session: session.sandbox(packages="/usr").wait(),),
    Capability.IMAGES: (lambda session: session.sandbox(container_image="no-such-image-of-promises:1").wait(),),
    Capability.IMAGE_STORE: (
        lambda session: session.prefetch(["no-such-image-of-promises:1"]).result(),
        lambda session: session.sandbox(container_image=Image.from_("python:3.11").run("true")).wait(),
    ),
    Capability.SNAPSHOTS: (
        lambda session: session.sandbox().snapshot().result(),
        lambda session: session.sandbox().stop(snapshot_on_stop=True).result(),
        lambda session: session.sandbox().reset(to="no-such-snapshot").result(),
        _fork,
    ),
    Capability.POOLS: (_pool,),
}
"""Of each capability calls that need it."""


@pytest.mark.parametrize("capability", Capability)
def test_what_is_not_declared(session: Session, declared: Declared, capability: Capability) -> None:
    """What a backend cannot do is an AviatoValidationError that names the capability and the backend, never silence."""
    if capability in declared.capabilities:
        pytest.skip(f"{declared.backend!r} declares {capability.value!r}")
    for call in ASKED[capability]:
        with pytest.raises(aviato.AviatoValidationError) as caught:
            call(session)
        said = str(caught.value)
        assert f"'{capability.value}'" in said and (repr(declared.backend) in said or "this server's backend" in said)
        assert not caught.value.is_infrastructure


def test_a_runtime(session: Session) -> None:
    """`runtime` other than None is an error that names it."""
    with pytest.raises(aviato.AviatoValidationError, match="runtime"):
        session.sandbox(runtime="other").wait()


def test_the_declarations(server: Server, declared: Declared) -> None:
    """Capabilities are known ones, and every limit is told with a strength."""
    assert declared.capabilities <= set(Capability)
    assert {"cpu", "memory", "disk", "processes"} <= set(declared.strengths)
