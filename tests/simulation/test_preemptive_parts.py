"""The parts of the paged model by themselves: the order in which requests keep their blocks, and copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.modelled.paged.model import PagedBatch
from gpu_worker.engines.modelled.paged.profile import Copies
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.preemption import Resident, sort_by_protection
from headgate.simulator.engines.paged import paged_profile
from headgate.simulator.engines.profile import load_profile

PROFILE = load_profile("a100x8-llama3-70b")


def resident(name: str, generated: int, preemptions: int = 0) -> Resident:
    return Resident(name, Tier.STANDARD, 1, 10, generated, preemptions)


def names(residents: list[Resident]) -> str:
    return "".join(one.request_id for one in residents)


def test_the_protected_are_kept_longest_then_by_rank_then_by_progress() -> None:
    residents = [resident("a", 5), resident("b", 9), resident("c", 9, 1), resident("d", 0), resident("e", 0)]
    ranks = {"a": 0.0, "b": 1.0, "c": 1.0, "d": 2.0, "e": 1.0}
    assert names(sort_by_protection(residents, lambda name: ranks[name], lambda name: name == "d")) == "dabce"


def test_where_tenants_are_kept_close_the_leader_is_last_of_its_rank() -> None:
    residents = [resident("a", 90), resident("b", 5), resident("c", 0)]
    ranks, had = {"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 500.0, "b": 20.0, "c": 900.0}
    assert names(sort_by_protection(residents, ranks.__getitem__, lambda _: False)) == "cab"
    assert names(sort_by_protection(residents, ranks.__getitem__, lambda _: False, had.__getitem__)) == "cba"


def test_copies_of_one_direction_follow_one_another_and_none_comes_back_before_it_is_out() -> None:
    copies = Copies(paged_profile(PROFILE).calibration())
    one_s = PROFILE.copy_base_s + 1000 * PROFILE.kv_bytes_per_token / PROFILE.copy_out_bytes_per_s
    assert copies.swap_out(1000, 5.0) == 1000 * PROFILE.kv_bytes_per_token
    copies.swap_out(1000, 5.0)
    assert copies.out_until_s == pytest.approx(5.0 + 2 * one_s)
    copies.swap_in(1000, 5.0)
    assert copies.in_until_s == pytest.approx(5.0 + 3 * one_s)


def test_a_profile_without_copy_rates_does_not_swap() -> None:
    assert paged_profile(load_profile()).calibration().swap_bytes(1000) == 0.0


def test_a_swapped_request_that_is_cancelled_returns_its_host_memory() -> None:
    machine = paged_profile(PROFILE)
    tiers = make_policy("tiered:vtc")
    batch = PagedBatch(replace(machine, batch_max=1), Admission(tiers, replace(machine.calibration(), copy_base_s=0.0)))
    background = batch.enqueue(QueueRequest("b", "b", 5000, tier=Tier.BACKGROUND, output_tokens_max=10), 0.0)
    batch.admit(10_000, 0.0, begun=False)
    assert background is not None
    background.left = 0  # its prompt is computed
    batch.kv_tokens = background.held
    batch.enqueue(QueueRequest("p", "p", 10, tier=Tier.PREMIUM, output_tokens_max=10), 1.0)
    batch.admit(10_000, 1.0, begun=False)
    assert batch.kv_budget.swap_bytes_used == background.swap_bytes > 0
    batch.cancel(background)
    assert (batch.kv_budget.swap_bytes_used, batch.waiting, len(batch.running)) == (0.0, 0, 1)
