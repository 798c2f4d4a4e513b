"""The paged engine: blocks are conserved, each request ends once and is charged for what it generated. A share is a
floor, so that the least urgent request still ends; and the parts of the model by themselves.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.modelled.paged.kv_budget import PagedKvBudget, PagedSequence
from gpu_worker.engines.modelled.paged.model import PagedBatch, PagedModel
from gpu_worker.engines.modelled.paged.profile import Copies
from gpu_worker.policies.admission import RESERVED_FOR, Admission
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import Resident, Strategy, sort_by_protection
from gpu_worker.policies.step_tokens import StepTokens
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.drive import drive
from headgate.simulator.engines.chunked_prefill import ChunkedPrefillEngine
from headgate.simulator.engines.interface import Observer, SimulatedEngine
from headgate.simulator.engines.paged import PagedEngine, paged_profile
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.measures.collector import TierCollector
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

WHOLE = load_profile().model_copy(
    update={"pool_tokens": 480, "minibatch_tokens_max": 200, "steps_between_admissions": 3, "prompt_extra_tokens": 0}
)
CHUNKED = load_profile("a100-llama3-8b-chunked").model_copy(update={"pool_tokens": 480, "chunk_tokens": 48})
SWAP = {
    "kv_bytes_per_token": 1000.0,
    "copy_out_bytes_per_s": 1e7,
    "copy_in_bytes_per_s": 1e7,
    "copy_base_s": 0.001,
    "swap_bytes": 150_000.0,
}


class Ends(TierCollector):
    """The requests that ended, and how often."""

    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS, 0.0)
        self.ends: Counter[str] = Counter()
        self.ended: list[SimRequest] = []

    def on_served(self, request: SimRequest) -> None:
        super().on_served(request)
        self.ends[request.request_id] += 1
        self.ended.append(request)

    def on_rejected(self, request: SimRequest) -> None:
        super().on_rejected(request)
        self.ends[request.request_id] += 1
        self.ended.append(request)


class Checked(PagedEngine):
    """Checks every block before and after each step, and that protected requests are not evicted."""

    def _begin_step(self) -> None:
        batch = self.model.batch
        protected = {one for one in batch.running if one.protected}
        super()._begin_step()
        step = self._step
        assert step is not None
        assert protected <= set(batch.running)
        self.check()
        for one in step.decoding:
            assert one.length <= one.blocks * self.profile.block_tokens
        assert len(set(step.decoding)) == len(step.decoding)
        budget = self.profile.chunk_tokens
        if budget is not None:
            computed = len(step.decoding) + sum(tokens for _, tokens in step.parts)
            assert computed <= max(budget, len(step.decoding) + 1)

    def _end_step(self) -> list[SimRequest]:
        began_s = self.now_s
        finished = super()._end_step()
        assert self.now_s > began_s
        self.check()
        return finished

    def check(self) -> None:
        batch = self.model.batch
        budget, running = batch.kv_budget, batch.running
        assert len(set(running)) == len(running)
        assert budget.free >= 0
        assert budget.free + sum(one.blocks for one in running) == budget.blocks_total
        outside = sum(one.blocks for one in running if one.request.tier not in RESERVED_FOR)
        assert outside <= budget.blocks_total - budget.reserve
        assert sum(one.blocks_most for one in running if one.protected) <= budget.blocks_total
        assert self.profile.batch_max is None or len(running) <= self.profile.batch_max
        assert batch.kv_tokens == sum(one.held for one in running)
        assert budget.swap_bytes_used <= self.profile.swap_bytes
        assert self.policy.running == len(running)
        assert self.policy.waiting == self.waiting
        for one in running:
            assert one.preemptions <= batch.admission.settings.preemptions_max or not tiered(self)


def tiered(engine: SimulatedEngine) -> bool:
    return isinstance(engine.policy, TieredQueue)


def play(arrivals: list[Arrival], engine: SimulatedEngine) -> Ends:
    ends = Ends()
    drive(arrivals, engine, ends)
    assert (engine.kv_tokens, engine.running, engine.waiting, engine.saturation) == (0, 0, 0, 0.0)
    assert len(ends.ended) == len(arrivals)
    assert set(ends.ends.values()) <= {1}
    assert all((request.rejected is None) == request.served for request in ends.ended)
    return ends


def made(profile: EngineProfile, tiers: TierSettings, policy: str = "tiered:vtc") -> Checked:
    return Checked(profile, make_policy(policy, tiers=tiers))


def in_order(drawn: list[tuple[float, str, str, int, int]]) -> list[Arrival]:
    now_s, arrivals = 0.0, []
    for gap_s, tenant, tier, prompt, output in drawn:
        now_s += gap_s
        arrivals.append(Arrival(now_s, tenant, prompt, output, tier=tier))
    return arrivals


workloads = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.02, 0.3]),
        st.sampled_from("abc"),
        st.sampled_from([tier.value for tier in Tier]),
        st.integers(1, 150),
        st.integers(0, 120),
    ),
    max_size=30,
).map(in_order)
profiles = st.builds(
    lambda base, batch_max, swap, watermark: base.model_copy(
        update={"batch_max": batch_max, "watermark": watermark, **(SWAP if swap else {})}
    ),
    st.sampled_from([WHOLE, CHUNKED]),
    st.sampled_from([None, 3]),
    st.booleans(),
    st.sampled_from([0.0, 0.1]),
)
tier_settings = st.builds(
    TierSettings,
    share_slack=st.sampled_from([0.0, 200.0, 4096.0]),
    preemption=st.booleans(),
    preemptions_max=st.integers(0, 3),
    at_limit=st.sampled_from(["promote", "end"]),
    may_drop=st.sampled_from([frozenset(), frozenset({Tier.BACKGROUND})]),
    lead_max=st.sampled_from([math.inf, 100.0]),
    premium_reserve=st.sampled_from([0.0, 0.3]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workload=workloads, profile=profiles, tiers=tier_settings, policy=st.sampled_from(["tiered:vtc", "vtc", "fcfs"]))
def test_blocks_are_conserved_and_every_request_ends_once(
    workload: list[Arrival], profile: EngineProfile, tiers: TierSettings, policy: str
) -> None:
    engine = made(profile, tiers, policy)
    ends = play(workload, engine)
    assert set(ends.rejections) <= {"too_large", "dropped", "exhausted"}
    if policy != "tiered:vtc" or (tiers.at_limit == "promote" and not tiers.may_drop):
        assert set(ends.rejections) <= {"too_large"}
    counts = engine.counts
    dropped = sum(count for name, count in ends.rejections.items() if name != "too_large")
    evicted = counts.preemptions.total() + counts.native
    assert counts.resumed == evicted - dropped
    assert counts.swapped_in_bytes == counts.swapped_out_bytes
    assert engine.model.batch.kv_budget.swap_bytes_used == 0


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workload=workloads, profile=profiles, tiers=tier_settings)
def test_what_was_charged_is_h_of_the_true_lengths(
    workload: list[Arrival], profile: EngineProfile, tiers: TierSettings
) -> None:
    engine = made(profile, replace(tiers, at_limit="promote", may_drop=frozenset()))
    ends = play(workload, engine)
    served: Counter[str] = Counter()
    for request in ends.ended:
        if request.served:
            served[request.tenant] += request.arrival.input_tokens + 2 * request.arrival.output_tokens
    assert {name: got.service for name, got in engine.policy.received.items() if got.service} == pytest.approx(served)


def crowd(count: int, tier: str, *, prompt: int = 60, output: int = 100, tenant: str = "a") -> list[Arrival]:
    return [Arrival(0.0, tenant, prompt, output, tier=tier) for _ in range(count)]


def full(profile: EngineProfile) -> EngineProfile:
    """Short of slots, not of blocks."""
    return profile.model_copy(update={"batch_max": 4, "pool_tokens": 2000})


@pytest.mark.parametrize("profile", [WHOLE, CHUNKED], ids=["whole", "chunked"])
def test_a_premium_request_takes_the_place_of_a_background_one(profile: EngineProfile) -> None:
    arrivals = [*crowd(8, "background"), Arrival(1.0, "p", 60, 10, tier="premium")]
    waits = {}
    for preemption in (True, False):
        engine = made(full(profile), TierSettings(preemption=preemption))
        ends = play(arrivals, engine)
        waits[preemption] = next(r.ttft_s for r in ends.ended if r.tier is Tier.PREMIUM)
        assert engine.counts.preemptions.total() == engine.counts.preemptions[Strategy.RECOMPUTE, Tier.BACKGROUND]
        assert bool(engine.counts.preemptions) == preemption
    assert waits[True] < waits[False] / 2


def test_what_is_swapped_is_not_computed_again() -> None:
    arrivals = [*crowd(8, "background"), *(Arrival(1.0 + n / 2, "p", 60, 10, tier="premium") for n in range(3))]
    counts = []
    for swap in (SWAP, {}):
        engine = made(full(WHOLE).model_copy(update=swap), TierSettings())
        play(arrivals, engine)
        counts.append(engine.counts)
    swapped, recomputed = counts
    assert swapped.preemptions[Strategy.SWAP, Tier.BACKGROUND] > 0
    assert swapped.swapped_out_bytes == swapped.swapped_in_bytes > 0
    assert recomputed.swapped_out_bytes == 0
    assert swapped.recomputed_tokens < recomputed.recomputed_tokens


def test_one_that_is_ended_says_why() -> None:
    flood = [Arrival(0.4 * n, "p", 60, 30, tier="premium") for n in range(40)]
    arrivals = sorted([*crowd(8, "background"), *flood], key=lambda arrival: arrival.arrival_s)
    ends = play(arrivals, made(WHOLE, TierSettings(preemptions_max=0, at_limit="end")))
    assert set(ends.rejections) == {"exhausted"}
    assert all(r.tier is not Tier.PREMIUM for r in ends.ended if r.rejected)


@pytest.mark.parametrize("profile", [WHOLE, CHUNKED], ids=["whole", "chunked"])
def test_short_of_blocks_the_engine_evicts_the_last_and_promotes_in_the_end(profile: EngineProfile) -> None:
    engine = made(profile, TierSettings(preemptions_max=1))
    ends = play(crowd(12, "standard", prompt=20, output=120), engine)
    assert engine.counts.native > 0
    assert ends.rejections == {}


@pytest.mark.parametrize("chunked", [True, False])
def test_where_nothing_is_short_it_is_the_engine_without_evictions(chunked: bool) -> None:
    random = Random(3)
    arrivals = [
        Arrival(n * 0.05, "one", random.randrange(1, 400), random.randrange(0, 200), tier="standard")
        for n in range(300)
    ]
    base = load_profile("a100-llama3-8b-chunked") if chunked else load_profile()
    profile = base.model_copy(update={"pool_tokens": 1_000_000, "batch_max": None, "prefill_curve": ()})
    plain = (ChunkedPrefillEngine if chunked else SeparatePrefillEngine)(profile, make_policy("vtc"))
    paged = made(profile, TierSettings(preemption=False))
    times = []
    for engine in (plain, paged):
        ended = sorted(play(arrivals, engine).ended, key=lambda request: int(request.request_id))
        times.append([time for r in ended for time in (r.admitted_s, r.first_token_s, r.finish_s)])
    assert times[1] == pytest.approx(times[0], rel=1e-9)
    assert paged.counts.native == 0


def test_an_engine_that_loses_a_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the test."""
    leave = PagedKvBudget.leave

    def lose_a_block(self: PagedKvBudget, sequence: PagedSequence) -> None:
        leave(self, sequence)
        self.free -= 1

    monkeypatch.setattr(PagedKvBudget, "leave", lose_a_block)
    with pytest.raises(AssertionError):
        play(crowd(2, "standard"), made(WHOLE, TierSettings()))


def test_background_ends_under_an_endless_premium_flood_within_its_bound() -> None:
    """From its arrival to its end all tenants together receive at most (its own + 2 slack + U) / share. U is what a
    full batch may receive: at most three service units for each token of the pool."""
    slack, own = 400.0, 60 + 2 * 30
    flood = [Arrival(n * 0.05, f"p{n % 3}", 60, 60, tier="premium") for n in range(1500)]
    late = Arrival(5.0, "b", 60, 30, tier="background")
    engine = made(WHOLE, TierSettings(share_slack=slack))
    admitted = Last(engine)
    engine._observer = admitted
    ends = play(sorted([*flood, late], key=lambda arrival: arrival.arrival_s), engine)
    one = next(r for r in ends.ended if r.tier is Tier.BACKGROUND)
    assert one.served
    assert one.finish_s < ends.total_time_s / 4
    assert admitted.given <= (own + 2 * slack + 3 * WHOLE.pool_tokens) / 0.15


class Last(Observer):
    """What all tenants received from the background request's arrival to its end."""

    def __init__(self, engine: PagedEngine) -> None:
        assert isinstance(engine.policy, TieredQueue)
        self._shares = engine.policy.shares
        self._from = 0.0
        self.given = 0.0

    def on_enqueued(self, request: SimRequest, now_s: float) -> None:
        if request.tier is Tier.BACKGROUND:
            self._from = self._shares.total

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        if request.tier is Tier.BACKGROUND:
            self.given = self._shares.total - self._from


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
    batch.admit(StepTokens(10_000, ()), 0.0, begun=False)
    assert background is not None
    background.left = 0  # its prompt is computed
    batch.kv_tokens = background.held
    batch.enqueue(QueueRequest("p", "p", 10, tier=Tier.PREMIUM, output_tokens_max=10), 1.0)
    batch.admit(StepTokens(10_000, ()), 1.0, begun=False)
    assert batch.kv_budget.swap_bytes_used == background.swap_bytes > 0
    batch.cancel(background)
    assert (batch.kv_budget.swap_bytes_used, batch.waiting, len(batch.running)) == (0.0, 0, 1)


def giant_beside_premium() -> tuple[PagedModel, PagedSequence]:
    """Return a model in which premium's request has just come while a giant prompt of background is computed."""
    model = PagedModel(paged_profile(load_profile("a100-llama3-8b-chunked")), Admission(make_policy("tiered:vtc")))
    giant = model.batch.enqueue(QueueRequest("b", "b", 60_000, tier=Tier.BACKGROUND, output_tokens_max=10), 0.0)
    assert giant is not None
    model.compute(model.plan(0.0))
    model.batch.enqueue(QueueRequest("p", "p", 300, tier=Tier.PREMIUM, output_tokens_max=10), 0.1)
    return model, giant


def test_a_giant_prompt_rests_for_a_more_urgent_request_and_keeps_its_blocks() -> None:
    model, giant = giant_beside_premium()
    first = model.plan(0.2)
    assert [(sequence.request.request_id, tokens) for sequence, tokens in first.parts] == [("p", 300)]
    model.compute(first)
    decode = model.plan(0.3)
    assert (len(decode.decoding), decode.parts, giant.left) == (1, [], 60_000 - 2048)
    assert giant in model.batch.running
    model.batch.enqueue(QueueRequest("waits", "b", 400_000, tier=Tier.BACKGROUND, output_tokens_max=10), 0.3)
    assert model.plan(0.4).parts == [(giant, 2047)]


def test_an_abort_in_prefill_is_charged_for_what_was_computed() -> None:
    model, giant = giant_beside_premium()
    model.batch.end(giant)
    received = model.batch.admission.policy.received["b"]
    assert received.service == received.input_tokens == 2048
