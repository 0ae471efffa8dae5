"""Whether an address is this machine's own. Nothing is sent to find out."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import IPv4Address, ip_address
from typing import TYPE_CHECKING

from aviato.server.egress.policy import plain

if TYPE_CHECKING:
    from aviato.server.egress.policy import Address


def is_own(address: Address) -> bool:
    """Whether connections to an address come back to this machine.

    Two questions, since neither answers for all: a second address of a network is left by the first one's, and where programs
    may bind to what is not the machine's, that they can says nothing.

    Raises:
        OSError: there are no descriptors left to find out.
    """
    address = plain(address)
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as probe, contextlib.suppress(OSError):
        probe.connect((str(address), 9))
        left_by = ip_address(probe.getsockname()[0])
        if left_by == address or left_by.is_loopback:
            return True
    if _binds_to_anything(family):
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _binds_to_anything(family: socket.AddressFamily) -> bool:
    path = f"/proc/sys/net/ipv{4 if family == socket.AF_INET else 6}/ip_nonlocal_bind"
    try:
        with open(path) as file:
            return file.read().strip() != "0"
    except OSError:
        return True
