"""VTC's theorems for random workloads: they hold with the measured M, but not with the pool size as M."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.evidence.vtc.theorems import THEOREMS, adversary, random_specs
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

PROFILE = load_profile()
arrivals = st.builds(Arrival, st.floats(0, 30), st.sampled_from("abcde"), st.integers(1, 300), st.integers(0, 300))
weights = st.dictionaries(st.sampled_from("abcde"), st.sampled_from([0.5, 1.0, 2.0, 10.0]))
profiles = st.builds(
    lambda pool, steps: PROFILE.model_copy(update={"pool_tokens": pool, "steps_between_admissions": steps}),
    st.integers(700, 4000),
    st.integers(1, 20),
)


@given(st.lists(arrivals, min_size=2, max_size=60), weights, profiles, st.sampled_from([0.0, 0.3]))
@settings(max_examples=150)
def test_all_theorems_hold(
    arriving: list[Arrival], weights: dict[str, float], profile: EngineProfile, jitter: float
) -> None:
    workload = ListWorkload("random", sorted(arriving, key=lambda arrival: arrival.arrival_s))
    bounds = simulate(RunSpec(workload, "vtc", profile, weights=weights, jitter=jitter)).bounds
    assert list(bounds) == list(THEOREMS)
    assert {theorem: bound for theorem, bound in bounds.items() if not bound["held"]} == {}


def test_the_lemma_fails_somewhere_with_the_pool_size_as_m() -> None:
    """The reason to measure M: admission by the peak of future use overbooks the pool."""
    specs = [replace(spec, seed=0) for spec in random_specs(False, "vtc")]
    longest = [max(arrival.input_tokens for arrival in spec.workload) for spec in specs]
    runs = [simulate(spec) for spec in specs]
    apart = [run.bounds["4.3"]["worst"] for run in runs]
    with_pool = [max(input_max, 2.0 * run.pool_tokens) for input_max, run in zip(longest, runs, strict=True)]
    assert any(worst > unit for worst, unit in zip(apart, with_pool, strict=True))
    assert all(run.bounds["4.3"]["held"] for run in runs)


@given(st.integers(2, 300), st.integers(20, 400))
def test_the_adversary_nearly_reaches_the_bound(requests: int, tokens: int) -> None:
    pool_tokens = requests * tokens + 1
    profile = PROFILE.model_copy(update={"pool_tokens": pool_tokens, "minibatch_tokens_max": pool_tokens})
    workload = adversary(profile, requests)
    outputs = sum(arrival.output_tokens for arrival in workload if not arrival.arrival_s)
    reached = simulate(RunSpec(workload, "vtc", profile)).bounds["4.4"]["worst"]
    assert reached >= 0.95 * 2 * outputs
