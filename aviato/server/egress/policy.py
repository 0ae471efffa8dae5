"""What one sandbox may connect to: host names first, and again the addresses that they turn out to have. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Literal

from aviato.values import hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAIL_PORT = 25
"""What hostile code would send from there is laid to the account of the machine's address."""

_RESERVED_4 = tuple(
    (IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "private to a provider"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a metadata service"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
"""All that is given out of IPv6; everything else is the machine's, a link's, a site's, or nobody's."""
_RESERVED_6 = tuple(
    (IPv6Network(network), what)
    for network, what in (
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "reserved"),
        ("2002::/16", "a tunnel to an IPv4 address"),
        ("3fff::/20", "reserved"),
    )
)
_NAMED_6 = tuple(
    (IPv6Network(network), what)
    for network, what in (
        ("::/128", "this host"),
        ("::1/128", "loopback"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
    )
)
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""IPv4 addresses as networks that have only IPv6 reach them; the last four bytes are what is reached."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What one sandbox may connect to.

    Attributes:
        hosts: the allow-list; None is every host of the internet.
        allowed: networks of the operator's choice, whatever kind of addresses they are.
    """

    hosts: tuple[hosts.Pattern, ...] | None
    allowed: tuple[Network, ...] = ()

    def refuse_host(self, host: str, port: int) -> str | None:
        """Why this host, canonical, may not be asked for at this port; None if it may. Nothing was looked up so far."""
        if self.hosts is None:
            return "port 25 is closed" if port == MAIL_PORT else None
        covering = [item for item in self.hosts if item.covers(host, port)]
        if port == MAIL_PORT and covering and not any(item.port == port for item in covering):
            return "port 25 is closed where the allow-list does not name it"
        if covering:
            return None
        elsewhere = any(item._replace(port=None).covers(host, port) for item in self.hosts)
        return f"the allow-list of this sandbox does not have {host}" + (f" at port {port}" if elsewhere else "")

    def refuse_address(self, address: Address) -> str | None:
        """Why nobody may connect to this address; None if one may."""
        if self.names(address):
            return None
        kind = _kind(plain(address))
        return None if kind is None else f"{address} is {kind}"

    def names(self, address: Address) -> bool:
        """Whether the operator's networks hold an address."""
        address = plain(address)
        return any(address in network for network in self.allowed)

    def names_own(self, address: Address) -> bool:
        """Whether they hold it although it is the machine's: alone, or as part of its loopback.

        Who opens a private network in which the server stands too has not opened the server by that.
        """
        address = plain(address)
        return any(address in network and (network.num_addresses == 1 or network.is_loopback) for network in self.allowed)


def plain(address: Address) -> Address:
    """An IPv4 address that is mapped into IPv6 as what it is; any other unchanged."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def reached(address: Address) -> Address:
    """What is reached by an address: of an IPv4 address in an IPv6 one, the former."""
    address = plain(address)
    translated = isinstance(address, IPv6Address) and address in _TRANSLATED
    return IPv4Address(int(address) & 0xFFFF_FFFF) if translated else address


def _kind(address: Address) -> str | None:
    """What kind of address it is, if nobody may connect to that."""
    if isinstance(address, IPv4Address):
        return next((what for network, what in _RESERVED_4 if address in network), None)
    if address in _TRANSLATED:
        return _kind(reached(address))
    if address not in _PUBLIC_6:
        return next((what for network, what in _NAMED_6 if address in network), "reserved")
    return next((what for network, what in _RESERVED_6 if address in network), None)


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """The operator's networks.

    Raises:
        ValueError: one of them is none; it is named.
    """
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as error:
            raise ValueError(f"{text!r} is no network such as 10.0.0.0/8: {error}") from None
    return tuple(found)


def make_policy(mode: Literal["internet"] | Sequence[str], allowed: tuple[Network, ...]) -> Policy:
    """The policy of an egress mode other than `none`.

    Raises:
        ValueError: an item of the allow-list is no host.
    """
    listed = None if isinstance(mode, str) else tuple(hosts.pattern(item) for item in mode)
    return Policy(hosts=listed, allowed=allowed)


__all__ = ["Address", "Network", "Policy", "ip_address", "make_policy", "networks", "plain", "reached"]
