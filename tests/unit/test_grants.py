"""Grants: open one door for one request for a short time, and nothing else."""

from __future__ import annotations

import base64
import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.execution_token import ExecutionToken, ExecutionTokenRefused, digest, sign, verify

SECRET = b"sixteen characters and more"
GRANT = ExecutionToken("w", "a", "i", 1, 0, 100.0, digest(b"body"))
TOKEN = sign(GRANT, SECRET)


def opened(
    token: str = TOKEN, secret: bytes = SECRET, worker: str = "w", body: bytes = b"body", now: float = 0.0
) -> ExecutionToken:
    return verify(token, secret, worker=worker, body=body, now=now)


def test_opens_for_what_it_was_signed_for_to_its_last_moment() -> None:
    assert opened(now=99.999) == GRANT


@pytest.mark.parametrize(
    "wrong", [{"secret": b"other"}, {"worker": "v"}, {"worker": ""}, {"body": b"else"}, {"body": b""}, {"now": 100.0}]
)
def test_and_for_nothing_else(wrong: dict[str, Any]) -> None:
    with pytest.raises(ExecutionTokenRefused):
        opened(**wrong)


@pytest.mark.parametrize(
    "token", ["", ".", "a.b", "a", "§.§", "e30.e30", "a" * 10_000, TOKEN + ".", TOKEN[:-1], "." + TOKEN]
)
def test_what_is_no_grant(token: str) -> None:
    with pytest.raises(ExecutionTokenRefused):
        opened(token)


@given(st.text(max_size=200))
def test_no_text_opens_or_breaks_it(token: str) -> None:
    with pytest.raises(ExecutionTokenRefused):
        opened(token)


@given(st.integers(0, len(TOKEN.partition(".")[0]) * 6 - 1))
def test_one_bit_of_the_payload_changed_and_it_opens_nothing(bit: int) -> None:
    payload, _, signature = TOKEN.partition(".")
    raw = bytearray(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    changed = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    with pytest.raises(ExecutionTokenRefused):
        opened(f"{changed}.{signature}")


@pytest.mark.parametrize("name", [field.name for field in fields(ExecutionToken)])
def test_every_field_is_under_the_signature(name: str) -> None:
    other: Any = {"attempt": 2, "slot": 3, "expires_at": 1e9}.get(name, "other")
    payload = sign(replace(GRANT, **{name: other}), b"the forger's own").partition(".")[0]
    with pytest.raises(ExecutionTokenRefused):
        opened(f"{payload}.{TOKEN.partition('.')[2]}")


def test_what_refuses_does_not_repeat_the_grant() -> None:
    with pytest.raises(ExecutionTokenRefused) as refused:
        opened(worker="v")
    assert TOKEN not in str(refused.value)
    assert json.dumps(GRANT.tenant) not in str(refused.value)
