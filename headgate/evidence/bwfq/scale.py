"""Figures 5 and 6 of the BWFQ paper: many workers, many tenants, and bursts over time."""

from __future__ import annotations

from statistics import fmean

from headgate.evidence.bwfq.played import Scenario, p99, play, play_paper
from headgate.evidence.bwfq.workload import is_batch, is_interactive, paper_workload
from headgate.evidence.document.sections import Check, Section, Setting, Table, experiment
from headgate.simulator.report.drawing import Plot, Series

WINDOW_S = 10.0
BURSTY = Scenario(in_step=True)


def _timeline(job: tuple[str, Scenario]) -> dict[str, list[float]]:
    """P99 wait by windows of arrival, of each kind."""
    order, scenario = job
    played = play(order, paper_workload(scenario, 1))
    waits: dict[str, list[float]] = {}
    for kind, chosen in (("interactive", is_interactive), ("batch", is_batch)):
        windows: list[list[float]] = [[] for _ in range(int(scenario.duration_s / WINDOW_S))]
        for request, start in zip(played.workload.requests, played.starts_s, strict=True):
            if chosen(request):
                windows[int(request.arrival_s / WINDOW_S)].append(start - request.arrival_s)
        waits[kind] = [p99(window) for window in windows]
    return waits


@experiment("bwfq-timeline")
def timeline(setting: Setting) -> Section:
    orders = ("fcfs", "bwfq")
    waits = dict(zip(orders, setting.map(_timeline, [(order, BURSTY) for order in orders]), strict=True))
    times = [(number + 0.5) * WINDOW_S for number in range(len(waits["fcfs"]["batch"]))]
    worst = {order: max(waits[order]["interactive"]) for order in orders}
    return Section(
        "Bursts over time",
        "BWFQ, Figure 6",
        text=("Load 60 %, one seed, both batch tenants with their bursts at the same moments, 50 s apart.",),
        checks=[
            Check(
                "the worst ten seconds of interactive requests: bwfq at most half of FCFS",
                worst["bwfq"] <= worst["fcfs"] / 2,
                f"{worst['fcfs']:.1f} s, then {worst['bwfq']:.1f} s",
            )
        ],
        plots=[
            Plot(
                "bwfq-figure-6",
                "Figure 6: P99 wait of what arrives in ten seconds",
                "arrival (s)",
                "P99 wait (s)",
                [
                    Series(f"{kind}, {order}", times, values, dashed=order == "fcfs")
                    for order in orders
                    for kind, values in waits[order].items()
                ],
            )
        ],
    )


SCALE_SEEDS = 3
WORKERS = {
    10: Scenario(workers=10, interactive=1, batch=1, in_step=True),
    100: Scenario(workers=100, interactive=12, batch=2, in_step=True),
    1_000: Scenario(workers=1_000, interactive=125, batch=25, thinned=0.25, in_step=True),
    10_000: Scenario(workers=10_000, interactive=1_250, batch=250, thinned=0.02, in_step=True),
}
TENANTS = {
    number: Scenario(interactive=number * 4 // 5, batch=number // 5, thinned=min(1.0, 10 / number))
    for number in (10, 100, 1_000, 5_000)
}
SCALE_ORDERS = ("fcfs", "ratio+wake", "bwfq")


@experiment("bwfq-scale")
def scale(setting: Setting) -> Section:
    scenarios = [*WORKERS.values(), *TENANTS.values()]
    jobs = [(scenario, seed, SCALE_ORDERS) for scenario in scenarios for seed in range(1, SCALE_SEEDS + 1)]
    played = iter(setting.map(play_paper, jobs))
    rows: list[tuple[int, int, float, float, float, float, float, str, str]] = []
    for scenario in scenarios:
        runs = [next(played) for _ in range(SCALE_SEEDS)]
        waits = [fmean(run[order].interactive_wait_s for run in runs) for order in SCALE_ORDERS]
        batch = [fmean(run[order].batch_wait_s for run in runs) for order in ("fcfs", "bwfq")]
        work = fmean(run["bwfq"].work for run in runs) / scenario.workers / scenario.duration_s
        of_fcfs = fmean(run["bwfq"].work / run["fcfs"].work for run in runs)
        tenants = scenario.interactive + scenario.batch
        shares = f"{work:.0%}", f"{of_fcfs:.1%}"
        rows.append((scenario.workers, tenants, waits[0], waits[1], waits[2], batch[0], batch[1], *shares))
    return Section(
        "More workers, more tenants",
        "BWFQ, section 4.3, Figure 5",
        text=(
            f"Load 60 %, 300 s, {SCALE_SEEDS} seeds; workers and tenants grow together, then tenants alone. "
            "Where workers grow all batch tenants have their bursts at the same moments, where tenants grow each "
            "its own; "
            "interactive tenants of the larger ones send less each, so that there is work left for batch. The paper "
            "prints improvements of 2.1 times at 10 workers, 3.2 at 100, 4.2 at 5,000 and 4.3 at 10,000, without "
            "saying of what. What a decision costs is the machine's, and printed by `make bench`.",
        ),
        tables=[
            Table(
                "P99 wait (s) and use",
                (
                    *("workers", "tenants", "interactive: fcfs", "ratio+wake", "bwfq"),
                    *("batch: fcfs", "bwfq", "use", "work of FCFS's"),
                ),
                rows,
            )
        ],
        checks=[
            Check(
                "bwfq never lets interactive requests wait longer than FCFS does",
                all(row[4] <= row[2] + 0.01 for row in rows),
                ", ".join(f"{row[0]:,} workers, {row[1]:,} tenants: {row[2]:.2f} s, {row[4]:.2f} s" for row in rows),
            ),
            Check(
                "where FCFS lets them wait more than a second, bwfq at most a quarter of it",
                all(row[4] <= row[2] / 4 for row in rows if row[2] > 1.0),
                f"{sum(row[2] > 1.0 for row in rows)} of {len(rows)} sizes",
            ),
        ],
    )
