"""What sandboxes begin with: images, snapshots and what is built."""

from __future__ import annotations

import uuid

import pytest

import aviato
from aviato import Image
from aviato.promises.declared import needs
from aviato.server.backends.capabilities import Capability


@needs(Capability.IMAGES)
def test_an_image_that_is_not_there(session: aviato.Session) -> None:
    """An image that is unknown is a SandboxImageError that names it."""
    with pytest.raises(aviato.SandboxImageError, match="no-such-directory-of-promises"):
        session.sandbox(container_image="dir:no-such-directory-of-promises").wait()


@needs(Capability.SNAPSHOTS)
def test_a_snapshot(session: aviato.Session) -> None:
    """A snapshot is an image of what a sandbox has written; the sandbox goes on, and what it does later is not in it."""
    sandbox = session.sandbox()
    sandbox.exec(["sh", "-c", "mkdir d; echo one > d/f; chmod 600 d/f; ln -s f d/link"], check=True).result()
    name = f"promises-{uuid.uuid4().hex}:1"
    taken = sandbox.snapshot(name=name).result()
    try:
        sandbox.exec(["sh", "-c", "echo two > d/f"], check=True).result()
        look = ["sh", "-c", "cat d/link; stat -c %a d/f"]
        for image in (taken.snapshot_id, name):
            assert session.sandbox(container_image=image).exec(look).result().stdout == "one\n600\n"
        assert sandbox.exec(look).result().stdout == "two\n600\n"
        assert taken.snapshot_id in [one.snapshot_id for one in aviato.Sandbox.list_snapshots().result()]
    finally:
        aviato.Sandbox.delete_snapshot(taken.snapshot_id).result()
    with pytest.raises(aviato.SandboxImageError):
        session.sandbox(container_image=taken.snapshot_id).wait()


@needs(Capability.SNAPSHOTS)
def test_a_fork(session: aviato.Session) -> None:
    """`fork(n)` gives sandboxes that begin with what one has written, each a place of its own."""
    parent = session.sandbox(environment_variables={"A": "1"})
    parent.write_file("f", b"parent").result()
    children = parent.fork(2, environment_variables={"B": "2"})
    for number, child in enumerate(children):
        child.exec(["sh", "-c", f"echo {number} > own"], check=True).result()
    look = ["sh", "-c", 'cat f; echo " $A $B"; cat own']
    assert [child.exec(look).result().stdout for child in children] == ["parent 1 2\n0\n", "parent 1 2\n1\n"]
    assert parent.exec(["ls"]).result().stdout == "f\n"


@needs(Capability.SNAPSHOTS)
def test_a_reset_to_a_snapshot(session: aviato.Session) -> None:
    """`reset(to=)` lets a sandbox begin as a snapshot has it."""
    sandbox = session.sandbox()
    sandbox.write_file("f", b"kept").result()
    taken = sandbox.snapshot().result()
    sandbox.exec(["sh", "-c", "rm f; touch g"], check=True).result()
    sandbox.reset(to=taken).result()
    assert sandbox.exec(["sh", "-c", "ls; cat f"]).result().stdout == "f\nkept"
    aviato.Sandbox.delete_snapshot(taken.snapshot_id).result()


@needs(Capability.SNAPSHOTS)
def test_a_snapshot_at_the_end(session: aviato.Session) -> None:
    """`stop(snapshot_on_stop=True)` gives the snapshot of a sandbox that has ended."""
    sandbox = session.sandbox()
    sandbox.write_file("f", b"kept").result()
    taken = sandbox.stop(snapshot_on_stop=True).result()
    assert sandbox.get_status() == "terminated"
    assert session.sandbox(container_image=taken.snapshot_id).read_file("f").result() == b"kept"
    aviato.Sandbox.delete_snapshot(taken.snapshot_id).result()


@needs(Capability.IMAGE_STORE, Capability.SNAPSHOTS)
def test_a_build(session: aviato.Session) -> None:
    """An `Image` is built at its first use, step by step, and is the same when it is asked for again."""
    base = session.sandbox()
    base.exec(["sh", "-c", "echo base > /base-of-promises"], check=True).result()
    taken = base.snapshot().result()
    word = uuid.uuid4().hex
    image = Image.from_(taken.snapshot_id).run(f"echo {word} > /built-by-promises").env(BUILT=word)
    look = ["sh", "-c", "cat /base-of-promises /built-by-promises; echo $BUILT"]
    for _ in range(2):
        assert session.sandbox(container_image=image).exec(look).result().stdout == f"base\n{word}\n{word}\n"
