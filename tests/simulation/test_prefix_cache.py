"""The prefix cache of the paged model: what is found, what it costs, and what tenants learn of each other."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.engines.modelled.paged.prefix_cache import PrefixCache
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.measures.collector import TierCollector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec, as_json
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import PREFIX_BLOCK_TOKENS, Arrival
from headgate.workloads.sources import ListWorkload, open_workload

PREFIXES = Path(__file__).parents[2] / "examples" / "workloads" / "prefixes.jsonl"
PROFILE = load_profile("a100-llama3-8b-chunked")
OUTPUT = 20


class Ends(TierCollector):
    """Keeps the requests, by tenant and in the order of their ends."""

    def __init__(self) -> None:
        super().__init__(WEIGHTED_TOKENS, 0.0)
        self.requests: dict[str, list[SimRequest]] = {}

    def on_served(self, request: SimRequest) -> None:
        super().on_served(request)
        self.requests.setdefault(request.tenant, []).append(request)


def asks(at_s: float, tenant: str, *hash_ids: int, group: str | None = None) -> Arrival:
    """Return a request whose prompt is these blocks and half a block of its own."""
    tokens = len(hash_ids) * PREFIX_BLOCK_TOKENS + PREFIX_BLOCK_TOKENS // 2
    return Arrival(at_s, tenant, tokens, OUTPUT, hash_ids=(*hash_ids, 99), prefix_group=group)


def run(
    arrivals: Iterable[Arrival], *, cache: int = 8, locality: bool = False, policy: str = "vtc"
) -> tuple[Run, Ends]:
    """Run on a cache of so many blocks."""
    profile = PROFILE.model_copy(update={"prefix_cache_tokens": cache * PREFIX_BLOCK_TOKENS})
    spec = RunSpec(
        ListWorkload("asked", arrivals), policy, profile, tiers=TierSettings(preemption=False), locality=locality
    )
    return simulate(spec, ends := Ends()), ends


def test_the_least_recently_used_blocks_leave_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    cache = PrefixCache(4 * 16, 16)
    cache.add("abc")
    assert [cache.cached_tokens("abcd", tokens) for tokens in (64, 49, 48, 17, 1, 0)] == [48, 48, 32, 16, 0, 0]
    assert cache.cached_tokens("xbc", 64) == 0
    cache.add("de")
    assert len(cache) == 4
    assert [cache.cached_tokens(prompt, 99) for prompt in ("abc", "de")] == [32, 32]
    cache.add("a")
    cache.add("xy")
    assert [cache.cached_tokens(prompt, 99) for prompt in ("abc", "de", "xy")] == [16, 16, 32]


def test_a_hit_saves_its_prefill_and_costs_a_tenth() -> None:
    measured, ends = run([asks(0, "a", 1, 2), asks(10, "a", 1, 2)])
    first, second = ends.requests["a"]
    assert (first.cached_tokens, second.cached_tokens) == (0, 2 * PREFIX_BLOCK_TOKENS)
    saved_s = 2 * PREFIX_BLOCK_TOKENS * PROFILE.prefill_per_token_s
    assert first.ttft_s - second.ttft_s == pytest.approx(saved_s, rel=0.01)
    tokens = first.arrival.input_tokens
    assert measured.tenants["a"].service == pytest.approx(2 * (tokens + 2 * OUTPUT) - 0.9 * 2 * PREFIX_BLOCK_TOKENS)
    assert measured.prefix_hit_rate == pytest.approx(2 * PREFIX_BLOCK_TOKENS / (2 * tokens))


def test_the_policy_charges_a_hit_at_its_price() -> None:
    policy = make_policy("vtc")
    policy.cached_fraction = 0.25
    profile = PROFILE.model_copy(update={"prefix_cache_tokens": 8 * PREFIX_BLOCK_TOKENS})
    engine = make_engine(profile, policy, paged=True)
    for name in ("1", "2"):
        assert engine.submit(SimRequest(name, asks(0, "a", 1, 2), engine.now_s), engine.now_s)
        assert engine.advance(100.0)
    tokens = asks(0, "a", 1, 2).input_tokens
    assert policy.received["a"].service == 2 * (tokens + 2 * OUTPUT) - 0.75 * 2 * PREFIX_BLOCK_TOKENS


def test_a_block_is_found_only_after_the_step_that_computed_it() -> None:
    _, ends = run([asks(0, "a", 1, 2), asks(0, "a", 1, 2)])
    assert [request.cached_tokens for request in ends.requests["a"]] == [0, 0]


@pytest.mark.parametrize("locality", [False, True])
def test_a_tenant_learns_nothing_of_the_prompts_of_tenants_outside_its_group(locality: bool) -> None:
    """Its first tokens come at the same time, to the digit, whether or not another tenant asked the same."""

    def first_tokens(*before: Arrival) -> list[float]:
        probes = [asks(50, "probing", 1, 2, 3), asks(50, "probing", 7, 8, 9), asks(60, "probing", 1, 2, 3)]
        _, ends = run([*before, *probes], cache=40, locality=locality)
        return sorted(request.first_token_s for request in ends.requests["probing"])

    alone = first_tokens(asks(0, "other", 4, 5, 6))
    assert first_tokens(asks(0, "other", 1, 2, 3)) == alone
    assert first_tokens(asks(0, "other", 1, 2, 3, group="group")) == alone
    assert first_tokens(asks(0, "other", 1, 2, 3, group="probing")) == alone  # a group with the tenant's name
    assert first_tokens(asks(0, "probing", 1, 2, 3)) != alone


def test_the_tenants_of_a_group_share_prefixes_and_each_hit_costs_a_tenth() -> None:
    measured, ends = run([asks(0, "a", 1, 2, group="g"), asks(10, "b", 1, 2, group="g"), asks(20, "c", 1, 2)])
    assert [ends.requests[name][0].cached_tokens for name in "abc"] == [0, 2 * PREFIX_BLOCK_TOKENS, 0]
    service = {name: measures.service for name, measures in measured.tenants.items()}
    assert service["a"] == service["c"] == pytest.approx(service["b"] + 0.9 * 2 * PREFIX_BLOCK_TOKENS)


def test_locality_serves_one_document_after_the_other() -> None:
    documents = [asks(0.001 * number, "a", *range(10 * (number % 4), 10 * (number % 4) + 4)) for number in range(40)]
    runs = {locality: run(documents, cache=5, locality=locality)[0] for locality in (False, True)}
    assert (runs[True].prefix_hit_rate or 0.0) > 0.5
    assert runs[False].prefix_hit_rate == 0.0
    assert runs[True].total_time_s < 0.8 * runs[False].total_time_s
    assert [run.policy for run in runs.values()] == ["vtc", "vtc+locality"]


def test_a_preempted_request_finds_its_prompt_again_and_is_charged_once() -> None:
    """KV of the least urgent is thrown away when the pool is full."""
    arrivals = [
        Arrival(0.0, name, 1_024, 400, hash_ids=(number, number + 1)) for number, name in ((10, "a"), (20, "b"))
    ]
    recomputed = []
    for cache in (0, 64_000):
        profile = PROFILE.model_copy(update={"prefix_cache_tokens": cache, "pool_tokens": 2_400})
        spec = RunSpec(ListWorkload("asked", arrivals), "vtc", profile, tiers=TierSettings(preemption=False))
        measured = simulate(spec)
        assert measured.scheduling is not None
        recomputed.append(measured.scheduling.recomputed_tokens)
        assert measured.all.service == 2 * (1_024 + 2 * 400)
    assert recomputed[0] - recomputed[1] == PREFIX_BLOCK_TOKENS


def test_the_made_trace_and_its_hit_rate() -> None:
    workload = open_workload([str(PREFIXES)])
    assert (workload.requests, set(workload.tenants)) == (400, {"docs", "few", "chat", "solo"})
    without = simulate(RunSpec(workload, "vtc", PROFILE))
    assert without.prefix_hit_rate is None
    assert "prefix_hit_rate" not in as_json(without)
    profile = PROFILE.model_copy(update={"prefix_cache_tokens": 20_480})
    tiers = TierSettings(preemption=False)
    plain, local = (
        simulate(RunSpec(workload, "vtc", profile, tiers=tiers, locality=locality)) for locality in (False, True)
    )
    assert plain.prefix_hit_rate is not None and local.prefix_hit_rate is not None  # noqa: PT018
    assert local.prefix_hit_rate > 1.2 * plain.prefix_hit_rate
    assert as_json(local)["prefix_hit_rate"] == local.prefix_hit_rate
    assert local.requests_per_s > 1.3 * plain.requests_per_s
