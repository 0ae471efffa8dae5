"""Names and addresses of hosts in one canonical form, and what an item of an allow-list covers. Pure."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

MAX_NAME_CHARACTERS = 253
MAX_HOSTS = 256
"""In the allow-list of a sandbox."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_READ_IN_TWO_WAYS = frozenset("ßς\u200c\u200d")
"""The two versions of IDNA make different hosts of names with these."""


class Authority(NamedTuple):
    """A host, canonical, and the port that was named with it."""

    host: str
    port: int | None


class Pattern(NamedTuple):
    """An item of an allow-list: a host or, with `wildcard`, every name below it; at one port or at any."""

    host: str
    wildcard: bool
    port: int | None

    def covers(self, host: str, port: int) -> bool:
        """Whether it allows this host, canonical, at this port."""
        if self.port not in (None, port):
            return False
        return host.endswith("." + self.host) if self.wildcard else host == self.host


def canonical(text: str) -> str:
    """A host's name in lower-case ASCII without a dot at its end, or its address as the standard writes it.

    An IPv4 address that is mapped into IPv6 becomes the former. Of the many ways in which system libraries read numbers as
    addresses (`127.1`, `0x7f.1`, `2130706433`, `0177.0.0.1`) only the usual one is an address here, and the others are
    nothing: a name never ends in a number.

    Raises:
        ValueError: it is none; the message says why.
    """
    if len(text) > 4 * MAX_NAME_CHARACTERS:
        raise ValueError(f"is longer than {MAX_NAME_CHARACTERS} characters")
    if not text.isascii():
        text = _ascii(text)
    if ":" in text:
        return _sixth(text)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(name))
        except ValueError:
            raise ValueError("ends in a number and is no IPv4 address of four decimal numbers") from None
    if len(name) > MAX_NAME_CHARACTERS:
        raise ValueError(f"is longer than {MAX_NAME_CHARACTERS} characters")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("is no host name")
    return name


def _sixth(text: str) -> str:
    try:
        # With a zone (`%eth0`) it would be an address of one machine's own interface.
        address = IPv6Address("" if "%" in text else text)
    except ValueError:
        raise ValueError("is no IPv6 address") from None
    return str(address.ipv4_mapped or address)


def _ascii(text: str) -> str:
    if _READ_IN_TWO_WAYS & set(text):
        raise ValueError("can be read in two ways; write it in its xn-- form")
    try:
        return text.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise ValueError(f"is no host name ({error})") from None


def is_address(host: str) -> bool:
    """Whether a canonical host is an address and no name."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def authority(text: str) -> Authority:
    """Read `host`, `host:port`, `[address]` or `[address]:port`.

    Raises:
        ValueError: it is none of them; the message says why.
    """
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            raise ValueError("is no IPv6 address in brackets")
        separator, number = rest[:1], rest[1:]
    else:
        host, separator, number = text.partition(":")
    if not separator:
        return Authority(canonical(host), None)
    if not _PORT.fullmatch(number) or not 1 <= int(number) <= 65535:
        raise ValueError("has no port from 1 to 65535 behind its colon")
    return Authority(canonical(host), int(number))


def pattern(text: str) -> Pattern:
    """Read an item of an allow-list.

    Args:
        text: `example.org`, `*.example.org` (every name below it, and not itself) or an address, each with `:port` or not.

    Raises:
        ValueError: it is none; the message says why.
    """
    wildcard = text.startswith("*.")
    # A bare IPv6 address is plain enough in a list, where nothing stands behind it.
    if not wildcard and text.count(":") > 1 and not text.startswith("["):
        return Pattern(canonical(text), False, None)
    host, port = authority(text[2:] if wildcard else text)
    if wildcard and is_address(host):
        raise ValueError("has a wildcard before an address")
    return Pattern(host, wildcard, port)


def written(item: Pattern) -> str:
    """An item of an allow-list as text again, in its one form."""
    host = f"[{item.host}]" if ":" in item.host else item.host
    return ("*." if item.wildcard else "") + host + ("" if item.port is None else f":{item.port}")
