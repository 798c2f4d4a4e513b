"""Strict JSON: what is accepted is read back, and all else is refused without a crash."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import InvalidRequest, RequestTooLarge
from dispatcher.strict_json import BODY_BYTES_MAX, DEPTH_MAX, parse_object


@pytest.mark.parametrize("raw", [b"", b" \r\n", "", b"\xef\xbb\xbf"])
def test_an_empty_body_is_named(raw: bytes | str) -> None:
    with pytest.raises(InvalidRequest, match="is empty") as caught:
        parse_object(raw)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("raw", [b'\xef\xbb\xbf{"a": 1}', '\ufeff{"a": 1}', b'\xef\xbb\xbf \r\n{"a": 1}'])
def test_a_byte_order_mark_before_the_object_is_ignored(raw: bytes | str) -> None:
    assert parse_object(raw) == {"a": 1}


def test_a_byte_order_mark_within_a_text_is_kept() -> None:
    assert parse_object('\ufeff{"a": "\ufeff"}'.encode()) == {"a": "\ufeff"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}',
        b'\xef\xbb{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": "\ud800"}',
        b"[1]",
        b'"x"',
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\\ud800"}',
        b'{"a":' + b"[" * 100_000,
        json.dumps({"a": 1}).replace("1", "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)).encode(),
        b'{"a": ' + b"9" * 10_000 + b"}",
        b'{"a": "\\uDBFF", "b": "\\ud83d\\ude00"}',
        b'{"a": ' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}",
    ],
)
def test_refused(raw: bytes | str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_too_large() -> None:
    with pytest.raises(RequestTooLarge) as caught:
        parse_object(b" " * (BODY_BYTES_MAX + 1))
    assert caught.value.status == 413


@given(
    st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
)
def test_what_json_writes_is_read_back(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value)) == value


@given(st.binary(max_size=200))
def test_nothing_but_the_two_errors_ever(raw: bytes) -> None:
    with suppress(InvalidRequest):
        parse_object(raw)


def test_what_is_as_deep_as_it_may_be_and_half_characters_that_belong_together_are_read() -> None:
    nested = b'{"a": ' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}"
    assert parse_object(nested) == json.loads(nested)
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
