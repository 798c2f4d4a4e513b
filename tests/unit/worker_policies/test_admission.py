"""Passes of admissions over a room whose figures are given: who enters, who leaves for it, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.preemption.admission import Admission, AdmissionPlan
from gpu_worker.policies.preemption.costs import UNCALIBRATED, Calibration, Strategy
from gpu_worker.policies.preemption.victims import Resident
from gpu_worker.policies.request import QueueRequest
from gpu_worker.policies.tiers.settings import TierSettings
from gpu_worker.policies.tiers.tiered import TieredQueue

PREMIUM, STANDARD, BACKGROUND, SYSTEM = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND, Tier.SYSTEM
TIER = {"p": PREMIUM, "s": STANDARD, "b": BACKGROUND, "y": SYSTEM}
SWAPS = Calibration(1.0, 1e9, 1e9, 0.0, 1.0, 0.0, 0.0, 0.5)
"""A byte a token; a swap costs next to nothing, a recompute a second, a step half of one."""


@dataclass
class World:
    """A room, and the admissions to it; carries out what is planned. A request's tier is the first letter of its id,
    its tenant the second. A block is a token."""

    settings: TierSettings = field(default_factory=TierSettings)
    calibration: Calibration = UNCALIBRATED
    blocks_total: int = 100
    slots_free: int = 8
    swap_bytes_free: float = 0.0
    needed: dict[str, int] = field(default_factory=dict)
    running: dict[str, Resident] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admission = Admission(TieredQueue(lambda: make_policy("vtc"), self.settings), self.calibration)

    @property
    def policy(self) -> TieredQueue:
        assert isinstance(self.admission.policy, TieredQueue)
        return self.admission.policy

    @property
    def blocks_free(self) -> int:
        return self.blocks_total - sum(resident.blocks for resident in self.running.values())

    def blocks_needed(self, request_id: str) -> int:
        return self.needed[request_id]

    def residents(self) -> list[Resident]:
        return list(self.running.values())

    def wait(self, request_id: str, blocks: int, deadline_s: float = inf, now_s: float = 0.0) -> None:
        self.needed[request_id] = blocks
        request = QueueRequest(
            request_id,
            request_id[1],
            10,
            tier=TIER[request_id[0]],
            output_tokens_max=20,
            deadline_s=deadline_s,
        )
        assert self.admission.enqueue(request, now_s)

    def run(self, request_id: str, blocks: int, generated: int = 0) -> None:
        self.wait(request_id, blocks)
        self.policy.admit(request_id)
        self.running[request_id] = Resident(request_id, TIER[request_id[0]], blocks, blocks, generated)
        self.slots_free -= 1

    def next(self) -> AdmissionPlan | None:
        return self.admission.next_plan(self)

    def pass_(self) -> list[str]:
        """Who entered, and before each whom it cost, with a minus."""
        entered: list[str] = []
        while (plan := self.next()) is not None:
            for eviction in plan.evictions:
                name = eviction.resident.request_id
                self.needed[name] = self.running.pop(name).blocks
                (self.policy.finish if eviction.strategy is Strategy.DROP else self.policy.preempt)(name)
                self.slots_free += 1
                entered.append(f"-{name}")
            name = plan.request.request_id
            self.policy.admit(name)
            self.running[name] = Resident(
                name, plan.request.tier, self.needed[name], self.needed[name], 0, entered=True
            )
            self.slots_free -= 1
            entered.append(name)
        return entered


def strategies(plan: AdmissionPlan | None) -> dict[str, Strategy]:
    assert plan is not None
    return {eviction.resident.request_id: eviction.strategy for eviction in plan.evictions}


def test_they_enter_in_the_policys_order_as_long_as_there_is_room() -> None:
    world = World()
    for name in ("ba1", "sa1", "pa1"):
        world.wait(name, 30)
    assert world.pass_() == ["pa1", "sa1", "ba1"]


def test_the_last_block_and_the_last_slot_are_given_out() -> None:
    world = World(slots_free=2)
    for name, blocks in (("pa1", 60), ("pa2", 40), ("pa3", 0)):
        world.wait(name, blocks)
    assert world.pass_() == ["pa1", "pa2"]


def test_a_look_changes_nothing() -> None:
    world = World()
    world.run("ba1", 80)
    world.wait("pa1", 50)
    assert world.next() == world.next()
    assert world.policy.running == 1


def test_the_first_that_does_not_fit_ends_the_pass() -> None:
    """Whoever is passed over waits the longer: room gathers for it."""
    world = World()
    world.run("pz1", 50)
    world.wait("pa1", 60)
    world.wait("sa1", 1)
    assert world.pass_() == []


def test_room_is_made_for_a_more_urgent_one_and_for_nobody_else() -> None:
    world = World()
    for name, blocks in (("ba1", 40), ("sa1", 40), ("pz1", 20)):
        world.run(name, blocks)
    world.wait("pa1", 30)
    assert world.pass_() == ["-ba1", "pa1"]


def test_who_was_evicted_does_not_evict_in_turn() -> None:
    world = World(slots_free=2)
    world.run("ba1", 10)
    world.run("sa1", 10)
    world.wait("pa1", 10)
    world.wait("pb1", 10)
    world.wait("pc1", 10)
    assert world.pass_() == ["-ba1", "pa1", "-sa1", "pb1"]


def test_a_victim_frees_its_slot_and_its_blocks() -> None:
    """Short of a slot alone, the one that came least far goes, whatever it holds."""
    world = World(slots_free=2)
    world.run("ba1", 40, generated=5)
    world.run("bb1", 1)
    world.wait("pa1", 50)
    assert world.pass_() == ["-bb1", "pa1"]


def test_without_preemption_nobody_leaves() -> None:
    world = World(TierSettings(preemption=False))
    world.run("ba1", 100)
    world.wait("pa1", 1)
    assert world.next() is None


def test_a_policy_without_tiers_admits_in_its_order_and_evicts_nobody() -> None:
    world = World(slots_free=1)
    world.admission = Admission(make_policy("fcfs"))
    for name in ("ba1", "pa1"):
        world.wait(name, 10)
    plan = world.next()
    assert plan is not None
    assert (plan.request.request_id, plan.evictions) == ("ba1", ())
    world.admission.policy.admit("ba1")
    world.running["ba1"] = Resident("ba1", BACKGROUND, 10, 10, 0)
    world.slots_free = 0
    assert world.next() is None
    assert world.admission.blocks_max(BACKGROUND, 100) == 100


# ── By which strategy ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_several_victims_share_the_swap_space_that_is_free() -> None:
    world = World(calibration=SWAPS, swap_bytes_free=70.0)
    for name, blocks in (("ba1", 40), ("bb1", 40), ("bc1", 20)):
        world.run(name, blocks, generated=int(blocks == 20))
    world.wait("pa1", 100)
    expected = {"ba1": Strategy.SWAP, "bb1": Strategy.RECOMPUTE, "bc1": Strategy.SWAP}
    assert strategies(world.next()) == expected, "40 of 70, then 40 are too many, 20 are not"


def test_a_swap_may_take_all_that_is_free() -> None:
    for free, strategy in ((40.0, Strategy.SWAP), (39.0, Strategy.RECOMPUTE)):
        world = World(calibration=SWAPS, swap_bytes_free=free)
        world.run("ba1", 40)
        world.wait("pa1", 70)
        assert strategies(world.next()) == {"ba1": strategy}


def test_who_would_miss_its_deadline_even_so_is_dropped_where_its_tier_allows_it() -> None:
    """20 tokens at half a second: in vain before 10 s, by the clock of the pass."""
    for may_drop, now_s, strategy in (
        (frozenset({BACKGROUND}), 40.1, Strategy.DROP),
        (frozenset({BACKGROUND}), 39.0, Strategy.RECOMPUTE),
        (frozenset({STANDARD}), 40.1, Strategy.RECOMPUTE),
    ):
        world = World(TierSettings(may_drop=may_drop), SWAPS)
        world.wait("ba1", 100, deadline_s=50.0)
        assert world.pass_() == ["ba1"]
        world.running["ba1"] = Resident("ba1", BACKGROUND, 100, 100, 0)
        world.wait("pa1", 50)
        world.admission.begin_pass(now_s)
        assert strategies(world.next()) == {"ba1": strategy}


def test_one_preemption_too_many_ends_it_where_that_is_how_it_is_set() -> None:
    """Though its tier does not allow drops: the client gets an error that says why."""
    world = World(TierSettings(preemptions_max=1, at_limit="end"))
    world.wait("ba1", 100)
    assert world.pass_() == ["ba1"]
    for number, exhausted in ((1, False), (2, True)):
        world.running["ba1"] = Resident("ba1", BACKGROUND, 100, 100, 0)
        world.wait(f"pa{number}", 50)
        plan = world.next()
        assert plan is not None
        assert [(each.strategy is Strategy.DROP, each.exhausted) for each in plan.evictions] == [(exhausted, exhausted)]
        world.policy.preempt("ba1")
        del world.running["ba1"]
        world.policy.cancel(f"pa{number}")
        world.policy.admit("ba1")


# ── The reserve ───────────────────────────────────────────────────────────────────────────────────────────────────────

RESERVE = TierSettings(premium_reserve=0.3, preemption=False)


def test_only_premium_and_the_system_take_reserved_blocks() -> None:
    for name, fits in (("sa1", 70), ("ba1", 70), ("pa1", 100), ("ya1", 100)):
        for blocks in (fits, fits + 1):
            world = World(RESERVE)
            world.wait(name, blocks)
            assert world.pass_() == ([name] if blocks == fits else [])
        assert world.admission.blocks_max(TIER[name[0]], 100) == fits


def test_what_premium_holds_of_it_is_reserved_no_more() -> None:
    for held, fits in ((10, 70), (30, 70), (45, 55)):
        for blocks in (fits, fits + 1):
            world = World(RESERVE)
            world.run("pz1", held)
            world.wait("sa1", blocks)
            assert world.pass_() == (["sa1"] if blocks == fits else [])


def test_the_reserve_is_rounded_up() -> None:
    world = World(RESERVE, blocks_total=9)
    world.wait("sa1", 6)
    world.wait("sb1", 1)
    assert world.pass_() == ["sa1"]


def test_a_standard_request_that_does_not_fit_beside_the_reserve_lets_premium_go_on() -> None:
    world = World(RESERVE)
    world.run("sz1", 60)
    world.wait("sa1", 20)
    world.wait("pa1", 10, now_s=21.0)
    world.admission.begin_pass(21.0)
    assert [head.request_id for head in world.policy.heads()] == ["sa1", "pa1"]
    assert world.pass_() == ["pa1"]


def test_and_is_passed_by_nobody_else() -> None:
    """Neither by others of its tier nor by a less urgent one that would fit: it would starve behind small ones."""
    world = World(RESERVE)
    world.run("sz1", 60)
    world.wait("sa1", 20)
    world.wait("sb1", 5)
    world.wait("ba1", 5)
    world.wait("bb1", 5)
    assert world.pass_() == []
    world.wait("pa1", 25, now_s=21.0)
    world.admission.begin_pass(21.0)
    assert [head.request_id for head in world.policy.heads()] == ["sa1", "pa1", "ba1"]
    assert world.pass_() == ["pa1"]


def test_background_that_is_owed_is_not_passed_by_standard_on_account_of_the_reserve() -> None:
    world = World(TierSettings(premium_reserve=0.3, preemption=False, shares={BACKGROUND: 0.15}, share_slack=0.0))
    world.run("sz1", 60)
    world.wait("ba1", 20)
    world.wait("sa1", 5)
    world.policy.decoded(10)
    assert [head.request_id for head in world.policy.heads()] == ["ba1", "sa1"]
    assert world.pass_() == []


def test_premium_passes_nobody_once_it_holds_its_reserve_in_this_very_pass_too() -> None:
    world = World(RESERVE)
    world.run("sz1", 55)
    world.wait("sa1", 20)
    world.admission.begin_pass(11.0)
    for tenant in "abcd":
        world.wait(f"p{tenant}1", 15, now_s=11.0)
    assert [head.request_id for head in world.policy.heads()] == ["sa1", "pa1"]
    assert world.pass_() == ["pa1", "pb1"], "15 + 15 are all of the reserve; the other 15 free blocks are sa1's"


def test_one_that_makes_all_its_room_goes_past_one_that_waits_for_some() -> None:
    """sa1 waits for a slot, which it may take from nobody; premium takes that of sz1, which sa1 could not have had."""
    world = World(TierSettings(premium_reserve=0.3), slots_free=1)
    world.run("sz1", 60)
    world.wait("sa1", 20)
    world.wait("pa1", 1, now_s=21.0)
    world.admission.begin_pass(21.0)
    assert [head.request_id for head in world.policy.heads()] == ["sa1", "pa1"]
    assert world.pass_() == ["-sz1", "pa1"]


def test_one_that_would_need_some_of_the_room_that_gathers_does_not() -> None:
    """Those who run have 90 together, it needs 95: the 10 that are free gather for sa1."""
    world = World(TierSettings(), slots_free=2)
    world.run("sz1", 20)
    world.run("sy1", 70)
    world.wait("sa1", 40)
    world.wait("pa1", 95, now_s=21.0)
    world.admission.begin_pass(21.0)
    assert [head.request_id for head in world.policy.heads()] == ["sa1", "pa1"]
    assert world.pass_() == []


def test_victims_make_room_beside_the_reserve() -> None:
    """10 free and 30 reserved: sa1 needs 20 there, so 40 have to come free, not 10."""
    world = World(TierSettings(premium_reserve=0.3))
    world.run("ba1", 30)
    world.run("bb1", 35, generated=3)
    world.run("sz1", 25)
    world.wait("sa1", 20)
    plan = world.next()
    assert sorted(strategies(plan)) == ["ba1", "bb1"]
    world.wait("pa1", 20)
    assert sorted(strategies(world.next())) == ["ba1"]


# ── Deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_deadline_is_told_once_when_it_has_passed_waiting_or_running() -> None:
    world = World()
    for name, deadline_s in (("pa1", 20.0), ("pb1", 10.0), ("pc1", inf), ("pd1", 10.0)):
        world.wait(name, 1, deadline_s)
    world.policy.admit("pb1")
    for now_s, expired in ((9.9, []), (10.0, ["pb1", "pd1"]), (10.0, []), (99.0, ["pa1"]), (1e9, [])):
        world.admission.begin_pass(now_s)
        assert world.admission.pop_expired() == expired


def test_who_is_gone_expires_no_more() -> None:
    world = World()
    world.wait("pa1", 1, 10.0)
    world.policy.remove("pa1")
    world.admission.begin_pass(11.0)
    assert world.admission.pop_expired() == []


@pytest.mark.parametrize("deadline_s", [30.0, inf])
def test_an_id_that_comes_again_has_its_new_deadline(deadline_s: float) -> None:
    world = World()
    world.wait("pa1", 1, 10.0)
    world.policy.remove("pa1")
    world.wait("pa1", 1, deadline_s)
    world.admission.begin_pass(11.0)
    assert world.admission.pop_expired() == []
    world.admission.begin_pass(31.0)
    assert world.admission.pop_expired() == ([] if deadline_s == inf else ["pa1"])


def test_a_request_that_is_refused_is_not_watched() -> None:
    admission = Admission(make_policy("rpm:1"))
    for name in ("a1", "a2"):
        admission.enqueue(QueueRequest(name, "a", 1, deadline_s=10.0), 0.0)
    admission.begin_pass(11.0)
    assert admission.pop_expired() == ["a1"]


def test_how_often_one_was_preempted_is_known() -> None:
    world = World()
    world.run("ba1", 10)
    world.policy.preempt("ba1")
    assert world.admission.preemptions("ba1") == 1
    assert Admission(make_policy("fcfs")).preemptions("ba1") == 0


def test_the_policy_is_told_the_time_of_the_pass() -> None:
    world = World()
    world.wait("ba1", 10)
    world.admission.begin_pass(5.0)
    assert world.policy.rank_of("ba1") == 1.5
