"""The tar format: headers out, and a reader that believes nothing. Pure, standard library only.

Written is GNU's form, since it takes names of any bytes and length. Read are also ustar and pax, so what common programs write
is understood. `tarfile` is not used: it reads by blocking calls, and holds extended headers of any announced size in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aviato.trees.errors import SenderFailed, TreeError, hostile

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES = 512
LONGEST_NAME_BYTES = 4095
LARGEST_EXTENSION_BYTES = 64 << 10
LONGEST_END_BYTES = 1 << 20
"""Programs fill up what follows the last member with zeros; more than this is an endless stream."""

FILE, HARD_LINK, LINK, DIRECTORY, OTHER = b"0", b"1", b"2", b"5", b"6"
_KINDS = {b"\0": FILE, b"0": FILE, b"7": FILE, b"1": HARD_LINK, b"2": LINK, b"5": DIRECTORY} | dict.fromkeys(
    (b"3", b"4", b"6"), OTHER
)
_LONG_NAME, _LONG_TARGET, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"
_EXTENSIONS = (_LONG_NAME, _LONG_TARGET, _PAX, _PAX_GLOBAL)
_FAILURE = b"AVIATO.error"

END = bytes(2 * BLOCK_BYTES)


class Member(NamedTuple):
    """One entry of a tree.

    Attributes:
        name: below the top, without a slash at its end; `.` is the top.
        kind: FILE, LINK, DIRECTORY, or when read also HARD_LINK and OTHER (a FIFO or a device).
        mode: permission bits.
        size_bytes: of what follows it; 0 unless it is a file.
        mtime: in whole seconds.
        target: of a link.
        uid, gid: whose it is; read where owners are.
    """

    name: bytes
    kind: bytes
    mode: int = 0o644
    size_bytes: int = 0
    mtime: int = 0
    target: bytes = b""
    uid: int = 0
    gid: int = 0


def padding(size: int) -> bytes:
    """What follows contents of this size."""
    return bytes(-size % BLOCK_BYTES)


def header(member: Member) -> bytes:
    """The blocks that announce a member."""
    name = member.name + b"/" if member.kind == DIRECTORY else member.name
    blocks = b""
    if len(member.target) > 100:
        blocks += _extension(_LONG_TARGET, member.target + b"\0")
    if len(name) > 100:
        blocks += _extension(_LONG_NAME, name + b"\0")
    owner = (member.uid, member.gid)
    return blocks + _block(name, member.kind, member.mode, member.size_bytes, member.mtime, member.target, owner)


def failure(body: bytes) -> bytes:
    """What a sender that cannot go on writes in place of the rest."""
    content = b" " + _FAILURE + b"=" + body + b"\n"
    length = len(content) + 1
    while len(str(length)) + len(content) != length:
        length = len(str(length)) + len(content)
    return _extension(_PAX_GLOBAL, str(length).encode() + content)


def _extension(kind: bytes, content: bytes) -> bytes:
    return _block(b"././@LongLink", kind, 0o644, len(content), 0, b"") + content + padding(len(content))


def _block(name: bytes, kind: bytes, mode: int, size: int, mtime: int, target: bytes, owner: tuple[int, int] = (0, 0)) -> bytes:
    fields = (
        name[:100].ljust(100, b"\0"),
        _octal(mode & 0o7777, 8) + _octal(owner[0], 8) + _octal(owner[1], 8),
        _octal(size, 12) + _octal(max(0, mtime), 12),
        b" " * 8 + kind,
        target[:100].ljust(100, b"\0"),
        b"ustar  \0".ljust(255, b"\0"),
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _octal(value: int, width: int) -> bytes:
    if value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    return b"\x80" + value.to_bytes(width - 1, "big")


class Reader:
    """Cuts a stream into members and their contents, however its chunks fall."""

    def __init__(self, *, owners: bool = False) -> None:
        self.ended = False
        self._owners = owners
        self._last = b""
        self._content = 0
        self._fill = 0
        self._wanted = BLOCK_BYTES
        self._held = bytearray()
        self._extension: tuple[bytes, int] | None = None
        self._long: dict[bytes, bytes] = {}
        self._after_end = 0

    def feed(self, data: bytes) -> Iterator[Member | memoryview]:
        """Members, each file's followed by its contents in pieces that may be views of `data`.

        Raises:
            TreeError: this is no archive, or one that lies.
            SenderFailed: it ends with a sender's error.
        """
        view = memoryview(data)
        while view:
            if self._content:
                piece = view[: self._content]
                view = view[len(piece) :]
                self._content -= len(piece)
                yield piece
            elif self._fill:
                skipped = min(self._fill, len(view))
                view = view[skipped:]
                self._fill -= skipped
            elif self.ended:
                self._after_end += len(view)
                if self._after_end > LONGEST_END_BYTES or any(view):
                    raise hostile(b"", "the archive goes on after its end")
                return
            else:
                part = view[: self._wanted - len(self._held)]
                view = view[len(part) :]
                self._held += part
                if len(self._held) == self._wanted:
                    block, self._held = bytes(self._held), bytearray()
                    member = self._read(block)
                    if member is not None:
                        yield member

    def finish(self) -> None:
        """No more bytes come.

        Raises:
            TreeError: the end is missing.
        """
        if not self.ended:
            raise hostile(self._last, "is the last member of an archive that is cut off" if self._last else "no archive")

    @property
    def content_left(self) -> int:
        """How much of the last member's contents is still to come."""
        return self._content

    def _read(self, block: bytes) -> Member | None:
        if self._extension is not None:
            (kind, size), self._extension, self._wanted = self._extension, None, BLOCK_BYTES
            self._extend(kind, block[:size])
            return None
        if not any(block):
            self.ended = True
            return None
        if _number(block[148:156], self._last) != sum(block) - sum(block[148:156]) + 8 * 32:
            raise hostile(self._last, "is followed by something that is no header of tar")
        size = _number(block[124:136], self._last)
        kind = block[156:157]
        if kind in _EXTENSIONS:
            if not 0 < size <= LARGEST_EXTENSION_BYTES:
                raise hostile(self._last, f"is followed by a name of {size} bytes")
            self._extension, self._wanted = (kind, size), size + -size % BLOCK_BYTES
            return None
        return self._member(block, kind, size)

    def _member(self, block: bytes, flag: bytes, size: int) -> Member:
        name, target = _text(block[:100]), _text(block[157:257])
        if block[257:263] == b"ustar\0" and block[345]:
            name = _text(block[345:500]) + b"/" + name
        extended, self._long = self._long, {}
        name = extended.get(b"path", name)
        target = extended.get(b"linkpath", target)
        mtime = _number(block[136:148], name)
        try:
            size = int(extended.get(b"size", size))
            mtime = int(float(extended.get(b"mtime", mtime)))
        except (ValueError, OverflowError):
            raise hostile(name, "has a size or time that is no number") from None
        kind = _KINDS.get(flag)
        if flag in (b"0", b"\0") and name.endswith(b"/"):
            kind = DIRECTORY  # As before POSIX.
        if kind is None:
            raise hostile(name, f"is of a kind that is not known ({flag!r})")
        if not 0 <= size < 1 << 63 or (size and kind != FILE):
            raise hostile(name, f"announces {size} bytes")
        if max(len(name), len(target)) > LONGEST_NAME_BYTES:
            raise hostile(name, f"has a name or target of more than {LONGEST_NAME_BYTES} bytes")
        self._last, self._content, self._fill = name, size, -size % BLOCK_BYTES
        uid, gid = (_number(block[108:116], name), _number(block[116:124], name)) if self._owners else (0, 0)
        mode = _number(block[100:108], name) & 0o7777
        return Member(name, kind, mode, size, min(max(0, mtime), 1 << 40), target, uid, gid)

    def _extend(self, kind: bytes, content: bytes) -> None:
        if kind == _LONG_NAME:
            self._long[b"path"] = _text(content)
        elif kind == _LONG_TARGET:
            self._long[b"linkpath"] = _text(content)
        else:
            records = dict(_records(content, self._last))
            if _FAILURE in records:
                raise SenderFailed(records[_FAILURE])
            if kind == _PAX:
                if any(key.startswith(b"GNU.sparse") for key in records):
                    raise TreeError(self._last, "hostile_archive", "is followed by a file with holes, a form that is not read")
                self._long.update(records)


def _records(content: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position < len(content):
        length, space, _ = content[position : position + 8].partition(b" ")
        if not space or not length.isdigit() or not (stop := position + int(length)) <= len(content):
            raise hostile(last, "is followed by an extended header that cannot be read")
        key, equals, value = content[position + len(length) + 1 : stop].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise hostile(last, "is followed by an extended header that cannot be read")
        yield key, value[:-1]
        position = stop


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, name: bytes) -> int:
    if field[0] & 0x80:
        # GNU's binary form; a negative one is no size, and no time that anybody needs.
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise hostile(name, "has a header with something that is no number") from None
