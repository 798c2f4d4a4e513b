"""Section 7.2 of the practitioner's design: KV blocks that only premium may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_worker.policies.tiers import TierSettings
from headgate.evidence.document import Check, Section, Setting, Table, experiment
from headgate.evidence.preemption import scene
from headgate.simulator.run import Run

_SECONDS = 60.0
_SEEDS_MAX = 10
_RESERVE = 0.3
_LOAD = {"premium": 0.2, "standard": 0.7, "background": 0.5}
"""Arrivals by tier, as parts of the capacity: premium is a seventh of the requests, and standard and background queue
all the time."""
_SLOTS = 1_000
"""The batch is large, so that blocks are scarce and slots are not."""
SETTINGS: scene.Settings = {
    "no reserve, no preemption": ("tiered:vtc", TierSettings(preemption=False), None),
    "reserve, no preemption": ("tiered:vtc", TierSettings(preemption=False, premium_reserve=_RESERVE), None),
    "no reserve, preemption": ("tiered:vtc", TierSettings(), None),
    "reserve, preemption": ("tiered:vtc", TierSettings(premium_reserve=_RESERVE), None),
}
_REST_MIN = 1 - _RESERVE
"""The source: with 30 % reserved, other tiers have 70 % of the capacity. They keep at least that."""

_Runs = Mapping[str, Sequence[Run]]


@experiment("preemption-reserve", "A reserve of KV blocks for premium", f"{scene.SOURCE}, section 7.2")
def preemption_reserve(setting: Setting) -> Section:
    profile = scene.load_engine(batch_max=_SLOTS)
    capacity = scene.capacity_per_s(profile)
    rates = {tier: part * capacity for tier, part in _LOAD.items()}
    seeds = range(min(setting.seeds, _SEEDS_MAX))
    workloads = [scene.draw_steady(seed, rates, _SECONDS) for seed in seeds]
    runs = scene.play(setting, workloads, SETTINGS, dict.fromkeys(SETTINGS, profile))
    return Section(
        text=(
            f"{_RESERVE:.0%} of the blocks are reserved for premium, as the source advises; 1.4 times the capacity for "
            f"{_SECONDS:.0f} s, {len(seeds)} seeds. {scene.RULE} The batch has room for {_SLOTS:,} requests: what is "
            "scarce are blocks. (In `preemption-mixed` slots are scarce too, and there a reserve only harms: "
            "benchmarks/results/gpu_worker.md.)",
        ),
        tables=[_table(runs)],
        checks=_checks(runs),
    )


def _table(runs: _Runs) -> Table:
    rows = [
        (
            name,
            scene.ms(scene.p99_ttft_s(of_name, "premium")),
            f"{scene.attainment(of_name, 'premium'):.1%}",
            scene.ms(scene.p99_ttft_s(of_name, "standard")),
            round(scene.tokens_per_s(of_name)),
            scene.evictions_per_min(of_name),
        )
        for name, of_name in runs.items()
    ]
    columns = ("", "premium's P99", "premium in time", "standard's P99", "tokens/s", "preempted/min")
    return Table("Time to first token, with and without the reserve", columns, rows)


def _checks(runs: _Runs) -> list[Check]:
    plain, reserve, preempts, both = SETTINGS
    pairs = zip(runs[reserve], runs[plain], strict=True)
    return [
        scene.above(
            "the reserve alone: premium's P99",
            (plain, runs[plain]),
            (reserve, runs[reserve]),
            lambda run: scene.p99_ttft_s([run], "premium"),
        ),
        scene.above(
            "the reserve alone: premium in time",
            (reserve, runs[reserve]),
            (plain, runs[plain]),
            lambda run: scene.attainment([run], "premium"),
        ),
        scene.above(
            "the reserve spares preemptions: a minute",
            (preempts, runs[preempts]),
            (both, runs[both]),
            lambda run: scene.evictions_per_min([run]),
        ),
        scene.above(
            "it costs throughput: tokens/s",
            (plain, runs[plain]),
            (reserve, runs[reserve]),
            lambda run: scene.tokens_per_s([run]),
        ),
        scene.holds(
            f"at most {_RESERVE:.0%} of it",
            [scene.tokens_per_s([with_it]) / scene.tokens_per_s([without]) for with_it, without in pairs],
            lambda kept: kept >= _REST_MIN,
            lambda kept: f"{kept:.1%} are left",
        ),
    ]
