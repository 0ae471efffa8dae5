"""Which server, and as whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from aviato import AviatoAuthenticationError, AviatoValidationError, WandbAuthError
from aviato.transport import auth, embedded_key
from aviato.transport.resolution import EMBEDDED, Endpoint, choose, endpoint

CALL, DEFAULTS, VARIABLE = "http://call:1", "http://defaults:1", "http://variable:1"


@pytest.mark.parametrize(
    ("call", "defaults", "variable", "winner"),
    [
        (CALL, DEFAULTS, VARIABLE, CALL),
        (None, DEFAULTS, VARIABLE, DEFAULTS),
        (None, None, VARIABLE, VARIABLE),
        (None, None, "", EMBEDDED),
        (None, None, None, EMBEDDED),
        (CALL, None, None, CALL),
    ],
)
def test_precedence(
    monkeypatch: pytest.MonkeyPatch, call: str | None, defaults: str | None, variable: str | None, winner: str
) -> None:
    if variable is not None:
        monkeypatch.setenv("AVIATO_BASE_URL", variable)
    assert choose(call, defaults) == winner


@pytest.mark.parametrize(
    "url", ["", "host:80", "ftp://host", "unix:relative", "unix://host/path", "http://", "http://h:port", "https://u:p@h"]
)
def test_what_is_no_base_url(url: str) -> None:
    with pytest.raises(AviatoValidationError, match="base_url"):
        choose(url, None)


def test_the_source_of_a_bad_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", "nonsense")
    with pytest.raises(AviatoValidationError, match="AVIATO_BASE_URL is 'nonsense'"):
        choose(None, None)


@pytest.mark.parametrize(
    ("url", "tcp", "secure", "loopback"),
    [
        ("unix:///a/b", False, False, True),
        ("http://127.0.0.1:80", True, False, True),
        ("http://[::1]:80", True, False, True),
        ("http://localhost", True, False, True),
        ("https://example.com/base/", True, True, False),
        ("http://10.0.0.1", True, False, False),
    ],
)
def test_endpoints(url: str, tcp: bool, secure: bool, loopback: bool) -> None:
    found = endpoint(url)
    assert (found.socket_path is None, found.is_secure, found.is_loopback) == (tcp, secure, loopback)
    assert not found.origin.endswith("/")


# -- credentials

UNIX, PLAIN, SECURE = endpoint("unix:///a"), endpoint("http://host"), endpoint("https://host")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    return tmp_path


def wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "wkey")
    monkeypatch.setenv("WANDB_ENTITY_NAME", "team")


WANDB = {"X-Wandb-Api-Key": "wkey", "X-Wandb-Entity": "team"}


@pytest.mark.parametrize("where", [UNIX, PLAIN, SECURE])
def test_the_key_goes_to_tcp_only(monkeypatch: pytest.MonkeyPatch, where: Endpoint) -> None:
    monkeypatch.setenv("AVIATO_API_KEY", "key")
    wandb(monkeypatch)
    assert auth.headers(where, wandb_asked=True) == ({} if where is UNIX else {"Authorization": "Bearer key"})


@pytest.mark.parametrize("where", [UNIX, PLAIN, SECURE])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("wanted", ["wandb", None])
def test_a_wandb_key_goes_only_where_it_was_asked_for_and_encrypted(
    monkeypatch: pytest.MonkeyPatch, where: Endpoint, asked: bool, wanted: str | None
) -> None:
    wandb(monkeypatch)
    if wanted is not None:
        monkeypatch.setenv("AVIATO_AUTH", wanted)
    expected = WANDB if where is SECURE and (asked or wanted is not None) else {}
    assert auth.headers(where, wandb_asked=asked) == expected


def test_netrc(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ENTITY_NAME", "team")
    monkeypatch.setenv("WANDB_PROJECT_NAME", "project")
    with pytest.raises(WandbAuthError, match="WANDB_API_KEY"):
        auth.headers(SECURE, wandb_asked=True)
    (home / ".netrc").write_text("machine api.wandb.ai login user password wkey\n")
    (home / ".netrc").chmod(0o600)
    assert auth.headers(SECURE, wandb_asked=True) == {**WANDB, "X-Wandb-Project": "project"}
    monkeypatch.delenv("WANDB_ENTITY_NAME")
    with pytest.raises(WandbAuthError, match="WANDB_ENTITY_NAME"):
        auth.headers(SECURE, wandb_asked=True)


@pytest.mark.parametrize(
    ("where", "status", "challenge", "asks"),
    [
        (SECURE, 401, "WandB", True),
        (SECURE, 401, 'Bearer, WandB realm="x"', True),
        (SECURE, 401, "Bearer", False),
        (SECURE, 403, "WandB", False),
        (PLAIN, 401, "WandB", False),
        (UNIX, 401, "WandB", False),
    ],
)
def test_what_counts_as_asking(where: Endpoint, status: int, challenge: str, asks: bool) -> None:
    assert auth.asks_for_wandb(where, status, {"WWW-Authenticate": challenge}) is asks


def test_a_key_that_cannot_be_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_API_KEY", "a\u2028b")
    with pytest.raises(AviatoAuthenticationError) as caught:
        auth.headers(PLAIN, wandb_asked=False)
    assert "\u2028" not in str(caught.value)


# -- which embedded server


def test_settings_make_the_key_and_credentials_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = embedded_key.directory()
    for name in ("AVIATO_API_KEY", "AVIATO_BASE_URL", "AVIATO_SECRET_X", "AVIATO_IMAGE_FALLBACK", "AVIATO_AUTH", "OTHER"):
        monkeypatch.setenv(name, "x")
    assert embedded_key.directory() == usual
    monkeypatch.setenv("AVIATO_MAX_SANDBOXES", "3")
    assert embedded_key.directory() != usual
    monkeypatch.delenv("AVIATO_MAX_SANDBOXES")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert embedded_key.directory() != usual
    monkeypatch.setenv("AVIATO_STATE_DIR", "relative")
    with pytest.raises(Exception, match="absolute"):
        embedded_key.directory()


def test_default_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert embedded_key.default_state_directory() == "/var/lib/aviato"
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert embedded_key.default_state_directory() == "/var/tmp/aviato-1234"
