"""The dispatcher's fields in vLLM's core: whatever they are, reading them never raises, and has safe values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm.protocol import _READERS, TOKENS_MAX, WEIGHT_MAX, WEIGHT_MIN, RequestFields, read_fields
from gpu_worker.policies.fairness.interface import QueueRequest

NUMBERS = ["weight", "stage", "system_tokens", "output_max", "output_expected", "timeout_s"]
TEXTS = ["tenant", "app", "interaction", "tier"]


def read(**fields: Any) -> RequestFields:
    return read_fields({f"headgate_{name}": value for name, value in fields.items()})


def test_what_the_worker_sends_is_read() -> None:
    sent: dict[str, Any] = {
        "tenant": "a", "weight": 2, "tier": "premium", "app": "chat", "stage": 3, "interaction": "i",
        "system_tokens": 4, "output_max": 5, "output_expected": 6.0, "timeout_s": 1.5,
    }  # fmt: skip
    assert read(**sent) == RequestFields("a", 2.0, Tier.PREMIUM, "chat", 3, "i", 4, 5, 6, 1.5)
    assert set(sent) == set(_READERS)


@pytest.mark.parametrize("extra_args", [None, {}, {"other": object()}, {"headgate_new": [1]}, [], "headgate_tier", 7])
def test_what_is_missing_or_unknown_has_the_defaults(extra_args: object) -> None:
    assert read_fields(extra_args) == RequestFields()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", ["abc", "12", "", [], {}, [1], -1, -(10**400), float("nan"), -math.inf, True, b"1", object()]
)
def test_a_number_that_is_none_is_named_and_has_its_default(name: str, value: Any) -> None:
    found = read(**{name: value})
    assert found == RequestFields(wrong=(name,))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", [5, 1.5, [], {}, True, "x" * 257, "\ud800", b"a"])
def test_a_text_that_is_none_is_named_and_has_its_default(name: str, value: Any) -> None:
    assert read(**{name: value}) == RequestFields(wrong=(name,))


@pytest.mark.parametrize(
    ("name", "value"), [("tenant", ""), ("tier", "gold"), ("tier", ""), ("weight", 0), ("weight", math.inf)]
)
def test_a_value_without_a_meaning_is_named(name: str, value: Any) -> None:
    assert read(**{name: value}) == RequestFields(wrong=(name,))


@pytest.mark.parametrize("name", ["stage", "system_tokens", "output_max", "output_expected"])
@pytest.mark.parametrize("value", [1.5, math.inf])
def test_a_count_is_whole(name: str, value: float) -> None:
    assert read(**{name: value}).wrong == (name,)


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [("weight", 1e-20, WEIGHT_MIN), ("weight", 5e-324, WEIGHT_MIN), ("weight", 10**400, WEIGHT_MAX),
     ("output_max", 10**400, TOKENS_MAX), ("output_max", 1e300, TOKENS_MAX), ("timeout_s", 10**400, math.inf),
     ("timeout_s", math.inf, math.inf)],
)  # fmt: skip
def test_a_number_beyond_its_bounds_becomes_the_bound(name: str, value: Any, bound: float) -> None:
    found = read(**{name: value})
    assert (getattr(found, name), found.wrong) == (bound, ())


def test_one_wrong_field_takes_nothing_from_the_others() -> None:
    found = read(tenant="a", output_max="abc", stage=None, weight=[])
    assert (found.tenant, found.wrong) == ("a", ("weight", "output_max"))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ANYTHING = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=5)


@given(st.dictionaries(st.sampled_from([f"headgate_{name}" for name in _READERS]), ANYTHING))
def test_whatever_is_sent_can_be_queued(extra_args: dict[str, Any]) -> None:
    found = read_fields(extra_args)
    request = QueueRequest(
        "r", found.tenant, 10, found.weight, app=found.app, stage=found.stage, interaction=found.interaction,
        system_tokens=min(found.system_tokens, 10), tier=found.tier, deadline_s=1.0 + found.timeout_s,
    )  # fmt: skip
    assert f"{request.tenant}{request.app}{request.interaction}".encode()
    assert request.deadline_s >= 1.0
    assert found.output_max is None or 0 <= found.output_max <= TOKENS_MAX
