"""One form for each host, and none for what two programs could read in two ways."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato import AviatoValidationError, NetworkOptions
from aviato.values import hosts


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Example.ORG", "example.org"), ("example.org.", "example.org"), ("a_b-c.d", "a_b-c.d"), ("localhost", "localhost"),
        ("bücher.example", "xn--bcher-kva.example"), ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("ＥＸＡＭＰＬＥ。org", "example.org"), ("１２７.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"), ("::1", "::1"), ("0:0::1", "::1"), ("2001:DB8::A", "2001:db8::a"),
        ("::ffff:10.0.0.1", "10.0.0.1"), ("::FFFF:0a00:0001", "10.0.0.1"),
    ],
)  # fmt: skip
def test_one_form(text, host):
    assert hosts.canonical(text) == host == hosts.canonical(host)


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a..b", "example.org..", ".example.org", "-a.org", "a-.org", "a b", "a/b", "a@b", "a%2eb",
        "a\0b", "a\r\nb", "*",
        "127.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.01", "1.2.3.4.5", "256.0.0.1",
        "example.1", "a.0x",
        "fe80::1%eth0", "fe80::1%25lo", "1::2::3", "::ffff:1.2.3", "faß.de", "a\u200db.org", "x" * 64, ".".join(["x" * 60] * 5),
        "a" * 5000, "é" * 900, "\udcff.org",
    ],
)  # fmt: skip
def test_no_form(text):
    with pytest.raises(ValueError):
        hosts.canonical(text)


@given(st.text(max_size=40) | st.text("0123456789abcdefx.:-[]%@", max_size=40))
def test_a_form_is_its_own_form_and_no_resolver_reads_another_address_in_it(text):
    try:
        host = hosts.canonical(text)
    except ValueError:
        return
    assert hosts.canonical(host) == host and host.isascii() and host == host.lower()
    assert not set(host) & set(" /@%#?\\*\r\n\0")
    try:
        packed = socket.inet_aton(host)
    except OSError:
        assert not (hosts.is_address(host) and ":" not in host)
    else:
        assert hosts.is_address(host) and str(IPv4Address(packed)) == host


@given(st.ip_addresses())
def test_every_address_has_a_form(address):
    host = hosts.canonical(str(address))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    assert host == str(mapped or address) and hosts.is_address(host)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a.org", ("a.org", None)), ("a.org:443", ("a.org", 443)), ("[::1]", ("::1", None)), ("[::1]:80", ("::1", 80)),
        ("[::ffff:1.2.3.4]:80", ("1.2.3.4", 80)), ("A.org.:080", ("a.org", 80)),
    ],
)  # fmt: skip
def test_authorities(text, read):
    assert tuple(hosts.authority(text)) == read


@pytest.mark.parametrize(
    "text",
    [
        "a.org:", "a.org:0", "a.org:65536", "a.org:443:80", "a.org:+1", "a.org: 1", "a.org:１", "[::1", "[::1]x",
        "[::1]:", "[a.org]",
        "[1.2.3.4]", "::1", "::1:80", "u@a.org", "a.org:99999999999999999999", "", ":80",
    ],
)  # fmt: skip
def test_no_authorities(text):
    with pytest.raises(ValueError):
        hosts.authority(text)


@pytest.mark.parametrize(
    ("item", "host", "port", "covered"),
    [
        ("a.org", "a.org", 443, True), ("a.org", "b.a.org", 443, False), ("a.org", "xa.org", 443, False),
        ("A.org.", "a.org", 1, True),
        ("*.a.org", "b.a.org", 443, True), ("*.a.org", "c.b.a.org", 443, True), ("*.a.org", "a.org", 443, False),
        ("*.a.org", "xa.org", 443, False), ("*.a.org:443", "b.a.org", 443, True), ("*.a.org:443", "b.a.org", 80, False),
        ("a.org:80", "a.org", 443, False), ("10.0.0.1", "10.0.0.1", 80, True), ("::1", "::1", 80, True),
        ("[::1]:80", "::1", 81, False),
        ("::ffff:10.0.0.1", "10.0.0.1", 80, True),
    ],
)  # fmt: skip
def test_what_an_item_covers(item, host, port, covered):
    pattern = hosts.pattern(item)
    assert pattern.covers(host, port) is covered
    assert hosts.pattern(hosts.written(pattern)) == pattern


@pytest.mark.parametrize(
    "item", ["*", "*.", "*.*", "a.*.org", "*a.org", "**.a.org", "*.10.0.0.1", "*.::1", "http://a.org", "a.org/x", " a.org"]
)
def test_no_items(item):
    with pytest.raises(ValueError):
        hosts.pattern(item)
    with pytest.raises(AviatoValidationError, match="egress_mode"):
        NetworkOptions(egress_mode=[item])


def test_options_hold_one_form():
    options = NetworkOptions(egress_mode=["Example.org.", "example.org", "*.Bücher.example:443", "::1"])
    assert options.egress_mode == ("example.org", "*.xn--bcher-kva.example:443", "[::1]")
    assert hash(options) == hash(NetworkOptions(egress_mode=options.egress_mode))
    for wrong in ([], [f"h{n}.org" for n in range(257)]):
        with pytest.raises(AviatoValidationError, match="egress_mode"):
            NetworkOptions(egress_mode=wrong)
    for wrong in (b"a.org", [1], {"a.org"}, 5):
        with pytest.raises(TypeError, match="egress_mode"):
            NetworkOptions(egress_mode=wrong)
