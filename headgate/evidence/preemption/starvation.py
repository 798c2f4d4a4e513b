"""Sections 4.1 and 4.2 of the practitioner's design: starvation of background, aging, and the shares of tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_worker.policies.tiers import TierSettings
from headgate.evidence.document import Check, Section, Setting, Table, experiment
from headgate.evidence.preemption import scene
from headgate.evidence.runs import mean, service_between
from headgate.simulator.report.plots import timeline_of
from headgate.simulator.run import Run

_SECONDS, _FROM_S = 180.0, 60.0
"""Requests arrive for three minutes. Service is counted from the second on, when every tier has a queue."""
_SEEDS_MAX = 4
"""Long queues make these runs dear."""
_STRICT = TierSettings(shares={}, aging_per_s=0.0, deficit_factor=0.0)
_AGING = TierSettings(shares={}, deficit_factor=0.0)
SETTINGS: scene.Settings = {
    "strict": ("tiered:vtc", _STRICT, None),
    "aging": ("tiered:vtc", _AGING, None),
    "shares": ("tiered:vtc", TierSettings(aging_per_s=0.0), None),
    "aging + shares": ("tiered:vtc", TierSettings(), None),
}
_LOADS = {
    "premium alone over the capacity": {"premium": 1.2, "standard": 0.4, "background": 0.3},
    "premium and standard together over it": {"premium": 0.5, "standard": 0.7, "background": 0.3},
}
"""Arrivals by tier, as parts of the capacity."""
_FLOOR_MIN = 0.12
"""The share is 15 %; a slack of 4,096 units and a full batch of 64 requests may be missing."""
_STARVED = 0.02

_Runs = Mapping[str, Sequence[Run]]


@experiment(
    "preemption-aging",
    "Starvation, aging and the shares of tiers",
    f"{scene.SOURCE}, sections 4.1 and 4.2",
)
def preemption_aging(setting: Setting) -> Section:
    profile = scene.load_engine()
    capacity = scene.capacity_per_s(profile)
    seeds = range(min(setting.seeds, _SEEDS_MAX))
    found: dict[str, _Runs] = {}
    for load, parts in _LOADS.items():
        rates = {tier: part * capacity for tier, part in parts.items()}
        workloads = [scene.draw_steady(seed, rates, _SECONDS) for seed in seeds]
        profiles = dict.fromkeys(SETTINGS, profile)
        found[load] = scene.play(setting, workloads, SETTINGS, profiles, timeline=True)
    return Section(
        text=(
            f"Constant Poisson arrivals for {_SECONDS:.0f} s, {len(seeds)} seeds. {scene.RULE} Shares of service are "
            f"those from {_FROM_S:.0f} s to {_SECONDS:.0f} s. *Strict* has priorities and preemption only; *aging* "
            "adds 0.1 ranks a second, 1.5 at most; *shares* guarantees 50, 35 and 15 % to tiers that wait.",
            "By the source, aging guarantees eventual service. With its own parameters a background request reaches "
            "rank 0.5 at best, behind every new premium request.",
        ),
        tables=[_table(load, runs) for load, runs in found.items()],
        checks=_checks(*found.values()),
    )


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    served = {
        tier: sum(
            service_between(runs, tenant, _FROM_S, _SECONDS)
            for tenant in timeline_of(runs[0]).service_rate
            if tenant.startswith(tier)
        )
        for tier in ("premium", "standard", "background")
    }
    return {tier: service / sum(served.values()) for tier, service in served.items()}


def _table(load: str, runs: _Runs) -> Table:
    rows = []
    for name, of_name in runs.items():
        shares = _shares(of_name)
        waits = [f"{_longest_s(of_name, tier):.0f} s" for tier in shares]
        rows.append((name, *(f"{share:.1%}" for share in shares.values()), *waits))
    columns = (
        "",
        "premium's service",
        "standard's",
        "background's",
        "premium's P99 wait",
        "standard's",
        "background's",
    )
    return Table(f"Load: {load}", columns, rows)


def _longest_s(runs: Sequence[Run], tier: str) -> float:
    return mean(runs, lambda run: scene.p99_ttft_s([run], tier))


def _checks(premium_over: _Runs, both_over: _Runs) -> list[Check]:
    def background(*names: str) -> list[list[float]]:
        """Return background's shares of each seed, under both loads and these settings."""
        of_seeds = zip(*(runs[name] for runs in (premium_over, both_over) for name in names), strict=True)
        return [[_shares([run])["background"] for run in of_seed] for of_seed in of_seeds]

    pairs = zip(both_over["aging"], both_over["strict"], strict=True)
    return [
        scene.holds(
            f"strict priorities starve background: below {_STARVED:.0%} of the service, whichever tiers are over",
            list(map(max, background("strict"))),
            lambda share: share < _STARVED,
            "{:.1%}".format,
        ),
        scene.holds(
            f"aging by the source's parameters ends it: background receives above {_STARVED:.0%} under both loads",
            list(map(min, background("aging"))),
            lambda share: share > _STARVED,
            "{:.1%}".format,
            "all requests that wait age alike, by 1.5 ranks at most: background reaches rank 0.5, and standard that "
            "waits as long goes before it at -0.5",
        ),
        scene.holds(
            f"shares of tiers bound it in both: background, which waits, receives at least {_FLOOR_MIN:.0%}",
            list(map(min, background("shares", "aging + shares"))),
            lambda share: share >= _FLOOR_MIN,
            "{:.1%}".format,
        ),
        scene.holds(
            "aging lets standard overtake premium: premium's P99 wait at least doubles",
            [scene.p99_ttft_s([aging], "premium") / scene.p99_ttft_s([strict], "premium") for aging, strict in pairs],
            lambda times: times >= 2,
            "{:.0f} times".format,
        ),
    ]
