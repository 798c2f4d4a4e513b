"""Passes of admissions over a given budget: which requests enter, which are evicted for them, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import inf

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.admission import Admission, AdmissionPlan, Obstacle
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import UNCALIBRATED, Calibration, Resident, Strategy
from gpu_worker.policies.step_tokens import Prefill, StepTokens
from gpu_worker.policies.tiers import TierSettings

PREMIUM, STANDARD, BACKGROUND, SYSTEM = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND, Tier.SYSTEM
TIER = {"p": PREMIUM, "s": STANDARD, "b": BACKGROUND, "y": SYSTEM}
SWAPS = Calibration(1.0, 1e9, 1e9, 0.0, 1.0, 0.0, 0.0, 0.5)
"""One byte per token. A swap costs almost nothing, a recompute 1 s, a step 0.5 s."""


@dataclass
class World:
    """A budget and its admissions, which carries out the plans. The first letter of a request's id is its tier, the
    second its tenant. A block holds one token."""

    settings: TierSettings = field(default_factory=TierSettings)
    calibration: Calibration = UNCALIBRATED
    blocks_total: int = 100
    slots_free: int = 8
    swap_bytes_free: float = 0.0
    needed: dict[str, int] = field(default_factory=dict)
    running: dict[str, Resident] = field(default_factory=dict)
    entered: set[str] = field(default_factory=set)
    """Admitted in this pass."""
    holders: dict[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Of each waiting request that needs an adapter: the users of each loaded one."""
    obstacles: dict[str, Obstacle] = field(default_factory=dict)
    step_tokens: StepTokens | None = None

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

    def obstacle(self, request_id: str) -> Obstacle | None:
        return self.obstacles.get(request_id)

    def adapter_holders(self, request_id: str) -> Sequence[Sequence[str]]:
        return self.holders.get(request_id, ())

    def blocks_held_by(self, tiers: Collection[Tier]) -> int:
        return sum(resident.blocks for resident in self.running.values() if resident.tier in tiers)

    def residents(self, wanted: Callable[[str], bool]) -> list[Resident]:
        return [one for name, one in self.running.items() if name not in self.entered and wanted(name)]

    def wait(self, request_id: str, blocks: int, deadline_s: float = inf, now_s: float = 0.0) -> None:
        self.needed[request_id] = blocks
        request = QueueRequest(
            request_id, request_id[1], 10, tier=TIER[request_id[0]], output_tokens_max=20, deadline_s=deadline_s
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
        """Return the admitted requests; before each, with a minus, its victims."""
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
            self.running[name] = Resident(name, plan.request.tier, self.needed[name], self.needed[name], 0)
            self.entered.add(name)
            self.slots_free -= 1
            entered.append(name)
        self.entered.clear()
        return entered


def strategies(plan: AdmissionPlan | None) -> dict[str, Strategy]:
    assert plan is not None
    return {eviction.resident.request_id: eviction.strategy for eviction in plan.evictions}


def test_planning_changes_nothing() -> None:
    world = World()
    world.run("ba1", 80)
    world.wait("pa1", 50)
    assert world.next() == world.next()
    assert world.policy.running == 1


def test_without_preemption_no_request_is_evicted() -> None:
    world = World(TierSettings(preemption=False))
    world.run("ba1", 100)
    world.wait("pa1", 1)
    assert world.next() is None


def test_a_policy_without_tiers_admits_in_its_order_and_never_evicts() -> None:
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


# ── Strategies ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_several_victims_share_the_free_swap_space() -> None:
    world = World(calibration=SWAPS, swap_bytes_free=70.0)
    for name, blocks in (("ba1", 40), ("bb1", 40), ("bc1", 20)):
        world.run(name, blocks, generated=int(blocks == 20))
    world.wait("pa1", 100)
    expected = {"ba1": Strategy.SWAP, "bb1": Strategy.RECOMPUTE, "bc1": Strategy.SWAP}
    assert strategies(world.next()) == expected, "40 of 70 fit; then 40 do not, but 20 do"


def test_a_swap_may_use_all_free_swap_space() -> None:
    for free, strategy in ((40.0, Strategy.SWAP), (39.0, Strategy.RECOMPUTE)):
        world = World(calibration=SWAPS, swap_bytes_free=free)
        world.run("ba1", 40)
        world.wait("pa1", 70)
        assert strategies(world.next()) == {"ba1": strategy}


def test_a_victim_that_would_miss_its_deadline_is_dropped_if_its_tier_allows_it() -> None:
    """20 tokens take 10 s, so less than 10 s before the deadline it is useless to continue."""
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


def test_at_limit_end_drops_the_victim_at_one_preemption_too_many() -> None:
    """Even though its tier does not allow drops."""
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


def test_only_premium_and_system_requests_take_reserved_blocks() -> None:
    for name, fits in (("sa1", 70), ("ba1", 70), ("pa1", 100), ("ya1", 100)):
        for blocks in (fits, fits + 1):
            world = World(RESERVE)
            world.wait(name, blocks)
            assert world.pass_() == ([name] if blocks == fits else [])
        assert world.admission.blocks_max(TIER[name[0]], 100) == fits


def test_a_request_that_evicts_for_all_its_blocks_passes_a_waiting_one() -> None:
    """sa1 waits for a slot and may evict no request. Premium takes the slot of sz1, which sa1 could not have had."""
    world = World(TierSettings(premium_reserve=0.3), slots_free=1)
    world.run("sz1", 60)
    world.wait("sa1", 20)
    world.wait("pa1", 1, now_s=21.0)
    world.admission.begin_pass(21.0)
    assert [head.request_id for head in world.policy.heads()] == ["sa1", "pa1"]
    assert world.pass_() == ["-sz1", "pa1"]


# ── More urgent requests before one that lacks room ─────────────────────────────────────────────────────────────────


def aged(world: World, blocks: int = 60) -> None:
    """Let a standard request, which waits for blocks, come before premium by aging."""
    world.wait("sa1", blocks)
    world.wait("pa1", 10, now_s=21.0)
    world.admission.begin_pass(21.0)
    assert [head.request_id for head in world.policy.heads()] == ["sa1", "pa1"]


def test_premium_does_not_wait_for_an_aged_request_that_lacks_blocks() -> None:
    world = World()
    world.run("sz1", 50)
    aged(world)
    assert world.pass_() == ["pa1"]


def test_what_is_more_urgent_leaves_room_for_the_request_that_it_passes() -> None:
    """So the giant waits for requests of its own tier alone, however many premium requests come."""
    world = World(TierSettings(preemption=False), slots_free=50)
    world.run("sz1", 50)
    aged(world)
    for number in range(2, 9):
        world.wait(f"pa{number}", 10, now_s=21.0)
    assert world.pass_() == ["pa1", "pa2", "pa3", "pa4"], "40 of 100 blocks: the giant needs 60"
    del world.running["sz1"]
    world.policy.finish("sz1")
    assert world.next() == AdmissionPlan(world.policy.record("sa1").request)


def test_what_is_more_urgent_leaves_a_slot_for_the_request_that_it_passes() -> None:
    """An image has no room in this step. If premium took the last slot, the request would wait for premium."""
    for slots, entered in ((2, []), (3, ["pa1"])):
        world = World(slots_free=slots)
        world.run("pz1", 10)
        aged(world, blocks=20)
        world.obstacles["sa1"] = Obstacle.BLOCKED
        assert world.pass_() == entered


def test_a_less_urgent_request_never_passes_one_that_lacks_room() -> None:
    world = World(TierSettings(preemption=False))
    world.run("sz1", 50)
    world.wait("sa1", 60)
    world.wait("ba1", 1)
    assert world.pass_() == []


def test_premium_takes_the_step_that_has_no_token_for_an_aged_prompt() -> None:
    """The aged prompt fits, but running prompts have all tokens of the step; premium pauses them."""
    world = World()
    world.run("sz1", 20)
    aged(world, blocks=20)
    world.step_tokens = StepTokens(100, [Prefill("sz1", STANDARD, 500)])
    plan = world.next()
    assert plan is not None
    assert (plan.request.request_id, plan.evictions) == ("pa1", ())


def test_a_request_without_room_of_the_engine_is_blocked_and_evicts_none() -> None:
    world = World()
    world.run("ba1", 100)
    world.wait("sa1", 10)
    world.obstacles["sa1"] = Obstacle.BLOCKED
    assert world.next() is None


# ── Deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_past_its_deadline_is_reported_once_waiting_or_running() -> None:
    world = World()
    for name, deadline_s in (("pa1", 20.0), ("pb1", 10.0), ("pc1", inf), ("pd1", 10.0)):
        world.wait(name, 1, deadline_s)
    world.policy.admit("pb1")
    for now_s, expired in ((9.9, []), (10.0, ["pb1", "pd1"]), (10.0, []), (99.0, ["pa1"]), (1e9, [])):
        world.admission.begin_pass(now_s)
        assert world.admission.pop_expired() == expired


def test_a_removed_request_does_not_expire() -> None:
    world = World()
    world.wait("pa1", 1, 10.0)
    world.policy.remove("pa1")
    world.admission.begin_pass(11.0)
    assert world.admission.pop_expired() == []


@pytest.mark.parametrize("deadline_s", [30.0, inf])
def test_a_reused_id_has_its_new_deadline(deadline_s: float) -> None:
    world = World()
    world.wait("pa1", 1, 10.0)
    world.policy.remove("pa1")
    world.wait("pa1", 1, deadline_s)
    world.admission.begin_pass(11.0)
    assert world.admission.pop_expired() == []
    world.admission.begin_pass(31.0)
    assert world.admission.pop_expired() == ([] if deadline_s == inf else ["pa1"])


def test_the_deadline_of_a_refused_request_is_not_watched() -> None:
    admission = Admission(make_policy("rpm:1"))
    for name in ("a1", "a2"):
        admission.enqueue(QueueRequest(name, "a", 1, deadline_s=10.0), 0.0)
    admission.begin_pass(11.0)
    assert admission.pop_expired() == ["a1"]


def test_a_pass_sets_the_time_of_the_policy() -> None:
    world = World()
    world.wait("ba1", 10)
    world.admission.begin_pass(5.0)
    assert world.policy.rank_of("ba1") == 1.5


def test_an_adapter_comes_in_for_all_users_of_another_or_for_none() -> None:
    world = World()
    for name in ("b1", "b2", "b3", "s1"):
        world.run(name, 10)
    world.wait("p1", 10)
    world.holders["p1"] = [["b1", "b2"], ["b3"]]
    plan = world.next()
    assert plan is not None
    assert [eviction.resident.request_id for eviction in plan.evictions] == ["b3"]
    world.running["p0"] = Resident("p0", PREMIUM, 10, 10, 0)
    world.wait("p0", 10)
    world.policy.admit("p0")
    world.holders["p1"] = [["b1", "p0"]]
    assert world.next() is None
    head = QueueRequest("p1", "1", 10, tier=PREMIUM)
    assert world.admission.admissible(head, world) is Obstacle.PASSED_OVER


def test_the_users_of_an_adapter_count_for_the_blocks_that_lack() -> None:
    world = World(blocks_total=40)
    for name in ("b1", "b2", "b3", "b4"):
        world.run(name, 10)
    world.wait("p1", 20)
    world.holders["p1"] = [["b2"]]
    plan = world.next()
    assert plan is not None
    victims = [eviction.resident.request_id for eviction in plan.evictions]
    assert victims[0] == "b2"
    assert len(victims) == 2
