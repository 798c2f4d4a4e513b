"""The parts of the paged engine by themselves: who keeps its place, and what copies take."""

from __future__ import annotations

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.preemption.victims import Resident, keep_order
from headgate.simulator.engines.paged.copies import Copies, calibration_of
from headgate.simulator.engines.profile import load_profile

PROFILE = load_profile("a100x8-llama3-70b")


def resident(name: str, generated: int, preemptions: int = 0) -> Resident:
    return Resident(name, Tier.STANDARD, 1, 10, generated, preemptions)


def names(residents: list[Resident]) -> str:
    return "".join(one.request_id for one in residents)


def test_the_protected_are_kept_longest_then_by_rank_then_by_progress() -> None:
    everybody = [resident("a", 5), resident("b", 9), resident("c", 9, 1), resident("d", 0), resident("e", 0)]
    ranks = {"a": 0.0, "b": 1.0, "c": 1.0, "d": 2.0, "e": 1.0}
    assert names(keep_order(everybody, lambda name: ranks[name], lambda name: name == "d")) == "dabce"


def test_where_tenants_are_kept_close_who_had_most_stands_last_in_its_rank() -> None:
    everybody = [resident("a", 90), resident("b", 5), resident("c", 0)]
    ranks, had = {"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 500.0, "b": 20.0, "c": 900.0}
    assert names(keep_order(everybody, ranks.__getitem__, lambda _: False)) == "cab"
    assert names(keep_order(everybody, ranks.__getitem__, lambda _: False, had.__getitem__)) == "cba"


def test_copies_of_one_direction_follow_one_another_and_none_comes_back_before_it_is_out() -> None:
    copies = Copies(calibration_of(PROFILE))
    one_s = PROFILE.copy_base_s + 1000 * PROFILE.kv_bytes_per_token / PROFILE.copy_out_bytes_per_s
    assert copies.swap_out(1000, 5.0) == 1000 * PROFILE.kv_bytes_per_token
    copies.swap_out(1000, 5.0)
    assert copies.out_until_s == pytest.approx(5.0 + 2 * one_s)
    copies.swap_in(1000, 5.0)
    assert copies.in_until_s == pytest.approx(5.0 + 3 * one_s)


def test_a_profile_that_says_nothing_of_copies_does_not_swap() -> None:
    assert calibration_of(load_profile()).swap_bytes(1000) == 0.0
