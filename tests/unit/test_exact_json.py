"""What is read from the log or a frame equals what was written, or it is not written."""

from __future__ import annotations

from math import copysign, inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.exact_json import read_json, write_json

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)  # fmt: skip
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner))


@given(VALUES)
def test_what_is_read_is_what_was_written(value: Any) -> None:
    assert _typed(read_json(write_json(value))) == _typed(value)


def _typed(value: Any) -> Any:
    """Return the value with the types of its numbers and the signs of its zeros, which == does not compare."""
    if isinstance(value, list):
        return list(map(_typed, value))
    if isinstance(value, dict):
        return {name: _typed(item) for name, item in value.items()}
    return type(value), value, copysign(1.0, value) if isinstance(value, float) else None


@pytest.mark.parametrize("number", [nan, inf, -inf])
@pytest.mark.parametrize("place", [lambda x: x, lambda x: [x], lambda x: {"a": {"b": (1, x)}}, lambda x: [None, [x]]])
def test_a_number_that_is_not_finite_is_refused(number: float, place: Any) -> None:
    with pytest.raises(ValueError, match="is no JSON"):
        write_json(place(number))


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        write_json(["\ud83d"])


@pytest.mark.parametrize("text", [b"NaN", b"[1e999]", b"Infinity", b"{", b"[1,]", b'"\\ud83d"', b""])
def test_what_no_writer_writes_is_not_read(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"malformed|range|truncated"):
        read_json(text)
