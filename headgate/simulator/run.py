"""A simulated run as a value: what to simulate (RunSpec), and its measures (Run). Both can be pickled.

A run is of one engine, or of a fleet of them. `headgate simulate --json` prints an object for a run, or for the
runs of several seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Literal

from dispatcher.policies.planning.forecast_record import ForecastSums
from dispatcher.policies.planning.groups import DELTA
from dispatcher.policies.throttling import ThrottleLimits
from gpu_worker.policies.shedding import ShedSettings
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.fleet.spec import FleetSpec
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.announced_waits import WaitCoverage
from headgate.simulator.measures.collector import Collector, Measures, Scheduling
from headgate.simulator.measures.service_difference import Difference
from headgate.simulator.measures.timeline import Timeline
from headgate.workloads.sources import Workload

LOCALITY = "+locality"
LOADED_FIRST = "+loaded-first"
REASONS = {
    "no_worker": "no_worker (no worker loads the model)",
    "too_large": "too_large (longer than the engine's KV cache or batch)",
}
"""What a fleet's reasons for a refusal mean."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What to simulate.

    `engines`: one engine, or a fleet. `policy`, `service`: names, as on the command line. `weights`: by tenant, instead
    of the gate's, and these instead of the workload's; 1 for the others. `jitter`: relative standard deviation of a
    step's time. `horizon_s`: T of the service difference; None takes the last arrival.

    `tiers`: run on the paged engine, with these settings for a policy with tiers; None runs on the engine that admits a
    request only if it can serve it to its end. A request's tier is its own in the workload, else its tenant's at the
    gate, else its tenant's in the workload, else standard.

    `locality`: the policy prefers cached prefixes within the tenant that it chose (fairness/locality.py); its name in
    the results then ends with LOCALITY. `loaded_first`: requests with loaded adapters go first within their tenant
    (fairness/loaded_first.py); the name then ends with LOADED_FIRST.

    `gate`, `throttling`, `shedding`: what stands before the engine; None leaves it out. `monitor`: check VTC's theorems
    on the run. `covered` checks them where they apply (policy vtc), `any` for every policy, `off` for none. In every
    case the engine must have separate prefill, charge weighted tokens, and have nothing before it.

    `timeline`, `timing`: also measure the run over time, and how long it takes on this machine.

    `planner`: of a fleet, a name of its registry. `delta`: the batches of a request group of planner `qlm`. A fleet
    uses only these, the policy, the weights and the seed.
    """

    workload: Workload
    policy: str
    engines: EngineProfile | FleetSpec
    service: str = "weighted"
    weights: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    jitter: float = 0.0
    horizon_s: float | None = None
    timeline: bool = False
    timing: bool = False
    monitor: Literal["covered", "any", "off"] = "covered"
    tiers: TierSettings | None = None
    shedding: ShedSettings | None = None
    gate: GateSpec | None = None
    throttling: ThrottleLimits | None = None
    planner: str = ""
    delta: int = DELTA
    locality: bool = False
    loaded_first: bool = False

    @property
    def policy_label(self) -> str:
        return self.policy + LOCALITY * self.locality + LOADED_FIRST * self.loaded_first


@dataclass(frozen=True, slots=True)
class Timing:
    """Times on this machine: of the whole run, and of one pick of the policy."""

    wall_s: float
    decision_us_mean: float
    decision_us_p99: float


@dataclass(frozen=True, slots=True)
class Run:
    """The measures of a run. `engine`: the name of each profile, and whether it was fitted.
    `order`: of the gate before the engine; empty without one.
    `outside_fit`: sentences about what the run did beyond the log that its profile was fitted to. `total_time_s`: from
    0 to the last token. `throughput_tokens_per_s`: input and output tokens of served requests over `total_time_s`.
    `decisions`: requests that the policy picked and the engine admitted. `scheduling`: only of the paged engine.
    `prefix_hit_rate`: the part of the served requests' input tokens that the prefix cache had; None without such a
    cache. `adapter_loads`: loads of LoRA adapters by tenant, of served requests.

    `planner` to `moves`: only of a fleet. `loads`: swaps by the model that they load, of all workers, with the first
    load of a worker that began without a model; `swapping_s`: the seconds of all of them. `moves`: of the annealing of
    all plans. `shares`: the part of each tenant in the service until the last request arrived; of the whole run, parts
    would only show what was asked for. `waits`: announced by the gate of planner `plan`. `swap_charges`: by tenant, in
    service units, beside the service that is measured. `forecasts`: by tenant, what plans forecast, and what
    followed."""

    workload: str
    policy: str
    seed: int
    requests: int
    served: int
    rejected: int
    rejections: dict[str, int]
    total_time_s: float
    throughput_tokens_per_s: float
    difference: Difference | None
    all: Measures
    tenants: dict[str, Measures]
    decisions: int
    pool_tokens: int
    engine: str
    bounds: dict[str, Any] = field(default_factory=dict)
    timing: Timing | None = None
    timeline: Timeline | None = None
    scheduling: Scheduling | None = None
    outside_fit: tuple[str, ...] = ()
    order: str = ""
    prefix_hit_rate: float | None = None
    adapter_loads: dict[str, int] = field(default_factory=dict)
    planner: str = ""
    classes: dict[str, Measures] = field(default_factory=dict)
    last_arrival_s: float = 0.0
    models: dict[str, Measures] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)
    swapping_s: float = 0.0
    moves: int = 0
    waits: WaitCoverage | None = None
    swap_charges: dict[str, float] = field(default_factory=dict)
    forecasts: dict[str, ForecastSums] = field(default_factory=dict)

    @property
    def swaps(self) -> int:
        return sum(self.loads.values())

    @property
    def requests_per_s(self) -> float:
        return self.served / self.total_time_s if self.total_time_s else 0.0


def forecast_text(run: Run) -> str:
    """Return a sentence about the plans' forecasts and what followed; "" without any."""
    whole = ForecastSums()
    for each in run.forecasts.values():
        whole.include(each)
    if not whole.requests:
        return ""
    forecast, in_time = whole.forecast / whole.requests, whole.in_time / whole.requests
    return (
        f"The plans forecast {forecast:.1%} of {whole.requests:,} requests in time, and {in_time:.1%} were; "
        f"the mean error of a tenant's part is {100 * whole.error_part:.1f} points."
    )


def rejections_text(run: Run) -> str:
    """Return why requests were not served, and how many; "" if none was refused."""
    return "; ".join(f"{count:,} {REASONS.get(reason, reason)}" for reason, count in run.rejections.items())


def waits_text(run: Run) -> str:
    """Return a sentence about the announced waits of queued requests; "" without any."""
    waits = run.waits
    if waits is None or not waits.announced:
        return ""
    return (
        f"Of {waits.queued:,} queued requests {waits.announced_part:.0%} had a wait announced; its P50 covered "
        f"{waits.p50:.0%} of the waits, its P90 {waits.p90:.0%}."
    )


def run_of(
    spec: RunSpec,
    collector: Collector,
    *,
    decisions: int,
    bounds: dict[str, Any] | None = None,
    timing: Timing | None = None,
    scheduling: Scheduling | None = None,
    outside_fit: tuple[str, ...] = (),
) -> Run:
    """Make a Run of what a collector measured."""
    everything, total_s = collector.all(), collector.total_time_s
    tenants = collector.tenants()
    return Run(
        workload=spec.workload.name,
        policy=spec.policy_label,
        seed=spec.seed,
        requests=everything.requests,
        served=everything.served,
        rejected=everything.rejected,
        rejections=dict(sorted(collector.rejections.items())),
        total_time_s=total_s,
        throughput_tokens_per_s=collector.tokens / total_s if total_s else 0.0,
        difference=collector.difference(),
        all=everything,
        tenants=tenants,
        decisions=decisions,
        pool_tokens=spec.engines.pool_tokens if isinstance(spec.engines, EngineProfile) else 0,
        engine="; ".join(_engine_text(profile) for profile in _profiles_of(spec.engines)),
        bounds=bounds or {},
        timing=timing,
        timeline=collector.timeline(),
        scheduling=scheduling,
        outside_fit=outside_fit,
        order="" if spec.gate is None else spec.gate.order,
        prefix_hit_rate=collector.prefix_hit_rate if _has_prefix_cache(spec) else None,
        adapter_loads=dict(sorted(collector.adapter_loads.items())),
        planner=spec.planner,
        classes=collector.classes(),
        models=collector.models(),
        shares=_shares_of(tenants),
    )


def _shares_of(tenants: Mapping[str, Measures]) -> dict[str, float]:
    """Return each tenant's part in the service until the last arrival, or in all of it if nothing was served before."""
    parts = {name: each.early_service for name, each in tenants.items()}
    if not any(parts.values()):
        parts = {name: each.service for name, each in tenants.items()}
    total = sum(parts.values())
    return {name: part / total if total else 0.0 for name, part in parts.items()}


def _profiles_of(engines: EngineProfile | FleetSpec) -> list[EngineProfile]:
    if isinstance(engines, EngineProfile):
        return [engines]
    loadable = [each.profile for worker in engines.workers for each in worker.models.values()]
    return list({profile.name: profile for profile in loadable}.values())


def _engine_text(profile: EngineProfile) -> str:
    if profile.fitted_on is not None:
        return f"{profile.name}, fitted to {profile.fitted_on.log}"
    return f"{profile.name}, {'fitted to measured runs' if profile.fitted else 'estimated, not measured'}"


def _has_prefix_cache(spec: RunSpec) -> bool:
    return isinstance(spec.engines, EngineProfile) and spec.engines.prefix_cache_tokens > 0 and spec.tiers is not None


_SPREAD_KEYS = ("served", "rejected", "total_time_s", "throughput_tokens_per_s", "decisions")
_FLEET_SPREAD_KEYS = ("total_time_s", "requests_per_s", "swaps", "swapping_s")
_DIFFERENCE_KEYS = ("max", "avg", "var")
_OF_FLEETS = (
    "planner", "classes", "last_arrival_s", "models", "shares", "loads", "swapping_s", "moves", "swap_charges",
    "forecasts",
)  # fmt: skip
"""The measures that only a fleet has."""


def as_json(run: Run) -> dict[str, Any]:
    """Make the JSON object. A measure that does not exist (no sample points, nothing served) is None."""
    if run.planner:
        return _fleet_json(run)
    fields = asdict(replace(run, timeline=None))
    summary = {"service_difference" if name == "difference" else name: value for name, value in fields.items()}
    for name in ("pool_tokens", "engine", "timeline", "all", "order", *_OF_FLEETS):
        del summary[name]
    for name in ("timing", "scheduling", "outside_fit", "adapter_loads"):
        if not summary[name]:
            del summary[name]
    if run.prefix_hit_rate is None:
        del summary["prefix_hit_rate"]
    summary["service_difference"] = summary["service_difference"] or dict.fromkeys(_DIFFERENCE_KEYS)
    for tenant in summary["tenants"].values():
        del tenant["lateness_s"], tenant["early_service"]
        if not tenant.pop("due"):
            del tenant["in_time"]
        for name in ("ttft_s", "latency_s"):
            tenant[name] = tenant[name] or dict.fromkeys(("p50", "p99"))
    return summary


def _fleet_json(run: Run) -> dict[str, Any]:
    return {
        "workload": run.workload,
        "planner": run.planner,
        "policy": run.policy,
        "all": _in_time(run.all),
        "classes": {name: _in_time(measures) for name, measures in run.classes.items()},
        "tenants": {name: {**_in_time(each), "share": run.shares[name]} for name, each in run.tenants.items()},
        "models": {name: {**_in_time(each), "loads": run.loads.get(name, 0)} for name, each in run.models.items()},
        "total_time_s": run.total_time_s,
        "requests_per_s": run.requests_per_s,
        "tokens_per_s": run.throughput_tokens_per_s,
        "swaps": run.swaps,
        "swapping_s": run.swapping_s,
        **({"adapter_loads": run.adapter_loads} if run.adapter_loads else {}),
        **({"forecasts": {name: _forecast(each) for name, each in run.forecasts.items()}} if run.forecasts else {}),
        **({"swap_charges": run.swap_charges} if run.swap_charges else {}),
        **({"waits": asdict(run.waits)} if run.waits is not None else {}),
        **({"outside_fit": run.outside_fit} if run.outside_fit else {}),
        "rejections": run.rejections,
        "moves": run.moves,
    }


def _forecast(sums: ForecastSums) -> dict[str, Any]:
    requests = max(1, sums.requests)
    parts = {"forecast_in_time": sums.forecast / requests, "in_time": sums.in_time / requests}
    return {"requests": sums.requests, **parts, "error": sums.error_part}


def _in_time(measures: Measures) -> dict[str, Any]:
    first_token_s = None if measures.ttft_s is None else asdict(measures.ttft_s)
    counts: dict[str, Any] = {"requests": measures.requests, "served": measures.served, "in_time": measures.in_time}
    counts["service"] = measures.service
    return {**counts, "lateness_s": measures.lateness_s, "first_token_s": first_token_s}


def fleet_spread_of(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Return {measure: {mean, sd}} over runs of a fleet that differ only in the seed, also of each tenant in time."""
    measures = {key: [float(getattr(run, key)) for run in runs] for key in _FLEET_SPREAD_KEYS}
    measures["in_time"] = [run.all.in_time for run in runs]
    for name in runs[0].tenants:
        measures[f"tenants.{name}.in_time"] = [run.tenants[name].in_time for run in runs]
    return _spread(measures)


def spread_of(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Return {measure: {mean, sd}} over runs that differ only in the seed; sd is the sample standard deviation."""
    measures = {key: [float(getattr(run, key)) for run in runs] for key in _SPREAD_KEYS}
    for key in _DIFFERENCE_KEYS:
        values = [getattr(run.difference, key) for run in runs if run.difference is not None]
        if values:
            measures[f"service_difference.{key}"] = values
    return _spread(measures)


def _spread(measures: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    return {
        key: {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else 0.0}
        for key, values in measures.items()
    }
