"""Which hosts and which addresses a sandbox may connect to."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato.server.egress.policy import Policy, make_policy, networks

INTERNET = Policy(hosts=None)


@pytest.mark.parametrize(
    "address",
    [
        # IPv4: this host, private, provider's, loopback, link-local with its metadata services, reserved, multicast, broadcast.
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
        "169.254.169.254", "169.254.170.2", "169.254.0.23", "168.63.129.16", "172.16.0.1", "172.31.255.255", "192.0.0.192",
        "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1",
        "240.0.0.1", "255.255.255.255",
        # IPv6: the same kinds, the metadata service of EC2, and what carries an IPv4 address.
        "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "fe80::1", "fec0::1",
        "fc00::1", "fd00:ec2::254", "fd20:ce::254", "ff02::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1",
        "2001::7f00:1", "2001:10::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1", "100::1",
        "4000::1", "5f00::1",
    ],
)  # fmt: skip
def test_addresses_that_are_refused(address):
    refusal = INTERNET.refuse_address(ip_address(address))
    assert refusal is not None and " is " in refusal


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1",
        "168.63.129.15", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0",
        "198.17.255.255", "198.20.0.0", "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::808:808", "2606:4700::1111",
        "2001:4860::1",
        "2a00::1",
    ],
)  # fmt: skip
def test_addresses_that_are_public(address):
    assert INTERNET.refuse_address(ip_address(address)) is None


@given(st.ip_addresses())
def test_what_python_calls_private_is_never_public_here(address):
    if INTERNET.refuse_address(address) is None:
        inner = address.ipv4_mapped if isinstance(address, IPv6Address) and address.ipv4_mapped else address
        if isinstance(inner, IPv6Address) and inner in IPv6AddressRange:
            inner = IPv4Address(int(inner) & 0xFFFF_FFFF)
        assert not (inner.is_private or inner.is_loopback or inner.is_link_local or inner.is_multicast or inner.is_unspecified)


class _Translated:
    def __contains__(self, address):
        return int(address) >> 32 == 0x64FF9B << 64


IPv6AddressRange = _Translated()


@given(st.ip_addresses(v=4))
def test_an_address_in_disguise_is_what_it_is(address):
    plainly = INTERNET.refuse_address(address) is None
    for disguise in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert (INTERNET.refuse_address(ip_address(disguise)) is None) == plainly


def test_the_operators_networks():
    policy = make_policy("internet", networks(["10.1.0.0/16", "fd00::/8"]))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        assert policy.refuse_address(ip_address(address)) is None and policy.names(ip_address(address))
    for address in ("10.2.0.1", "127.0.0.1", "fe80::1"):
        assert policy.refuse_address(ip_address(address)) is not None
    for wrong in ("10.0.0.1/8", "all", "", "10.0.0.0/33"):
        with pytest.raises(ValueError, match="is no network"):
            networks([wrong])


def test_hosts():
    listed = make_policy(["a.org", "*.b.org:443", "mail.org:25"], ())
    for host, port in (("a.org", 80), ("a.org", 8443), ("x.b.org", 443), ("mail.org", 25)):
        assert listed.refuse_host(host, port) is None
    assert "does not have c.org" in listed.refuse_host("c.org", 80)
    assert "at port 80" in listed.refuse_host("x.b.org", 80)
    assert "does not have 10.0.0.1" in listed.refuse_host("10.0.0.1", 80)
    assert "port 25" in listed.refuse_host("a.org", 25)
    assert INTERNET.refuse_host("anything.example", 443) is None and "port 25" in INTERNET.refuse_host("a.org", 25)
