"""The engine and the traffic of the experiments on preemption, and what they read off their runs.

The engine is a 70B model on eight A100 (the profile a100x8-llama3-70b) with a KV cache that 64 requests of the usual
length fill. Arrivals are Poisson; prompts and outputs are lognormal; each tier has four tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import fmean

from gpu_worker.policies.shedding import ShedSettings
from gpu_worker.policies.tiers import TierSettings
from headgate.evidence.document import Check, Setting
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.measures.collector import Scheduling, TierMeasures
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.distributions import Lognormal, SampledLengths
from headgate.workloads.sources import ListWorkload

RULE = (
    "A claim holds if it holds in the mean of the seeds and in nine of ten seeds; this and the tolerances were written "
    "down before the seeds beyond the first two were run."
)
SOURCE = "priority and preemption"
"""How the source of each of these experiments begins."""
_AGREE_MIN = 0.9
"""A claim holds if it holds in the mean of the seeds, and in this part of the seeds."""
LENGTHS = SampledLengths(Lognormal(200, 0.6, 16, 2048), Lognormal(350, 0.6, 16, 1024))
KV_TOKENS = 64 * 560
"""Enough for 64 requests: the prompt, half of the output, and the unused part of the last block."""
_TENANTS = 4
"""Each tier has so many tenants."""
_AT_ONCE = 2_000
"""Requests of the run that measures the capacity."""

Settings = Mapping[str, tuple[str, TierSettings, ShedSettings | None]]
"""Queue policy, tiers and shedding by the name of the setting."""


def load_engine(kv_tokens: int = KV_TOKENS, **changes: object) -> EngineProfile:
    return load_profile("a100x8-llama3-70b").model_copy(update={"pool_tokens": kv_tokens, **changes})


def capacity_per_s(profile: EngineProfile) -> float:
    """Return requests a second, first come, first served, over a run in which all arrive at once."""
    random = Random("capacity")
    arrivals = [Arrival(0.0, "all", *LENGTHS.draw(random)) for _ in range(_AT_ONCE)]
    run = simulate(RunSpec(ListWorkload("at once", arrivals), "fcfs", profile, tiers=TierSettings(preemption=False)))
    return run.served / run.total_time_s


def draw_arrival(random: Random, at_s: float, tier: str) -> Arrival:
    """Draw a request of one of the tier's tenants."""
    tenant = f"{tier}-{int(random.random() * _TENANTS)}"
    return Arrival(at_s, tenant, *LENGTHS.draw(random), tier=tier)


def draw_steady(seed: int, rates_per_s: Mapping[str, float], seconds: float) -> ListWorkload:
    """Draw Poisson arrivals at constant rates by tier."""
    random = Random(f"steady {seed}")
    total = sum(rates_per_s.values())
    tiers, rates = list(rates_per_s), list(rates_per_s.values())
    arrivals: list[Arrival] = []
    now_s = random.expovariate(total)
    while now_s < seconds:
        arrivals.append(draw_arrival(random, now_s, random.choices(tiers, rates)[0]))
        now_s += random.expovariate(total)
    return ListWorkload("steady", arrivals)


def play(
    setting: Setting,
    workloads: Sequence[ListWorkload],
    settings: Settings,
    profiles: Mapping[str, EngineProfile],
    *,
    timeline: bool = False,
) -> dict[str, list[Run]]:
    """Run each workload under each setting; `profiles`: the engine of each setting."""
    specs = [
        RunSpec(
            workload,
            policy,
            profiles[name],
            tiers=tiers,
            shedding=shedding,
            seed=seed,
            jitter=setting.jitter,
            timeline=timeline,
        )
        for name, (policy, tiers, shedding) in settings.items()
        for seed, workload in enumerate(workloads)
    ]
    runs = setting.map(simulate, specs)
    count = len(workloads)
    return {name: runs[at * count : (at + 1) * count] for at, name in enumerate(settings)}


def scheduling(run: Run) -> Scheduling:
    if run.scheduling is None:
        raise ValueError(f"the run of {run.policy} was not on the paged engine")
    return run.scheduling


def of_tier(run: Run, tier: str) -> TierMeasures:
    return scheduling(run).tiers[tier]


def p99_ttft_s(runs: Sequence[Run], tier: str) -> float:
    """Return the mean over the runs of the tier's P99 time to first token; infinite if a run served none."""
    found = [of_tier(run, tier).ttft_s for run in runs]
    return fmean(float("inf") if one is None else one.p99 for one in found)


def attainment(runs: Sequence[Run], tier: str) -> float:
    return fmean(of_tier(run, tier).attainment or 0.0 for run in runs)


def tokens_per_s(runs: Sequence[Run]) -> float:
    return fmean(run.throughput_tokens_per_s for run in runs)


def evictions_per_min(runs: Sequence[Run]) -> float:
    """Return the planned evictions a minute, without those that the engine made for lack of blocks."""
    return fmean(
        sum(each for name, each in scheduling(run).preemptions_per_min.items() if name != "native") for run in runs
    )


def above(
    what: str, higher: tuple[str, Sequence[Run]], lower: tuple[str, Sequence[Run]], figure: Callable[[Run], float]
) -> Check:
    """Check that a figure is above that of another setting."""
    pairs = [(figure(one), figure(other)) for one, other in zip(higher[1], lower[1], strict=True)]
    means = [fmean(values) for values in zip(*pairs, strict=True)]
    found = f"{higher[0]} {means[0]:.4g}, {lower[0]} {means[1]:.4g}"
    return _judge(f"{what}: {higher[0]} > {lower[0]}", means[0] > means[1], [one > two for one, two in pairs], found)


def holds(
    claim: str,
    values: Sequence[float],
    is_held: Callable[[float], bool],
    show: Callable[[float], str],
    reason: str = "",
) -> Check:
    """Check a figure of each seed. `show`: the figure as text."""
    found = f"{show(fmean(values))}, {show(min(values))} to {show(max(values))}"
    return _judge(claim, is_held(fmean(values)), list(map(is_held, values)), found, reason)


def _judge(claim: str, is_mean_held: bool, are_held: Sequence[bool], found: str, reason: str = "") -> Check:
    held = is_mean_held and sum(are_held) >= _AGREE_MIN * len(are_held)
    return Check(claim, held, f"{found}; holds in {sum(are_held)} of {len(are_held)} seeds", reason)


def ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"
