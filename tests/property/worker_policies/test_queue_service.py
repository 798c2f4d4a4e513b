"""Service functions: values worked by hand, monotonic, and with differences that add up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.service import SERVICE_FUNCTIONS, service_delta, service_function

every_service = pytest.mark.parametrize("name", sorted(SERVICE_FUNCTIONS))
tokens = st.integers(0, 20_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weighted", 100 + 2 * 10),
        ("tokens", 110),
        ("profiled", 210 + 10 + 0.04 * 1000 + 0.032 * 100 + 11.46),
        ("flops", (2 * 6.74e9 * 110 + 2 * 32 * 4096 * 110 * 111) / 1e9),
    ],
)
def test_the_values_of_100_in_and_10_out(name: str, value: float) -> None:
    assert service_function(name)(100, 10) == pytest.approx(value)


@every_service
@given(inputs=tokens, outputs=tokens)
def test_each_further_token_has_a_positive_cost(name: str, inputs: int, outputs: int) -> None:
    h = service_function(name)
    assert 0 <= h(inputs, outputs) < min(h(inputs + 1, outputs), h(inputs, outputs + 1))


@every_service
@given(inputs=tokens, cuts=st.lists(tokens, min_size=1, max_size=8))
def test_the_charges_of_a_request_add_up_to_h(name: str, inputs: int, cuts: list[int]) -> None:
    h, counts = service_function(name), [0, *sorted(cuts)]
    charged = sum(service_delta(h, inputs, before, after) for before, after in pairwise(counts))
    assert h(inputs, 0) + charged == pytest.approx(h(inputs, counts[-1]))


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'joules'.*weighted.*profiled"):
        service_function("joules")
