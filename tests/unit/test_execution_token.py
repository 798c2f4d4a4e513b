"""An execution token is valid for one order, for a short time, and for nothing else."""

from __future__ import annotations

import base64
import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.fleet_secrets import ExecutionToken, ExecutionTokenRefused, FleetSecrets, digest, sign, verify

SECRET = b"sixteen characters and more"
TOKEN = ExecutionToken("w", "i", 1, 100.0, digest(b"body"))
SIGNED = sign(TOKEN, SECRET)


def opened(
    signed: str = SIGNED, secret: str = SECRET.decode(), worker: str = "w", body: bytes = b"body", now: float = 0.0
) -> ExecutionToken:
    return verify(signed, FleetSecrets(secret), worker=worker, body=body, now=now)


def test_it_is_valid_for_what_was_signed_until_it_expires() -> None:
    assert opened(now=99.999) == TOKEN


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": "another fleet's secret"},
        {"worker": "v"},
        {"worker": ""},
        {"body": b"else"},
        {"body": b""},
        {"now": 100.0},
    ],
)
def test_it_is_valid_for_nothing_else(wrong: dict[str, object]) -> None:
    with pytest.raises(ExecutionTokenRefused):
        opened(**wrong)  # type: ignore[arg-type]


def test_each_of_two_secrets_is_accepted_and_the_first_signs() -> None:
    both = FleetSecrets(f"{SECRET.decode()}, another fleet's secret")
    assert both.signing == SECRET
    for secret in both:
        assert verify(sign(TOKEN, secret), both, worker="w", body=b"body", now=0.0) == TOKEN


@pytest.mark.parametrize(
    "signed", ["", ".", "a.b", "a", "§.§", "e30.e30", "a" * 10_000, SIGNED + ".", SIGNED[:-1], "." + SIGNED]
)
def test_text_that_is_no_token_is_refused(signed: str) -> None:
    with pytest.raises(ExecutionTokenRefused):
        opened(signed)


@given(st.text(max_size=200))
def test_no_text_is_valid_or_breaks_it(signed: str) -> None:
    with pytest.raises(ExecutionTokenRefused):
        opened(signed)


@given(st.integers(0, len(SIGNED.partition(".")[0]) * 6 - 1))
def test_one_changed_bit_of_the_payload_makes_it_invalid(bit: int) -> None:
    payload, _, signature = SIGNED.partition(".")
    raw = bytearray(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    changed = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    with pytest.raises(ExecutionTokenRefused):
        opened(f"{changed}.{signature}")


@pytest.mark.parametrize("name", [field.name for field in fields(ExecutionToken)])
def test_every_field_is_under_the_signature(name: str) -> None:
    other: Any = {"attempt": 2, "expires_at": 1e9}.get(name, "other")
    payload = sign(replace(TOKEN, **{name: other}), b"the forger's own").partition(".")[0]
    with pytest.raises(ExecutionTokenRefused):
        opened(f"{payload}.{SIGNED.partition('.')[2]}")


def test_a_refusal_does_not_repeat_the_token() -> None:
    with pytest.raises(ExecutionTokenRefused) as refused:
        opened(worker="v")
    assert SIGNED not in str(refused.value)
    assert json.dumps(TOKEN.invocation) not in str(refused.value)
