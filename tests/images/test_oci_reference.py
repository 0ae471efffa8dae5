"""References: Docker's grammar as a table, and what holds for any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato.defaults import reference_from_here
from aviato.exceptions import SandboxImageError
from aviato.server.images.oci_reference import OciReference, id_prefix, is_digest, parse_oci_reference
from aviato.server.images.reference import parse

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("some/image", "docker.io/some/image:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/library/busybox", "docker.io/library/busybox:latest"),
        ("localhost/image", "localhost/image:latest"),
        ("localhost:5000/image", "localhost:5000/image:latest"),
        ("localhost:5000", "docker.io/library/localhost:5000"),
        ("127.0.0.1:5000/a/b:t", "127.0.0.1:5000/a/b:t"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
        ("Registry.Example/a", "registry.example/a:latest"),
        ("a.example/b/c/d:V1.0_x-y", "a.example/b/c/d:V1.0_x-y"),
        ("a__b/c-d.e_f---g", "docker.io/a__b/c-d.e_f---g:latest"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
        (f"busybox:1@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
        ("oci:/a/b", "oci:/a/b"),
        ("oci:/a/b:v1", "oci:/a/b:v1"),
        ("oci:a", "oci:a"),
        ("docker-archive:/a.tar", "docker-archive:/a.tar"),
        ("docker-archive:/a.tar:docker.io/library/busybox:1", "docker-archive:/a.tar:docker.io/library/busybox:1"),
    ],
)
def test_what_is_meant(text, name):
    parsed = parse_oci_reference(text)
    assert parsed.name == name
    assert parse_oci_reference(name).name == name
    assert parse(text).kind == "other"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" busybox", "spaces"),
        ("https://a.example/b", "scheme"),
        ("Busybox", "lower case: 'busybox'"),
        ("Host/a", "lower case: 'host/a'"),
        ("a.example/Bus", "lower case: 'bus'"),
        ("a//b", "empty"),
        ("a/", "empty"),
        ("/a", "empty"),
        ("-a", "'-a' is no part of a name"),
        ("a..b", "'a..b' is no part"),
        ("a___b", "'a___b' is no part"),
        ("a/../b", "'..' is no part"),
        ("a b", "no part of a name"),
        ("a\n", "spaces"),
        ("a:", "tag"),
        ("a:-x", "tag"),
        ("a:" + "x" * 129, "tag"),
        ("a@sha256:123", "no digest"),
        (f"a@sha256:{DIGEST[7:].upper()}", "no digest"),
        (f"a@sha512:{'0' * 128}", "only digests by sha256"),
        ("a@", "no digest"),
        ("0" * 64, "image id"),
        (DIGEST, "image id"),
        (DIGEST[:20], "image id"),
        ("a" * 256, "longer than 255"),
        ("a_.example/b", "no host"),
        ("a.example:99999/b", "no port"),
        ("a.example:x/b", "no host"),
        ("oci:", "no path"),
        ("oci::tag", "no path"),
        ("oci:/a:", "no name"),
        ("oci:/a\0", "zero byte"),
        ("docker-archive:", "no path"),
    ],
)
def test_what_is_wrong(text, why):
    with pytest.raises(SandboxImageError) as caught:
        parse_oci_reference(text)
    assert why in str(caught.value) and caught.value.reason == "bad_reference"
    assert caught.value.is_infrastructure and not caught.value.retryable and "\n" not in str(caught.value)


WORDS = st.text("abz019._-/:@AZ[]\n é", max_size=40)


@given(
    st.one_of(
        st.text(max_size=60), WORDS, WORDS.map(lambda text: f"oci:{text}"), st.builds("{}/{}:{}".format, WORDS, WORDS, WORDS)
    )
)
def test_any_text_is_a_reference_in_full_or_refused_by_name(text):
    try:
        parsed = parse_oci_reference(text)
    except SandboxImageError as error:
        assert error.reason == "bad_reference"
        return
    assert parse_oci_reference(parsed.name).name == parsed.name
    if parsed.kind == "registry":
        # It goes into URLs and file names.
        assert ".." not in parsed.repository.split("/") and parsed.name.isascii() and parsed.name.isprintable()
        assert " " not in parsed.name and parsed.repository == parsed.repository.lower()


@given(
    st.from_regex(r"[a-z0-9]{1,8}([._-][a-z0-9]{1,5}){0,2}", fullmatch=True),
    st.from_regex(r"[a-z]{1,5}\.example(:[1-9][0-9]{0,3})?", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
)
def test_what_is_put_together_is_taken_apart(path, host, tag):
    expected = OciReference(kind="registry", registry=host, repository=path, tag=tag)
    assert parse_oci_reference(f"{host}/{path}:{tag}") == expected


def test_digests_and_ids():
    assert is_digest(DIGEST) and not is_digest(DIGEST[:-1]) and not is_digest(DIGEST + "\n") and not is_digest(None)
    assert id_prefix("0123456789ab") == "0123456789ab" == id_prefix("sha256:0123456789ab")
    assert id_prefix("0123456789a") is None and id_prefix("busybox") is None


def test_paths_of_clients_are_reference_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reference_from_here("oci:a/b:1") == f"oci:{tmp_path}/a/b:1"
    assert reference_from_here("docker-archive:./x.tar") == f"docker-archive:{tmp_path}/./x.tar"
    for kept in ("oci:/a:1", "oci:", "oci::1", "docker-archive:/x", "debian:12", "dir:a", "host"):
        assert reference_from_here(kept) == kept
