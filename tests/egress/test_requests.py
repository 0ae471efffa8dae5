"""Heads of requests and answers: what is passed on is written anew, and what is unclear is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato.server.egress.bodies import Chunks
from aviato.server.egress.requests import Malformed, chunk_size, parse_answer, parse_request


def head(*lines):
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def test_a_request_is_passed_on_to_the_host_that_it_names():
    request = parse_request(
        head(
            "POST http://Example.ORG.:80/a?b=c#d HTTP/1.1", "Host: evil.example", "Accept: */*",
            "Connection: x-own, Keep-Alive, host",
            "X-Own: 1", "Proxy-Authorization: Basic eA==", "Proxy-Connection: keep-alive", "Upgrade: h2c", "TE: trailers",
            "Content-Length: 5",
        )
    )  # fmt: skip
    assert (request.method, request.host, request.port, request.body) == ("POST", "example.org", 80, 5)
    assert request.head == head(
        "POST /a?b=c HTTP/1.1", "Host: example.org", "accept: */*", "content-length: 5", "Connection: close"
    )


@pytest.mark.parametrize(
    ("target", "line", "host"),
    [
        ("http://a.org", "GET / HTTP/1.1", "a.org"), ("HTTP://a.org?x", "GET /?x HTTP/1.1", "a.org"),
        ("http://a.org:8080/x", "GET /x HTTP/1.1", "a.org:8080"), ("http://[::1]:81/", "GET / HTTP/1.1", "[::1]:81"),
        ("http://[::ffff:127.0.0.1]/", "GET / HTTP/1.1", "127.0.0.1"), ("http://a.org//b/@c", "GET //b/@c HTTP/1.1", "a.org"),
    ],
)  # fmt: skip
def test_targets(target, line, host):
    assert parse_request(head(f"GET {target} HTTP/1.1")).head == head(line, f"Host: {host}", "Connection: close")


def test_connect():
    request = parse_request(head("CONNECT [2606::1]:443 HTTP/1.1", "Host: other:1"))
    assert (request.method, request.host, request.port, request.head) == ("CONNECT", "2606::1", 443, b"")


@pytest.mark.parametrize(
    "lines",
    [
        ["GET / HTTP/1.1", "Host: a.org"], ["GET http://a.org/ HTTP/2"], ["GET http://a.org/"], ["GET  http://a.org/ HTTP/1.1"],
        ["G\tT http://a.org/ HTTP/1.1"], ["GET http://a.org/ x HTTP/1.1"], ["GET http://u:p@a.org/ HTTP/1.1"],
        ["GET http://é/ HTTP/1.1"],
        ["GET https://a.org/ HTTP/1.1"], ["GET file:///etc/passwd HTTP/1.1"], ["GET http:/// HTTP/1.1"],
        ["GET http://a.org:0/ HTTP/1.1"],
        ["GET http://a.org\\@b.org/ HTTP/1.1"], ["GET http://a%2eorg/ HTTP/1.1"], ["GET http://2130706433/ HTTP/1.1"],
        ["CONNECT a.org HTTP/1.1"], ["CONNECT http://a.org:443 HTTP/1.1"], ["CONNECT u@a.org:443 HTTP/1.1"],
        ["CONNECT a.org:443/ HTTP/1.1"],
        ["CONNECT 0x7f.1:443 HTTP/1.1"], ["CONNECT [fe80::1%25lo]:443 HTTP/1.1"],
        *(
            ["POST http://a.org/ HTTP/1.1", *fields]
            for fields in (
                ["Host: a.org", "Host: a.org"], ["Content-Length: 1", "Content-Length: 1"], ["Content-Length: 1, 1"],
                ["Content-Length: +1"], ["Content-Length: 0x1"], ["Content-Length:"], ["Content-Length: -1"],
                ["Content-Length: ¹"],
                ["Content-Length: 1", "Transfer-Encoding: chunked"],
                ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
                ["Transfer-Encoding: gzip, chunked"], ["Transfer-Encoding: xchunked"], ["Transfer-Encoding : chunked"],
                ["Transfer-Encoding:\x0bchunked"], [" Transfer-Encoding: chunked"], ["A: b", " c"], ["A"], [": b"], ["A b: c"],
                ["A: b\rTransfer-Encoding: chunked"], ["A: b\nTransfer-Encoding: chunked"], ["A: b\0"],
                [f"A{n}: b" for n in range(129)],
            )
        ),
        ["POST http://a.org/ HTTP/1.0", "Transfer-Encoding: chunked"],
    ],
)  # fmt: skip
def test_what_is_refused(lines):
    with pytest.raises(Malformed):
        parse_request(head(*lines))


def test_an_answer_ends_its_connection():
    given_head = head("HTTP/1.1 200 OK", "Connection: keep-alive, x-a", "X-A: 1", "Keep-Alive: 5", "Content-Length: 3")
    assert parse_answer(given_head, "GET") == (200, head("HTTP/1.1 200 OK", "content-length: 3", "Connection: close"), False, 3)
    assert parse_answer(head("HTTP/1.0 404"), "GET") == (404, head("HTTP/1.1 404 ", "Connection: close"), False, None)
    assert parse_answer(head("HTTP/1.1 100 Continue"), "PUT") == (100, head("HTTP/1.1 100 Continue"), True, 0)
    assert parse_answer(given_head, "HEAD").length == 0
    assert parse_answer(head("HTTP/1.1 304 x", "Content-Length: 3"), "GET").length == 0
    with pytest.raises(Malformed):
        parse_answer(head("HTTP/1.1 200 OK", "Content-Length: 3", "Transfer-Encoding: chunked"), "GET")
    for wrong in ("HTTP/1.1 101 Switching Protocols", "HTTP/2 200", "ICY 200 OK", "HTTP/1.1 999 x", "", "200 OK"):
        with pytest.raises(Malformed):
            parse_answer(head(wrong), "GET")


@given(st.binary(max_size=200), st.sampled_from([b"", b"GET http://a.org/ HTTP/1.1\r\n", b"CONNECT ", b"HTTP/1.1 200 OK\r\n"]))
def test_no_head_does_anything_but_be_read_or_refused(data, before):
    for parse in (parse_request, lambda head: parse_answer(head, "GET")):
        try:
            read = parse(before + data + b"\r\n\r\n")
        except Malformed:
            continue
        # What goes on holds one head, and nothing in it that ends it early.
        assert b"\0" not in read.head and read.head.count(b"\r\n\r\n") == (1 if read.head else 0)
        assert b"\n" not in read.head.replace(b"\r\n", b"") and b"\r" not in read.head.replace(b"\r\n", b"")


def test_chunk_sizes():
    assert [chunk_size(line) for line in (b"0\r\n", b"1F\r\n", b"a;x=y\r\n", b"a \r\n")] == [0, 31, 10, 10]
    for wrong in (
        b"\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b" 1\r\n",
        b"1_0\r\n",
        b"g\r\n",
        b"f" * 16 + b"\r\n",
        b"1\n1\r\n",
        b"",
        b"1;\rx\r\n",
    ):
        with pytest.raises(Malformed):
            chunk_size(wrong)


@given(st.lists(st.binary(min_size=1, max_size=40)), st.binary(max_size=9), st.lists(st.integers(1, 30)), st.booleans())
def test_chunks_say_the_same_however_they_come(parts, rest, cuts, trailer):
    data = b"".join(b"%X;a=b\r\n%b\r\n" % (len(part), part) for part in parts)
    data += b"0\r\n" + (b"A: b\r\n" if trailer else b"") + b"\r\n" + rest
    chunks, got, at = Chunks(), b"", 0
    for cut in [*cuts, len(data)]:
        if not chunks.over:
            got += chunks.feed(data[at : at + cut])
            at += cut
    assert chunks.over and got == b"".join(parts) and chunks.read == len(parts) + 1
    assert chunks.rest() + data[at:] == rest


@pytest.mark.parametrize(
    "data", [b"1\r\nab\r\n", b"1\r\na\n0\r\n\r\n", b"1" * 5000, b"0\r\n" + b"a" * 5000, b"0\r\n" + b"a: b\r\n" * 65, b"x\r\n"]
)
def test_no_chunks(data):
    with pytest.raises(Malformed):
        Chunks().feed(data)
    with pytest.raises(Malformed):
        chunks = Chunks()
        for byte in data:
            chunks.feed(bytes([byte]))
