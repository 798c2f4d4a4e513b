"""The engine with chunked prefill, compared with one that takes one step after another; throttling before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher.policies.throttling import ThrottleLimits
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.chunked_prefill import ChunkedPrefillEngine
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.gates.stages import ThrottledEngine
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival
from tests.support.simulator.fleets import EndedRequests

PROFILE = load_profile("a100-llama3-8b-chunked")


def play(arrivals: list[Arrival], policy: str, profile: EngineProfile) -> dict[str, SimRequest]:
    ended = EndedRequests()
    engine = ChunkedPrefillEngine(profile, make_policy(policy))
    drive(arrivals, engine, ended)
    assert (engine.kv_tokens, engine.running, engine.waiting, engine.saturation) == (0, 0, 0, 0.0)
    return {request.request_id: request for request in ended.done}


@dataclass
class One:
    arrival: Arrival
    id: str
    prompt_left: int
    tokens: int = 0
    finish_s: float = -1.0

    @property
    def held(self) -> int:
        return self.arrival.input_tokens - self.prompt_left + min(self.tokens, self.arrival.output_tokens)

    @property
    def most(self) -> int:
        return max(self.arrival.output_tokens, 1)


def step_by_step(arrivals: list[Arrival], policy: QueuePolicy, profile: EngineProfile) -> dict[str, float]:
    """Return when each request ends, with everything computed anew in each step."""
    assert profile.chunk_tokens is not None
    upcoming = [One(arrival, str(n), arrival.input_tokens) for n, arrival in enumerate(arrivals)]
    upcoming = [one for one in upcoming if one.arrival.input_tokens + one.most <= profile.pool_tokens]
    waiting: dict[str, One] = {}
    running: list[One] = []
    ended: dict[str, float] = {}
    now_s = 0.0

    def enqueue_arrivals(until_s: float) -> None:
        while upcoming and upcoming[0].arrival.arrival_s <= until_s:
            one = upcoming.pop(0)
            waiting[one.id] = one
            policy.enqueue(QueueRequest(one.id, one.arrival.tenant, one.arrival.input_tokens), now_s)

    while upcoming or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, upcoming[0].arrival.arrival_s)
        enqueue_arrivals(now_s)
        decoding = [one for one in running if not one.prompt_left]
        budget = max(1, profile.chunk_tokens - len(decoding))
        parts: list[tuple[One, int]] = []
        for one in [one for one in running if one.prompt_left]:
            parts.append((one, min(budget, one.prompt_left)))
            budget -= parts[-1][1]
        while budget and (head := policy.peek()) is not None:
            one = waiting[head.request_id]
            reserved = sum(other.arrival.input_tokens + other.most for other in [*running, one])
            if reserved > profile.pool_tokens or len(running) >= (profile.batch_max or math.inf):
                break
            policy.admit(one.id)
            del waiting[one.id]
            running.append(one)
            parts.append((one, min(budget, one.prompt_left)))
            budget -= parts[-1][1]
        held = sum(
            one.arrival.input_tokens - one.prompt_left + min(one.tokens, one.arrival.output_tokens) for one in running
        )
        seconds = profile.decode_base_s + profile.overhead_s + profile.decode_per_request_s * len(decoding)
        seconds += profile.decode_per_kv_token_s * held
        prompt_tokens = sum(tokens for _, tokens in parts)
        seconds += profile.prefill_per_token_s * prompt_tokens + (profile.prefill_base_s if prompt_tokens else 0.0)
        enqueue_arrivals(math.nextafter(now_s + seconds, -math.inf))
        now_s += seconds
        for one in decoding:
            one.tokens += 1
            policy.on_generated(one.id, one.tokens)
        for one, tokens in parts:
            one.prompt_left -= tokens
            if not one.prompt_left:
                one.tokens = 1
                if one.arrival.output_tokens:
                    policy.on_generated(one.id, 1)
        for one in [one for one in running if not one.prompt_left and one.tokens >= one.most]:
            running.remove(one)
            policy.finish(one.id)
            ended[one.id] = now_s
    return ended


arrivals = st.builds(Arrival, st.floats(0, 3), st.sampled_from("abc"), st.integers(1, 300), st.integers(0, 60))
profiles = st.builds(
    lambda chunk, pool, batch, base: PROFILE.model_copy(
        update={"chunk_tokens": chunk, "pool_tokens": pool, "batch_max": batch, "prefill_base_s": base}
    ),
    st.integers(1, 200),
    st.integers(300, 2000),
    st.one_of(st.none(), st.integers(1, 6)),
    st.sampled_from([0.0, 0.01]),
)


THE_HEAD_CHANGES = [
    Arrival(0.0, "a", 100, 1),
    Arrival(0.0, "b", 10, 400),
    Arrival(0.5, "b", 700, 1),
    Arrival(0.5, "a", 10, 1),
]
"""The long prompt of b does not fit beside b's first; as that goes on, a's short one comes before it, and fits."""


@given(st.lists(arrivals, min_size=1, max_size=20), st.sampled_from(["fcfs", "vtc"]), profiles)
@example(THE_HEAD_CHANGES, "vtc", PROFILE.model_copy(update={"pool_tokens": 1_000}))
@settings(max_examples=120)
def test_the_schedule_is_that_of_one_step_after_another(
    arriving: list[Arrival], policy: str, profile: EngineProfile
) -> None:
    arriving.sort(key=lambda arrival: arrival.arrival_s)
    expected = step_by_step(arriving, make_policy(policy), profile)
    found = {name: request.finish_s for name, request in play(arriving, policy, profile).items()}
    assert found.keys() == expected.keys()
    for name, finish_s in expected.items():
        assert found[name] == pytest.approx(finish_s, rel=1e-9, abs=1e-9)


def test_a_long_prompt_shares_its_steps_with_decodes() -> None:
    """It takes longer than in a step of its own, in which no other request gets a token."""
    short = Arrival(0.0, "a", 10, 200)
    long = Arrival(0.5, "b", 50_000, 1)
    whole = PROFILE.model_copy(update={"chunk_tokens": None})
    beside = {}
    for profile in (PROFILE, whole):
        ended = EndedRequests()
        drive([short, long], make_engine(profile, make_policy("fcfs")), ended)
        beside[profile.chunk_tokens] = next(request.ttft_s for request in ended.done if request.tenant == "b")
    assert isinstance(make_engine(PROFILE, make_policy("fcfs")), ChunkedPrefillEngine)
    assert isinstance(make_engine(whole, make_policy("fcfs")), SeparatePrefillEngine)
    assert beside[2048] > beside[None]


def test_a_profile_without_chunks_is_refused() -> None:
    with pytest.raises(ValueError, match="no chunk_tokens"):
        ChunkedPrefillEngine(load_profile(), make_policy("fcfs"))


def test_throttling_holds_only_while_the_pool_is_taken() -> None:
    small = PROFILE.model_copy(update={"pool_tokens": 2_000})

    def call(at_s: float, interaction: str, stage: int = 0) -> Arrival:
        return Arrival(at_s, "u", 500, 400, interaction=interaction, stage=stage, app="a")

    flood = [call(0.0, f"i{number}", stage) for number in range(3) for stage in (0, 1)]
    late, alone = call(1.0, "late"), call(500.0, "alone")
    ended = EndedRequests()
    engine = make_engine(small, make_policy("fcfs"))
    drive(
        [*flood, late, alone],
        ThrottledEngine(engine, ThrottleLimits(user=3, app=100), lambda: engine.saturation),
        ended,
    )
    assert [(one.arrival.interaction, one.rejected) for one in ended.refused] == [("late", "throttled_user")]
