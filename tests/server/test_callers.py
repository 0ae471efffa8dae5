"""Keys and what they are limited to, as rules."""

from __future__ import annotations

import pytest

from aviato.exceptions import AviatoValidationError
from aviato.server.callers import EARLIER, OPERATOR, BodyTooLargeError, Caller, parse_key
from aviato.server.connections.rate_limit import KEPT_SECONDS, LONGEST_SECONDS, RateLimit

HASH = "ab" * 32


def test_a_key_alone_is_a_tenant_of_its_own():
    key = parse_key(HASH)
    assert (key.hash, key.routes, key.requests_per_second) == (HASH, frozenset(), None)
    assert key.caller == Caller(tenant=f"key:{HASH[:32]}", sees_earlier=True)
    assert parse_key("cd" * 32).caller.tenant != key.caller.tenant


def test_what_can_stand_behind_it():
    key = parse_key(f"{HASH} /run_code tenant=team.a max-sandboxes=8 /health requests-per-second=0.5 max-body-bytes=4096")
    assert key.caller == Caller(tenant="team.a", sees_earlier=True, max_sandboxes=8, max_body_bytes=4096)
    assert (key.routes, key.requests_per_second) == ({"/run_code", "/health"}, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "another-key", "tenant=", "tenant=a:b", "tenant=key:" + HASH[:32], "tenant=a tenant=a", "max-sandboxes=0",
        "max-sandboxes=-1", "max-sandboxes=x", "max-sandboxes=1e3", "max-body-bytes=" + "9" * 19, "requests-per-second=0",
        "requests-per-second=nan", "requests-per-second=inf", "requests-per-second=", "secret=x", "=",
        "secrets=a;b", "secrets=/etc/x", "secrets=vault:a", "secrets=[a]", "secrets=a,b?",
    ],
)  # fmt: skip
def test_what_cannot_be_meant(text):
    with pytest.raises(ValueError, match=r"^(holds|says|has) ") as caught:
        parse_key(f"{HASH} {text}")
    assert "another-key" not in str(caught.value)


def test_who_sees_what():
    mine, by_wandb = parse_key(f"{HASH} tenant=a").caller, Caller(tenant="a")
    assert [mine.sees(owner) for owner in ("a", "b", None, EARLIER)] == [True, False, False, True]
    assert [by_wandb.sees(owner) for owner in ("a", "b", None, EARLIER)] == [True, False, False, False]
    assert all(OPERATOR.sees(owner) for owner in ("a", "b", None, EARLIER))


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [
        ("", ("env:HF_TOKEN", "file:hf-token", "env:OTHER")),
        ("secrets=", ()),
        ("secrets=HF_TOKEN", ("env:HF_TOKEN",)),
        ("secrets=OTHER,hf*", ("file:hf-token", "env:OTHER")),
        ("secrets=file:*", ("file:hf-token",)),
        ("secrets=env:*", ("env:HF_TOKEN", "env:OTHER")),
        ("secrets=*", ("env:HF_TOKEN", "file:hf-token", "env:OTHER")),
        ("secrets=hf_token,env:hf-token,HF_TOKE", ()),
    ],
)
def test_a_key_may_use_the_secrets_that_it_names(limit, allowed):
    caller = parse_key(f"{HASH} {limit}").caller
    for one in ("env:HF_TOKEN", "file:hf-token", "env:OTHER"):
        store, _, name = one.partition(":")
        if one in allowed:
            caller.check_secrets([(store, name)])
        else:
            with pytest.raises(AviatoValidationError, match=f"may not use the secret '{name}'") as caught:
                caller.check_secrets([(store, name)])
            assert caught.value.field_violations.keys() == {"secrets"}
    OPERATOR.check_secrets([("env", "HF_TOKEN")])


def test_sizes():
    Caller(tenant="a", max_body_bytes=10).check_size(10)
    OPERATOR.check_size(1 << 60)
    with pytest.raises(BodyTooLargeError, match="10 bytes"):
        Caller(tenant="a", max_body_bytes=10).check_size(11)


def test_a_second_s_worth_at_once_and_then_the_average():
    rate_limit = RateLimit(4.0)
    assert [rate_limit.take(100.0) for _ in range(5)] == [0.0] * 4 + [0.25]
    assert rate_limit.take(100.125) == pytest.approx(0.375)
    assert [rate_limit.take(100.25), rate_limit.take(100.5)] == [0.0, 0.0]
    assert [rate_limit.take(999.0) for _ in range(5)] == [0.0] * 4 + [0.25]
    slow = RateLimit(0.01)
    assert (slow.take(0.0), slow.take(0.0), slow.take(100.0)) == (0.0, 100.0, 0.0)


def test_each_that_is_refused_has_a_turn_of_its_own():
    rate_limit = RateLimit(1.0)
    assert [rate_limit.take(0.0) for _ in range(13)] == [float(second) for second in range(13)]
    # Each comes a little late, and asks again at once.
    for second in range(1, 100):
        assert rate_limit.take(second + 0.03) == 0.0
        assert rate_limit.take(second + 0.04) == pytest.approx(11.96)


def test_turns_that_nobody_takes_hold_up_no_one_for_long():
    rate_limit = RateLimit(2.0)
    waits = [rate_limit.take(0.0) for _ in range(1000)]
    assert max(waits) <= LONGEST_SECONDS + 0.5
    assert [rate_limit.take(29.0) for _ in range(9)].count(0.0) == 2 * KEPT_SECONDS
    lull = LONGEST_SECONDS + KEPT_SECONDS + 30.0
    assert [rate_limit.take(lull) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
