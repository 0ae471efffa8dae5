"""The archive's format: what is written is read back, by us and by others, and no bytes crash the reader."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviato.trees import tar
from aviato.trees.errors import SenderFailed, TreeError

NAME = st.binary(min_size=1, max_size=300).map(lambda name: name.replace(b"\0", b"x").replace(b"/", b"y"))
PATH = st.lists(NAME, min_size=1, max_size=3).map(b"/".join)
MODE, TIME, ID = st.integers(0, 0o7777), st.integers(0, 1 << 40), st.integers(0, (1 << 32) - 1)
MEMBERS = st.lists(
    st.one_of(
        st.tuples(
            st.builds(tar.Member, PATH, st.just(tar.DIRECTORY), MODE, st.just(0), TIME, st.just(b""), ID, ID), st.just(b"")
        ),
        st.tuples(st.builds(tar.Member, PATH, st.just(tar.LINK), MODE, st.just(0), TIME, PATH, ID, ID), st.just(b"")),
        st.tuples(
            st.builds(tar.Member, PATH, st.just(tar.FILE), MODE, st.just(0), TIME, st.just(b""), ID, ID),
            st.binary(max_size=2000),
        ),
    ),
    max_size=8,
)


def archive(members: list[tuple[tar.Member, bytes]]) -> bytes:
    parts = [
        tar.header(member._replace(size_bytes=len(content))) + content + tar.padding(len(content))
        for member, content in members
    ]
    return b"".join(parts) + tar.END


def read(data: bytes, chunk: int = 1 << 20, *, owners: bool = False) -> list[tuple[tar.Member, bytes]]:
    reader = tar.Reader(owners=owners)
    found: list[tuple[tar.Member, bytes]] = []
    for start in range(0, len(data), chunk):
        for item in reader.feed(data[start : start + chunk]):
            if isinstance(item, tar.Member):
                found.append((item, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + bytes(item))
    reader.finish()
    return found


@settings(deadline=None)
@given(MEMBERS, st.integers(1, 1500))
def test_what_is_written_is_read_however_the_chunks_fall(members: list[tuple[tar.Member, bytes]], chunk: int) -> None:
    # A slash at its end is how a directory is told from a file.
    expected = [
        (member._replace(size_bytes=len(content), name=member.name + b"/" * (member.kind == tar.DIRECTORY)), content)
        for member, content in members
    ]
    assert read(archive(members), chunk, owners=True) == expected
    assert read(archive(members), chunk) == [(member._replace(uid=0, gid=0), content) for member, content in expected]


@settings(deadline=None)
@given(MEMBERS)
def test_the_standard_library_reads_what_is_written(members: list[tuple[tar.Member, bytes]]) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive(members)), encoding="utf-8", errors="surrogateescape") as found:
        infos = found.getmembers()
        assert len(infos) == len(members)
        for info, (member, content) in zip(infos, members, strict=True):
            assert info.name.encode(errors="surrogateescape").rstrip(b"/") == member.name.rstrip(b"/")
            assert (info.mode, info.mtime, info.uid, info.gid) == (member.mode, member.mtime, member.uid, member.gid)
            if info.isfile():
                file = found.extractfile(info)
                assert file is not None
                assert file.read() == content
            elif info.issym():
                assert info.linkname.encode(errors="surrogateescape") == member.target


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_the_standard_library_writes_is_read(form: int) -> None:
    names = ["a", "d" * 90 + "/" + "e" * 90] + (["é" * 200, "x" * 300] if form != tarfile.USTAR_FORMAT else [])
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as written:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 3
            written.addfile(info, io.BytesIO(b"abc"))
    assert [(member.name.decode(), content) for member, content in read(target.getvalue())] == [
        (name, b"abc") for name in names
    ]


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=3000), st.integers(1, 600))
def test_random_bytes_are_refused_and_never_crash(data: bytes, chunk: int) -> None:
    try:
        read(data, chunk)
    except TreeError as error:
        assert error.reason == "hostile_archive"


@settings(deadline=None, max_examples=300)
@given(MEMBERS, st.data())
def test_a_changed_archive_is_refused_or_read_and_never_crashes(members: list[tuple[tar.Member, bytes]], data: Any) -> None:
    changed = bytearray(archive(members))
    for _ in range(data.draw(st.integers(1, 5))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    for start in range(0, len(changed), tar.BLOCK_BYTES):
        # With its sum put right, a block is looked at in earnest.
        block = changed[start : start + tar.BLOCK_BYTES]
        block[148:156] = b" " * 8
        changed[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    try:
        read(bytes(changed))
    except (TreeError, SenderFailed):
        pass


def test_extended_headers_of_any_announced_size_are_not_held() -> None:
    huge = tar._block(b"././@PaxHeader", b"x", 0o644, 1 << 40, 0, b"")
    with pytest.raises(TreeError, match="1099511627776"):
        read(huge + bytes(1 << 20))


def test_an_archive_has_an_end_and_only_one() -> None:
    whole = archive([(tar.Member(b"f", tar.FILE), b"x" * 1000)])
    for cut in (0, 100, 512, 1000, len(whole) - len(tar.END)):
        with pytest.raises(TreeError) as caught:
            read(whole[:cut])
        assert caught.value.reason == "hostile_archive"
    read(whole + bytes(10_240))
    for more in (b"\1", bytes(tar.LONGEST_END_BYTES + 1)):
        with pytest.raises(TreeError, match="after its end"):
            read(whole + more)


def test_the_senders_error_arrives() -> None:
    for size in (1, 90, 91, 92, 990, 5000):
        with pytest.raises(SenderFailed) as caught:
            read(tar.header(tar.Member(b"d", tar.DIRECTORY)) + tar.failure(b"{" * size))
        assert caught.value.body == b"{" * size
