"""Requests to the proxy and the heads of answers, read strictly: what two programs could read in two ways is refused. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from aviato.values import hosts

MAX_HEAD_BYTES = 32 << 10
MAX_FIELDS = 128
END = b"\r\n\r\n"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,18}")
MAX_METHOD_CHARACTERS = 64
_TARGET = re.compile(r"[!-~]+")
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9]{2})(?: (.*))?")
_CONNECTION = frozenset({"connection", "proxy-connection", "keep-alive", "proxy-authorization", "te", "trailer", "upgrade"})
"""Fields between a client and its proxy, which go no further."""

Fields = list[tuple[str, str]]


class Malformed(Exception):
    """A head that is refused; the text says why, and `status` is the answer to it."""

    def __init__(self, why: str, status: str = "400 Bad Request") -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client of the proxy wants.

    Attributes:
        method: `CONNECT`, or that of the request to pass on.
        host: canonical; what the request line says, whatever a Host field does.
        port: where.
        head: to be sent to the host; empty for CONNECT.
        body: how many bytes follow, or that they come in chunks.
    """

    method: str
    host: str
    port: int
    head: bytes = b""
    body: int | Literal["chunked"] = 0


class Answer(NamedTuple):
    """The head of an answer.

    Attributes:
        status: its number.
        head: to be sent to the client, which is told that the connection ends with this answer.
        interim: whether another one follows.
        length: how many bytes follow; None: until the host closes the connection, or the client does.
    """

    status: int
    head: bytes
    interim: bool
    length: int | None


def parse_request(head: bytes) -> Request:
    """Read the head of a request, up to and with its empty line.

    Raises:
        Malformed: it is not one, or one that cannot be passed on.
    """
    line, fields = _split(head)
    method, _, rest = line.partition(" ")
    target, _, version = rest.partition(" ")
    if (
        len(method) > MAX_METHOD_CHARACTERS
        or not _TOKEN.fullmatch(method)
        or not _TARGET.fullmatch(target)
        or not re.fullmatch(r"HTTP/1\.[01]", version)
    ):
        raise Malformed("there is no HTTP/1 request line")
    if sum(name == "host" for name, _ in fields) > 1:
        raise Malformed("there is more than one Host")
    if method == "CONNECT":
        authority = _authority(target)
        if authority.port is None:
            raise Malformed("CONNECT needs host:port")
        return Request(method=method, host=authority.host, port=authority.port)
    scheme, separator, rest = target.partition("://")
    if not separator:
        raise Malformed("the request line needs http://host/path, or CONNECT")
    if scheme.lower() != "http":
        raise Malformed(f"{scheme}: goes through CONNECT", "501 Not Implemented")
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    authority, path = _authority(rest[:end]), rest[end:].partition("#")[0]
    if not path.startswith("/"):
        path = ("*" if method == "OPTIONS" and not path else "/") + path
    body = _body(fields, version)
    dropped = _CONNECTION | _named(fields) | {"host"}
    # Whatever Host a client sends, the one that was checked is the one that is asked.
    checked = hosts.written(hosts.Pattern(authority.host, False, None if authority.port == 80 else authority.port))
    kept = [("Host", checked), *((name, value) for name, value in fields if name not in dropped)]
    sent = _join(f"{method} {path} {version}", [*kept, ("Connection", "close")])
    return Request(method=method, host=authority.host, port=authority.port or 80, head=sent, body=body)


def parse_answer(head: bytes, method: str) -> Answer:
    """Read the head of an answer.

    Args:
        head: up to and with its empty line.
        method: of the request.

    Raises:
        Malformed: it is none.
    """
    line, fields = _split(head)
    found = _STATUS.fullmatch(line)
    if found is None:
        raise Malformed("it is no HTTP/1")
    status = int(found[2])
    if status == 101:
        raise Malformed("it changes to another protocol, which nobody asked for")
    length, interim = _length(fields), status < 200
    if length is not None and any(name == "transfer-encoding" for name, _ in fields):
        raise Malformed("there are a Content-Length and a Transfer-Encoding")
    if interim or method == "HEAD" or status in (204, 304):
        length = 0
    dropped = (_CONNECTION - {"trailer"}) | _named(fields) | {"proxy-authenticate"}
    kept = [(name, value) for name, value in fields if name not in dropped]
    kept += [] if interim else [("Connection", "close")]
    return Answer(status, _join(f"HTTP/1.1 {status} {found[3] or ''}", kept), interim, length)


def _split(head: bytes) -> tuple[str, Fields]:
    """The first line and the fields, names in lower case."""
    lines = head.removesuffix(END).decode("latin-1").split("\r\n")
    if len(lines) - 1 > MAX_FIELDS:
        raise Malformed(f"there are more than {MAX_FIELDS} fields", "431 Request Header Fields Too Large")
    if any(character in line for line in lines for character in "\r\n\0"):
        raise Malformed("a line ends in something else than CR LF, or holds NUL")
    fields = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        # A line that begins with a space went on with the one before, once; some still read it so.
        if not colon or not _TOKEN.fullmatch(name):
            raise Malformed("there is a field that is none")
        fields.append((name.lower(), value.strip(" \t")))
    return lines[0], fields


def _join(line: str, fields: Fields) -> bytes:
    return "\r\n".join([line, *(f"{name}: {value}" for name, value in fields), "", ""]).encode("latin-1")


def _named(fields: Fields) -> frozenset[str]:
    """Fields that a Connection field names as meant for this connection alone; never those that frame a message."""
    names = {part.strip().lower() for name, value in fields if name == "connection" for part in value.split(",")}
    return frozenset(names) - {"content-length", "transfer-encoding", "host"}


def _authority(text: str) -> hosts.Authority:
    if "@" in text:
        raise Malformed("a user in front of the host is not passed on; use an Authorization field")
    try:
        return hosts.authority(text)
    except ValueError as error:
        raise Malformed(f"the host {text[:300]!r} {error}") from None


def _body(fields: Fields, version: str) -> int | Literal["chunked"]:
    """How much follows the head of a request."""
    codings = [value.lower() for name, value in fields if name == "transfer-encoding"]
    length = _length(fields)
    if not codings:
        return length or 0
    if length is not None:
        raise Malformed("there are a Content-Length and a Transfer-Encoding")
    if codings != ["chunked"] or version == "HTTP/1.0":
        raise Malformed("the one Transfer-Encoding that a request can have is chunked", "501 Not Implemented")
    return "chunked"


def _length(fields: Fields) -> int | None:
    lengths = [value for name, value in fields if name == "content-length"]
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise Malformed("the Content-Length is no number, or there is more than one")
    return int(lengths[0])


def chunk_size(line: bytes) -> int:
    """The size that the first line of a chunk says, extensions left out; 0 is the last one.

    Raises:
        Malformed: it says none.
    """
    digits = line.removesuffix(b"\r\n").partition(b";")[0].rstrip(b" \t")
    if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", digits) or any(byte in line[:-2] for byte in b"\r\n"):
        raise Malformed("there is a chunk without a size")
    return int(digits, 16)
