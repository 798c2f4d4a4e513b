"""Tiers, preemption and admission under Hypothesis: random orders of events on an engine with few blocks."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.preemption import UNCALIBRATED, Calibration
from gpu_worker.policies.tiers import TierSettings
from tests.support.duration import at_depth
from tests.support.queue.block_model import CALIBRATION, BlockModel, Machine
from tests.support.queue.plan_rules import plan_is_right

numbers = st.integers(0, 1_000)
arrivals = st.tuples(
    st.integers(0, 3), st.integers(1, 16), st.integers(1, 16), st.sampled_from([float("inf"), float("inf"), 5.0])
)
"""Tenant, prompt, output, patience in seconds."""
tier_settings = st.builds(
    TierSettings,
    shares=st.sampled_from(
        [{Tier.PREMIUM: 0.5, Tier.STANDARD: 0.35, Tier.BACKGROUND: 0.15}, {Tier.BACKGROUND: 0.4}, {}]
    ),
    share_slack=st.sampled_from([0.0, 16.0, 4096.0]),
    preemptions_max=st.sampled_from([3, 2, 1, 0]),
    at_limit=st.sampled_from(["promote", "end"]),
    may_drop=st.sets(st.sampled_from([Tier.STANDARD, Tier.BACKGROUND])).map(frozenset),
    lead_max=st.sampled_from([float("inf"), 8.0]),
    premium_reserve=st.sampled_from([0.0, 0.0, 0.3]),
)
machines = st.builds(
    Machine,
    blocks=st.integers(6, 16),
    block_tokens=st.integers(1, 4),
    slots=st.integers(2, 5),
    swap_bytes=st.sampled_from([20.0, 1e6, 0.0]),
)


class TierMachine(RuleBasedStateMachine):
    @initialize(settings=tier_settings, machine=machines, calibration=st.sampled_from([CALIBRATION, UNCALIBRATED]))
    def start(self, settings: TierSettings, machine: Machine, calibration: Calibration) -> None:
        self.model = BlockModel(settings, machine, calibration, seen=plan_is_right)
        self.protected_at: dict[str, int] = {}

    @rule(tier=st.sampled_from(Tier), what=st.lists(arrivals, min_size=1, max_size=4))
    def some_arrive(self, tier: Tier, what: list[tuple[int, int, int, float]]) -> None:
        for tenant, input_tokens, output_tokens, patience_s in what:
            deadline_s = self.model.now_s + patience_s
            request = QueueRequest("", f"t{tenant}", input_tokens, 2.0**tenant, tier=tier, deadline_s=deadline_s)
            self.model.arrive(request, output_tokens)

    @rule(tenths=st.integers(0, 80))
    def time_passes(self, tenths: int) -> None:
        self.model.now_s += tenths / 10

    @rule()
    def admits(self) -> None:
        self.model.pass_()

    @rule(steps=st.integers(1, 4), at_once=st.booleans(), every=st.integers(1, 3))
    def works(self, steps: int, at_once: bool, every: int) -> None:
        """Run steps, with a pass of admissions every `every` steps."""
        for number in range(steps):
            if number % every == 0:
                self.model.pass_()
            self.model.step(at_once=at_once)

    @precondition(lambda self: self.model.waiting or self.model.running)
    @rule(number=numbers)
    def a_request_leaves(self, number: int) -> None:
        here = [*self.model.waiting, *self.model.running]
        self.model.remove(here[number % len(here)])

    @precondition(lambda self: any(live.entered for live in self.model.running.values()))
    @rule(number=numbers)
    def an_admission_is_undone(self, number: int) -> None:
        fresh = [request_id for request_id, live in self.model.running.items() if live.entered]
        self.model.undo_admit(fresh[number % len(fresh)])

    @invariant()
    def holds(self) -> None:
        self.model.check()

    @invariant()
    def a_promoted_request_is_not_evicted_again(self) -> None:
        if self.model.settings.at_limit == "end":
            return
        for request_id, live in (*self.model.waiting.items(), *self.model.running.items()):
            if live.evicted + live.native >= self.model.settings.preemptions_max:
                assert self.protected_at.setdefault(request_id, live.evicted) == live.evicted

    @invariant()
    def only_at_limit_end_drops_exhausted_requests(self) -> None:
        assert self.model.settings.at_limit == "end" or "exhausted" not in self.model.ended.values()

    def teardown(self) -> None:
        """Every request ends, because each step generates at least one token."""
        if not hasattr(self, "model"):
            return
        lives = [*self.model.waiting.values(), *self.model.running.values()]
        for _ in range(sum(live.output_tokens - live.generated for live in lives)):
            self.model.pass_()
            self.model.step()
            self.model.check()
        assert not self.model.waiting
        assert not self.model.running


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=at_depth(100, 400), stateful_step_count=40, deadline=None)
