"""Section 6.2 of the practitioner's design: mixed traffic under FIFO, priorities, preemption and shedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean

from gpu_worker.policies.shedding import ShedSettings
from gpu_worker.policies.tiers import TierSettings
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.preemption import scene
from headgate.evidence.runs import above
from headgate.simulator.run import Run
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

TIERS = ("premium", "standard", "standard", "background", "background")
"""The tiers of five requests."""
PHASES_S, BURST_S, BURST_LOAD, CALM_LOAD = 30.0, 8.0, 1.25, 0.8
_SECONDS = 300.0
SETTINGS: scene.Settings = {
    "FIFO": ("fcfs", TierSettings(preemption=False), None),
    "priority": ("tiered:vtc", TierSettings(preemption=False), None),
    "+ preemption": ("tiered:vtc", TierSettings(), None),
    "+ SLO": ("tiered:vtc", TierSettings(), ShedSettings()),
}
_PRINTED = {
    "FIFO": (2.100, 2.100, 2.100, 0.72, 0.72, 4200, 0.0),
    "priority": (0.280, 0.650, 8.200, 0.981, 0.913, 4100, 0.0),
    "+ preemption": (0.195, 0.520, 12.500, 0.996, 0.958, 3950, 12.4),
    "+ SLO": (0.185, 0.480, 18.000, 0.999, 0.972, 3900, 8.7),
}
"""P99 time to first token of premium, standard and background (s); attainment of premium and standard; tokens/s;
preemptions a minute."""
_THROUGHPUT_LOSS_MAX = 0.06
"""The source: "5-6 %"."""
_PREMIUM_MIN = 0.98
"""The source has 99.6 %. Ours has some 60 to 130 premium requests a run, so one late request is a percent of them."""


def draw_traffic(seed: int, capacity_per_s: float, seconds: float) -> ListWorkload:
    """Draw traffic whose rate is 1.25 times the capacity in the last 8 of each 30 s, and 0.8 times before."""
    random = Random(f"tiers mixed {seed}")
    arrivals: list[Arrival] = []
    now_s = 0.0
    most_per_s = BURST_LOAD * capacity_per_s
    while (now_s := now_s + random.expovariate(most_per_s)) < seconds:
        in_burst = now_s % PHASES_S >= PHASES_S - BURST_S
        if in_burst or random.random() < CALM_LOAD / BURST_LOAD:
            arrivals.append(scene.draw_arrival(random, now_s, TIERS[int(random.random() * len(TIERS))]))
    return ListWorkload("mixed", arrivals)


@experiment(
    "preemption-mixed",
    "Mixed traffic: FIFO, priorities, preemption, shedding",
    f"{scene.SOURCE}, section 6.2: the table of mixed load",
)
def mixed_load(setting: Setting) -> Section:
    profile = scene.load_engine()
    capacity = scene.capacity_per_s(profile)
    workloads = [draw_traffic(seed, capacity, _SECONDS) for seed in range(min(setting.seeds, scene.SEEDS_MAX))]
    runs = scene.play(setting, workloads, SETTINGS, dict.fromkeys(SETTINGS, profile))
    return Section(
        text=(
            f"{len(workloads)} seeds of {_SECONDS:.0f} s. 20 % of the requests are premium, 40 % standard, 40 % "
            "background; the load is 0.8 times the capacity for 22 s of each 30 s, and 1.25 times for 8 s. The source "
            "states neither machine nor lengths nor load. So the order of the rows and their ratios are compared, and "
            "no figure.",
        ),
        tables=[_table(runs)],
        checks=[*_waits(runs), *_prices(runs)],
    )


def _table(runs: Mapping[str, Sequence[Run]]) -> Table:
    columns = (
        *("", "premium P99: source", "ours", "standard P99: source", "ours", "background P99: source", "ours"),
        *("premium in time: source", "ours", "standard in time: source", "ours", "tokens/s: source", "ours"),
        *("preempted/min: source", "ours"),
    )
    rows = []
    for name, of_name in runs.items():
        p99s = [scene.p99_ttft_s(of_name, tier) for tier in dict.fromkeys(TIERS)]
        *theirs, tokens, evicted = _PRINTED[name]
        row: list[Cell] = [name]
        for printed, ours in zip(theirs[:3], p99s, strict=True):
            row += [scene.ms(printed), scene.ms(ours)]
        for printed, tier in zip(theirs[3:], ("premium", "standard"), strict=True):
            row += [f"{printed:.1%}", f"{scene.attainment(of_name, tier):.1%}"]
        row += [tokens, round(scene.tokens_per_s(of_name)), evicted, scene.evictions_per_min(of_name)]
        rows.append(tuple(row))
    return Table("Time to first token and throughput", columns, rows)


def _waits(runs: Mapping[str, Sequence[Run]]) -> list[Check]:
    premium = {name: scene.p99_ttft_s(of_name, "premium") for name, of_name in runs.items()}
    background = {name: scene.p99_ttft_s(of_name, "background") for name, of_name in runs.items()}
    in_time = scene.attainment(runs["+ preemption"], "premium")
    return [
        above("premium's P99", ("FIFO", premium["FIFO"]), ("priority", premium["priority"])),
        above("premium's P99", ("priority", premium["priority"]), ("+ preemption", premium["+ preemption"])),
        Check(
            "preemption: premium's P99 is within its target of 200 ms",
            premium["+ preemption"] <= 0.2,
            scene.ms(premium["+ preemption"]),
        ),
        Check(f"preemption: at least {_PREMIUM_MIN:.0%} of premium in time", in_time >= _PREMIUM_MIN, f"{in_time:.1%}"),
        above("background pays: P99", ("priority", background["priority"]), ("FIFO", background["FIFO"])),
    ]


def _prices(runs: Mapping[str, Sequence[Run]]) -> list[Check]:
    speed = {name: scene.tokens_per_s(of_name) for name, of_name in runs.items()}
    loss = 1 - speed["+ preemption"] / speed["FIFO"]
    shed = fmean(run.rejections.get("shed", 0) / run.requests for run in runs["+ SLO"])
    evicted = {name: scene.evictions_per_min(runs[name]) for name in ("+ preemption", "+ SLO")}
    return [
        Check(
            f"preemption costs at most {_THROUGHPUT_LOSS_MAX:.0%} of the throughput of FIFO",
            loss <= _THROUGHPUT_LOSS_MAX,
            f"{loss:.2%}",
        ),
        Check(
            "shedding refuses requests, and none of premium", shed > 0 and _keeps_premium(runs), f"{shed:.1%} refused"
        ),
        above(
            "shedding saves preemptions: a minute",
            ("+ preemption", evicted["+ preemption"]),
            ("+ SLO", evicted["+ SLO"]),
        ),
    ]


def _keeps_premium(runs: Mapping[str, Sequence[Run]]) -> bool:
    return all(scene.of_tier(run, "premium").rejected == 0 for run in runs["+ SLO"])
