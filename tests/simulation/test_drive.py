"""Feeding a workload: order, stages of interactions, refusals; every request is reported exactly once."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival
from tests.support.simulator.fleets import EndedRequests


class RefusesStage(SeparatePrefillEngine):
    """Refuses one stage of every interaction."""

    refused_stage: int | None = None

    def submit(self, request: SimRequest, at_s: float) -> bool:
        assert at_s == request.release_s
        if request.arrival.stage == self.refused_stage is not None:
            request.rejected = "stage"
            return False
        return super().submit(request, at_s)


def play(arrivals: Iterable[Arrival], policy: str = "fcfs", refused_stage: int | None = None) -> EndedRequests:
    collector = EndedRequests()
    engine = RefusesStage(load_profile(), make_policy(policy))
    engine.refused_stage = refused_stage
    drive(arrivals, engine, collector)
    return collector


def talk(tenant: str, stages: int, *, interaction: str = "i", at_s: float = 0.0, tokens: int = 20) -> list[Arrival]:
    return [Arrival(at_s, tenant, tokens, tokens, interaction=interaction, stage=stage) for stage in range(stages)]


def test_a_stage_is_sent_when_the_stage_before_it_was_answered() -> None:
    done = play(talk("a", 3)).done
    assert [request.arrival.stage for request in done] == [0, 1, 2]
    assert [request.release_s for request in done] == [0.0, done[0].finish_s, done[1].finish_s]


def test_a_stage_is_not_sent_before_its_time() -> None:
    first, second = talk("a", 2)
    late = Arrival(1000.0, "a", 20, 20, interaction="i", stage=1)
    assert [request.release_s for request in play([first, late]).done] == [0.0, 1000.0]
    assert second.stage == late.stage


def test_interactions_of_two_tenants_with_one_name_are_two() -> None:
    done = play(sorted(talk("a", 1) + talk("b", 1), key=lambda arrival: arrival.arrival_s)).done
    assert [request.release_s for request in done] == [0.0, 0.0]


def test_a_refused_stage_cuts_its_interaction_and_no_other() -> None:
    ended = play(talk("a", 4) + talk("b", 1), refused_stage=1)
    assert [(r.tenant, r.arrival.stage) for r in ended.done] == [("a", 0), ("b", 0)]
    assert [(r.arrival.stage, r.rejected) for r in ended.refused] == [(1, "stage"), (2, "unsent"), (3, "unsent")]


def test_what_is_cut_stays_cut() -> None:
    too_large = Arrival(0.0, "a", 20_000, 1, interaction="i", stage=0)
    later = Arrival(500.0, "a", 20, 20, interaction="i", stage=1)
    assert [request.rejected for request in play([too_large, later]).refused] == ["too_large", "unsent"]


@pytest.mark.parametrize("policy", ["fcfs", "vtc"])
def test_an_empty_workload_ends(policy: str) -> None:
    ended = play([], policy)
    assert (ended.done, ended.refused) == ([], [])


arrivals = st.builds(
    Arrival,
    st.integers(0, 60).map(float),
    st.sampled_from("abc"),
    st.integers(1, 12_000),
    st.integers(0, 300),
    interaction=st.one_of(st.none(), st.sampled_from("xy")),
    stage=st.integers(0, 3),
)


@given(
    st.lists(arrivals, max_size=25), st.sampled_from(["fcfs", "vtc", "lcf"]), st.one_of(st.none(), st.integers(0, 3))
)
def test_every_request_ends_once(arriving: list[Arrival], policy: str, refused: int | None) -> None:
    arriving.sort(key=lambda arrival: arrival.arrival_s)
    ended = play(arriving, policy, refused)
    reported = [request.arrival for request in (*ended.done, *ended.refused)]
    assert sorted(map(id, reported)) == sorted(map(id, arriving))
    for request in ended.done:
        assert request.arrival.arrival_s <= request.release_s <= request.admitted_s
        assert request.admitted_s < request.first_token_s <= request.finish_s < math.inf
    finishes = [request.finish_s for request in ended.done]
    assert finishes == sorted(finishes)


def test_garbage_is_collected_rarely_during_a_run_and_as_before_after_it() -> None:
    before, during = gc.get_threshold(), list[tuple[int, int, int]]()

    def broken() -> Iterator[Arrival]:
        during.append(gc.get_threshold())
        yield Arrival(0.0, "a", 10, 10)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        play(broken())
    assert during[0][0] >= 100 * before[0] > 0
    assert during[0][1:] == before[1:]
    assert gc.get_threshold() == before
