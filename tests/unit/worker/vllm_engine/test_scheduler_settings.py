"""The settings of the scheduler inside vLLM: a wrong one ends the start with one sentence, alone and with others."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm.protocol import RequestFields, request_fields
from gpu_worker.engines.vllm.settings import LOGGER_VARIABLE, SchedulerSettings, scheduler_settings
from gpu_worker.policies.fairness.tiered import TieredQueue

PRIORITIES = {"priority_tiers": {"premium": -1, "standard": 5}}


def read(config: dict[str, Any], scheduling_policy: str = "fcfs") -> SchedulerSettings:
    found = scheduler_settings({"theirs": 1, "headgate": config}, scheduling_policy)
    assert isinstance(found.make_queue(), TieredQueue)
    return found


def test_without_settings_there_are_defaults_that_believe_no_client() -> None:
    without: list[Any] = [{}, None, SimpleNamespace()]
    for each in without:
        assert scheduler_settings(each, "fcfs") == SchedulerSettings()
    assert not SchedulerSettings().trust_client_fields


WRONG = [
    ({"polcy": "vtc"}, r"headgate: there is no setting 'polcy' \(did you mean 'policy'\?\); there are policy, tiers, "),
    ({"policy": 1}, "headgate.policy should be a text, not 1"),
    ({"policy": "tiered:lottery"}, "unknown queue policy 'lottery'"),
    ({"policy": "lottery"}, "unknown queue policy 'lottery'"),
    ({"tiers": []}, r"headgate.tiers should be a mapping, not \[\]"),
    ({"tiers": {"preemption": "no"}}, "tiers.preemption should be true or false, not 'no'"),
    ({"tiers": {"agin_max": 1}}, "did you mean 'aging_max'"),
    ({"tiers": {"premium_reserve": 1.0}}, "premium_reserve must be at least 0 and below 1, not 1.0"),
    ({"tiers": {"shares": {"premium": 0.9, "standard": 0.9}}}, "sum of at most 1"),
    ({"policy": "vtc", "tiers": {"lead_max": 5.0}}, "queue policy 'vtc' has no tiers to set; tiered:vtc has"),
    ({"applications": ["a"]}, r"headgate.applications should be a mapping, not \['a'\]"),
    ({"applications": {"acme": 1}}, "headgate.applications.acme should be a text, not 1"),
    ({"send_stats": "yes"}, "headgate.send_stats should be true or false, not 'yes'"),
    ({"locality": "yes"}, "headgate.locality should be true or false, not 'yes'"),
    ({"loaded_first": 1}, "headgate.loaded_first should be true or false, not 1"),
    ({"tiers": {"loaded_first": "no"}}, "tiers.loaded_first should be true or false, not 'no'"),
    ({"loaded_frst": True}, "did you mean 'loaded_first'"),
    ({"trust_client_fields": 1}, "headgate.trust_client_fields should be true or false, not 1"),
    ({"priority_tiers": {"premium": 1.5}}, "headgate.priority_tiers.premium should be a whole number, not 1.5"),
    ({"priority_tiers": {"gold": 1}}, "should be one of premium, standard, background, not 'gold'"),
    ({"priority_tiers": {"system": 1}}, "should be one of premium, standard, background, not 'system'"),
    ({"priority_tiers": {}}, "premium or standard or both"),
    ({"priority_tiers": {"background": 1}}, "premium or standard or both"),
    ({"priority_tiers": {"premium": 5, "standard": -1}}, "a lower number for premium"),
    ({"priority_tiers": {"premium": 5, "standard": 5}}, "a lower number for premium"),
    ({"policy": "vtc", **PRIORITIES}, "priority_tiers needs a policy with tiers, such as tiered:vtc"),
    (PRIORITIES, "priority_tiers needs --scheduling-policy priority"),
]


@pytest.mark.parametrize(("config", "sentence"), WRONG)
def test_a_wrong_setting_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refusal:
        read(config)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@given(st.lists(st.sampled_from([config for config, _ in WRONG]), min_size=2, max_size=4))
def test_wrong_settings_together_are_refused(configs: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=r"headgate|tier|policy"):
        read({name: value for config in configs for name, value in config.items()})


@given(
    st.dictionaries(
        st.sampled_from([*SchedulerSettings.__dataclass_fields__, "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.just("tiered:vtc"),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
            max_leaves=4,
        ),
    )
)
def test_any_settings_work_or_are_refused_as_a_value(config: dict[str, Any]) -> None:
    for scheduling_policy in ("fcfs", "priority"):
        with suppress(ValueError):
            read(config, scheduling_policy)


def test_a_name_beside_ours_in_vllms_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="'headgte', which nothing reads; did you mean 'headgate'"):
        scheduler_settings({"headgte": {}}, "fcfs")
    scheduler_settings({"headgte": {}, "headgate": {}}, "fcfs")
    with pytest.raises(ValueError, match=r"headgate should be a mapping of policy, tiers, .*, not 'vtc'"):
        scheduler_settings({"headgate": "vtc"}, "fcfs")


def test_vllms_priority_is_mapped_by_the_operator_or_refused() -> None:
    with pytest.raises(ValueError, match="would ignore --scheduling-policy priority"):
        read({}, "priority")
    found = read(PRIORITIES, "priority")
    tiers = [found.tier_of(priority) for priority in (-(2**63), -1, 0, 5, 6, 2**63)]
    assert tiers == [Tier.PREMIUM, Tier.PREMIUM, Tier.STANDARD, Tier.STANDARD, Tier.BACKGROUND, Tier.BACKGROUND]
    only = read({"priority_tiers": {"premium": 0}}, "priority")
    assert [only.tier_of(priority) for priority in (0, 1)] == [Tier.PREMIUM, Tier.BACKGROUND]


def vllm_request(priority: int = 0, **fields: object) -> Any:
    extra = {f"headgate_{name}": value for name, value in fields.items()}
    return SimpleNamespace(priority=priority, sampling_params=SimpleNamespace(extra_args=extra), trace_headers=None)


def test_a_clients_own_fields_are_believed_only_if_the_operator_says_so() -> None:
    forged = vllm_request(tenant="other", tier="system", weight=1e9, timeout_s=0.0)
    assert request_fields(forged, read({})) == RequestFields(ignored=True)
    believed = request_fields(forged, read({"trust_client_fields": True}))
    assert (believed.tenant, believed.tier, believed.weight) == ("other", Tier.SYSTEM, 1e9)
    pooling = SimpleNamespace(priority=0, sampling_params=None, pooling_params=None, trace_headers=None)
    assert request_fields(pooling, read({})) == RequestFields()
    assert request_fields(vllm_request(), read({})) == RequestFields()


def test_a_priority_gives_the_tier_beside_the_fields() -> None:
    found = read(PRIORITIES, "priority")
    assert request_fields(vllm_request(-7), found).tier is Tier.PREMIUM
    assert request_fields(vllm_request(7, tier="system"), found).tier is Tier.BACKGROUND
    both = read({**PRIORITIES, "trust_client_fields": True}, "priority")
    assert request_fields(vllm_request(7, tier="premium"), both).tier is Tier.PREMIUM
    assert request_fields(vllm_request(7, tenant="a"), both).tier is Tier.BACKGROUND
    tierless = read({"policy": "vtc", "trust_client_fields": True})
    assert request_fields(vllm_request(tier="system"), tierless).tier is Tier.STANDARD


def test_stats_are_sent_where_the_logger_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOGGER_VARIABLE, raising=False)
    assert [read({"send_stats": each}).sends_stats for each in (None, True, False)] == [False, True, False]
    monkeypatch.setenv(LOGGER_VARIABLE, "1")
    assert [read({"send_stats": each}).sends_stats for each in (None, True, False)] == [True, True, False]


@pytest.mark.parametrize("policy", ["vtc", "tiered:vtc"])
@pytest.mark.parametrize("order", ["locality", "loaded_first"])
def test_an_order_within_a_tenant_is_on_where_it_is_set(policy: str, order: str) -> None:
    assert not getattr(read({"policy": policy}).make_queue(), order)
    assert getattr(read({"policy": policy, order: True}).make_queue(), order)
    assert getattr(read({"policy": policy, "tiers": {order: True}}).make_queue(), order)


def test_a_policy_without_tiers_keeps_the_price_of_cached_tokens() -> None:
    queue = read({"policy": "vtc", "tiers": {"cached_fraction": 0.3}}).make_queue()
    assert queue.settings.cached_fraction == 0.3
    assert not queue.settings.preemption
