"""The engine that skips from event to event, compared with one that takes one step after another; and its rules."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Jitter, Observer
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival
from tests.support.simulator.stepwise_engine import StepwiseEngine

PROFILE = load_profile()
POLICIES = ("fcfs", "vtc", "lcf", "vtc-oracle", "vtc-predict", "vtc-cap:300", "drr:50")


class Recorder(Observer):
    def __init__(self) -> None:
        self.order: list[str] = []
        self.steps = 0
        self.requests: dict[str, SimRequest] = {}

    def on_admitted(self, request: SimRequest, now_s: float) -> None:
        self.order.append(request.request_id)
        self.requests[request.request_id] = request

    def on_decoded(self, steps: int, now_s: float) -> None:
        self.steps += steps


def play(arrivals: list[Arrival], policy: str, profile: EngineProfile, jitter: Jitter | None = None) -> Recorder:
    recorder = Recorder()
    engine = SeparatePrefillEngine(profile, make_policy(policy), observer=recorder, jitter=jitter)
    drive(arrivals, engine, Collector(WEIGHTED_TOKENS, 0.0))
    assert engine.kv_tokens == 0
    assert engine.running == engine.waiting == 0
    return recorder


class Kept(Collector):
    """Keeps the requests by id."""

    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS, 0.0)
        self.requests: dict[str, SimRequest] = {}

    def on_served(self, request: SimRequest) -> None:
        self.requests[request.request_id] = request


def play_silently(arrivals: list[Arrival], policy: str, profile: EngineProfile) -> dict[str, SimRequest]:
    """Play without an observer: the engine counts steps only when they are read."""
    kept = Kept()
    drive(arrivals, SeparatePrefillEngine(profile, make_policy(policy)), kept)
    return kept.requests


arrivals = st.builds(
    Arrival, st.floats(0, 20), st.sampled_from("abcd"), st.integers(1, 160), st.integers(0, 120)
)  # fmt: skip
profiles = st.builds(
    lambda pool, steps, minibatch, extra, batch, repeats, tenant, warm_up: PROFILE.model_copy(
        update={
            "pool_tokens": pool,
            "steps_between_admissions": steps,
            "minibatch_tokens_max": minibatch,
            "prompt_extra_tokens": extra,
            "batch_max": batch,
            "repeats_failed_attempts": repeats,
            "tenant_tokens": tenant,
            "warm_up_s": warm_up,
        }
    ),
    st.integers(200, 1200),
    st.integers(1, 12),
    st.integers(50, 400),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(1, 5)),
    st.booleans(),
    st.sampled_from((0, 32, 90)),
    st.sampled_from((0.0, 1.1)),
)


@given(st.lists(arrivals, min_size=1, max_size=25), st.sampled_from(POLICIES), profiles)
@settings(max_examples=150)
def test_the_schedule_is_that_of_one_step_after_another(
    arriving: list[Arrival], policy: str, profile: EngineProfile
) -> None:
    arriving.sort(key=lambda arrival: arrival.arrival_s)
    assert_same_schedule(arriving, policy, profile)


def assert_same_schedule(arriving: list[Arrival], policy: str, profile: EngineProfile) -> None:
    stepwise = StepwiseEngine(profile, make_policy(policy))
    stepwise.play(arriving)
    skipping, silent = play(arriving, policy, profile), play_silently(arriving, policy, profile)
    assert skipping.order == stepwise.order
    for one in stepwise.finished:
        for request in (skipping.requests[one.request_id], silent[one.request_id]):
            assert request.admitted_s == pytest.approx(one.admitted_s, rel=1e-9, abs=1e-9)
            assert request.first_token_s == pytest.approx(one.first_token_s, rel=1e-9, abs=1e-9)
            assert request.finish_s == pytest.approx(one.finish_s, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("policy", ["fcfs", "vtc", "lcf", "drr:50"])
@pytest.mark.parametrize("repeats", [True, False])
def test_the_schedule_is_the_same_where_tenants_come_and_go_under_overload(policy: str, repeats: bool) -> None:
    """Many arrivals find attempts that fail, and counters that rise."""
    random, now_s, arriving = Random(5), 0.0, list[Arrival]()
    for _ in range(150):
        now_s += random.expovariate(4.0)
        arriving.append(Arrival(now_s, random.choice("abcdefghijkl"), random.randint(1, 160), random.randint(1, 120)))
    steps = 10 if repeats else 1
    update = {"pool_tokens": 1200, "repeats_failed_attempts": repeats, "steps_between_admissions": steps}
    assert_same_schedule(arriving, policy, PROFILE.model_copy(update=update))


def test_one_request_alone_takes_what_the_profile_says() -> None:
    request = play([Arrival(5.0, "a", 100, 11)], "fcfs", PROFILE).requests["0"]
    prompt = 100 + PROFILE.prompt_extra_tokens
    (low, low_s), (high, high_s) = PROFILE.prefill_curve[:2]
    assert low <= prompt <= high
    prefill_s = low_s + (high_s - low_s) * (prompt - low) / (high - low) + PROFILE.overhead_s
    decode_s = 10 * (PROFILE.decode_base_s + PROFILE.overhead_s + PROFILE.decode_per_request_s)
    decode_s += PROFILE.decode_per_kv_token_s * sum(prompt + tokens for tokens in range(1, 11))
    assert request.admitted_s == 5.0
    assert request.ttft_s == pytest.approx(prefill_s)
    assert request.latency_s == pytest.approx(prefill_s + decode_s)


def test_an_answer_of_no_token_ends_with_its_prefill() -> None:
    request = play([Arrival(0.0, "a", 100, 0)], "vtc", PROFILE).requests["0"]
    assert request.finish_s == request.first_token_s > 0


def test_a_request_that_arrives_while_a_batch_runs_waits_for_the_next_attempt() -> None:
    few = PROFILE.model_copy(update={"steps_between_admissions": 50})
    late = Arrival(0.4, "b", 10, 10)
    waited = [play([Arrival(0.0, "a", 10, 100), late], "fcfs", profile).requests["1"] for profile in (PROFILE, few)]
    assert 0 < waited[0].admitted_s - 0.4 < 11 * 0.022
    assert waited[1].admitted_s > waited[0].admitted_s


def test_a_request_larger_than_the_pool_is_refused_and_stops_no_other() -> None:
    engine = SeparatePrefillEngine(PROFILE, make_policy("fcfs"))
    large = SimRequest("0", Arrival(0.0, "a", 9_000, 1_000), 0.0)
    assert not engine.submit(large, 0.0)
    assert large.rejected == "too_large"
    assert engine.next_s() == math.inf
    assert engine.advance(10.0) == []


def test_a_rate_limit_refuses() -> None:
    engine = SeparatePrefillEngine(PROFILE, make_policy("rpm:1"))
    first, second = (SimRequest(str(n), Arrival(0.0, "a", 10, 10), 0.0) for n in range(2))
    assert engine.submit(first, 0.0)
    assert not engine.submit(second, 0.0)
    assert second.rejected == "rate"


def test_a_prompt_longer_than_a_mini_batch_is_prefilled_alone() -> None:
    narrow = PROFILE.model_copy(update={"minibatch_tokens_max": 50})
    played = play(
        [Arrival(0.0, name, tokens, 5) for name, tokens in (("a", 30), ("b", 400), ("c", 30))], "fcfs", narrow
    )
    firsts = [played.requests[str(n)].first_token_s for n in range(3)]
    assert firsts == sorted(set(firsts))


def test_stepping_to_arbitrary_times_changes_nothing() -> None:
    """`advance` to times between events, as a gate before the engine does."""
    arriving = [Arrival(n * 0.3, "ab"[n % 2], 40, 60) for n in range(30)]
    whole = play(arriving, "vtc", PROFILE)
    engine = SeparatePrefillEngine(PROFILE, make_policy("vtc"))
    random, at_s, finished, upcoming = Random(1), 0.0, list[SimRequest](), list(enumerate(arriving))
    while len(finished) < len(arriving):
        at_s = min(at_s + random.uniform(0, 0.1), upcoming[0][1].arrival_s if upcoming else math.inf)
        while more := engine.advance(at_s):
            finished += more
        if upcoming and upcoming[0][1].arrival_s == at_s:
            number, arrival = upcoming.pop(0)
            engine.submit(SimRequest(str(number), arrival, at_s), at_s)
    for request in finished:
        assert request.finish_s == pytest.approx(whole.requests[request.request_id].finish_s, rel=1e-9)


def test_what_a_gate_reads_is_up_to_date() -> None:
    """An engine that counts steps only when they are read, and one with an observer that makes it count at once."""
    lazy, prompt = (
        SeparatePrefillEngine(PROFILE, make_policy("vtc"), observer=observer) for observer in (None, Recorder())
    )
    for number in range(20):
        arrival = Arrival(number * 0.3, "ab"[number % 2], 40, 200)
        for engine in (lazy, prompt):
            engine.advance(arrival.arrival_s)
            engine.submit(SimRequest(str(number), arrival, arrival.arrival_s), arrival.arrival_s)
        at_s = arrival.arrival_s + 0.29
        assert lazy.advance(at_s) == prompt.advance(at_s) == [], "no request ends in this time"
        assert lazy.service_by_tenant == prompt.service_by_tenant
        assert lazy.saturation == prompt.saturation
        assert lazy.now_s == pytest.approx(prompt.now_s, rel=1e-12)


def test_jitter_has_the_spread_of_as_many_steps() -> None:
    jitter = Jitter(Random(3), 0.05)
    for steps in (1, 25):
        factors = [jitter.factor(steps) for _ in range(4000)]
        assert fmean(factors) == pytest.approx(1.0, abs=0.005)
        assert stdev(factors) == pytest.approx(0.05 / math.sqrt(steps), rel=0.06)


def test_jitter_leaves_the_work_as_it_is() -> None:
    arriving = [Arrival(0.0, "a", 50, 40) for _ in range(20)]
    steady, jittered = play(arriving, "fcfs", PROFILE), play(arriving, "fcfs", PROFILE, Jitter(Random(1), 0.05))
    assert steady.steps == jittered.steps
    last_s = [max(request.finish_s for request in run.requests.values()) for run in (steady, jittered)]
    assert last_s[0] != last_s[1]
    assert last_s[1] == pytest.approx(last_s[0], rel=0.05)
