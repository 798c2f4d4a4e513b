"""What vLLM's server gets beside the tenant's own fields, how its core reads it, and why it ended a request."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.requests import Endpoint
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineError, own_order
from gpu_worker.engines.vllm.arguments import checked
from gpu_worker.engines.vllm.engine import VllmModel, server_fields
from gpu_worker.engines.vllm.protocol import (
    _READERS,
    TOKENS_MAX,
    WEIGHT_MAX,
    WEIGHT_MIN,
    RequestFields,
    check_end,
    read_fields,
)
from gpu_worker.policies.fairness.interface import QueueRequest


def test_the_dispatchers_fields_are_those_of_the_scheduler() -> None:
    request = own_order(
        "r",
        "acme",
        {"prompt": "x"},
        8,
        weight=2.0,
        tier=Tier.PREMIUM,
        app="chat",
        stage=1,
        interaction="i",
        timeout_s=9.0,
    )
    assert server_fields(request) == {
        "vllm_xargs": {
            "headgate_tenant": "acme",
            "headgate_weight": 2.0,
            "headgate_tier": "premium",
            "headgate_app": "chat",
            "headgate_stage": 1,
            "headgate_interaction": "i",
            "headgate_timeout_s": 9.0,
        }
    }


def test_a_request_without_a_limit_has_its_bound_and_the_expected_tokens() -> None:
    fields = server_fields(own_order("r", "acme", {}, 4096, expected_tokens=256))["vllm_xargs"]
    assert (fields["headgate_output_max"], fields["headgate_output_expected"]) == (4096, 256)


def test_no_deadline_is_no_number_and_a_salt_is_a_field_of_its_own() -> None:
    fields = server_fields(own_order("r", "acme", {}, 8, cache_salt="salt"))
    assert fields["cache_salt"] == "salt"
    json.dumps(fields, allow_nan=False)
    assert "headgate_timeout_s" not in fields["vllm_xargs"]


def test_embeddings_have_no_such_fields() -> None:
    assert server_fields(own_order("r", "acme", {"input": "x"}, 1, Endpoint.EMBEDDINGS)) == {}


def test_the_model_is_that_of_the_servers_arguments(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vision_config": {}}', encoding="utf-8")
    found = VllmModel.find(None, tmp_path, checked(["--model", str(tmp_path)]))
    assert found == VllmModel(str(tmp_path), tmp_path.name, reads_images=True)
    named = VllmModel.find(None, tmp_path, checked(["owner/large", "--served-model-name", "chat"]))
    assert named == VllmModel("owner/large", "chat", reads_images=False)
    with pytest.raises(ValueError, match="named twice"):
        VllmModel.find(str(tmp_path), tmp_path, checked(["--model", "owner/large"]))


def ended(finish_reason: str | None, stop_reason: Any) -> str:
    try:
        check_end({"index": 0, "finish_reason": finish_reason, "stop_reason": stop_reason})
    except EngineError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("preempted", "preempted"),
        ("preempted_too_often", "preempted_too_often"),
        ("refused", "rate_limit_exceeded"),
        ("too_large", "context_length_exceeded"),
        ("expired", "expired"),
        ("invalid", "generation_failed"),
    ],
)
def test_the_schedulers_reason_becomes_the_error(reason: str, code: str) -> None:
    assert ended("abort", f"headgate:{reason}") == code


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason"),
    [("stop", "headgate:refused"), ("stop", 7), ("length", None), (None, None), ("abort", None), ("abort", 7)],
)
def test_any_other_end_is_none_of_the_schedulers(finish_reason: str | None, stop_reason: Any) -> None:
    """A tenant's own stop string can be any text."""
    assert ended(finish_reason, stop_reason) == ""


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
