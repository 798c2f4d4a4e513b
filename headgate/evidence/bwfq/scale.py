"""Figures 5 and 6 of the BWFQ paper: many workers, many tenants, and bursts over time."""

from __future__ import annotations

from statistics import fmean

from headgate.evidence.bwfq.workload import Scenario, is_batch, is_interactive, p99, paper_workload, play, play_paper
from headgate.evidence.document import Check, Section, Setting, Table, experiment
from headgate.simulator.report.drawing import Plot, Series

WINDOW_S = 10.0
BURSTY = Scenario(in_step=True)


def _timeline(job: tuple[str, Scenario]) -> dict[str, list[float]]:
    """Return the P99 wait of each kind, by windows of arrival. A job for Setting.map: order, scenario."""
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


@experiment("bwfq-timeline", "Bursts over time", "BWFQ, Figure 6")
def timeline(setting: Setting) -> Section:
    orders = ("fcfs", "bwfq")
    waits = dict(zip(orders, setting.map(_timeline, [(order, BURSTY) for order in orders]), strict=True))
    times = [(number + 0.5) * WINDOW_S for number in range(len(waits["fcfs"]["batch"]))]
    worst = {order: max(waits[order]["interactive"]) for order in orders}
    return Section(
        text=("Load 60 %, one seed. Both batch tenants have their bursts at the same moments, 50 s apart.",),
        checks=[
            Check(
                "bwfq: the worst ten seconds of interactive requests have at most half of FCFS's P99 wait",
                worst["bwfq"] <= worst["fcfs"] / 2,
                f"FCFS {worst['fcfs']:.1f} s, bwfq {worst['bwfq']:.1f} s",
            )
        ],
        plots=[
            Plot(
                "bwfq-figure-6",
                "Figure 6: P99 wait of the requests that arrive within ten seconds",
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
SIZES = (
    Scenario(workers=10, interactive=1, batch=1, in_step=True),
    Scenario(workers=100, interactive=12, batch=2, in_step=True),
    Scenario(workers=1_000, interactive=125, batch=25, thinned=0.25, in_step=True),
    Scenario(workers=10_000, interactive=1_250, batch=250, thinned=0.02, in_step=True),
    *(
        Scenario(interactive=tenants * 4 // 5, batch=tenants // 5, thinned=min(1.0, 10 / tenants))
        for tenants in (10, 100, 1_000, 5_000)
    ),
)
SCALE_ORDERS = ("fcfs", "ratio+wake", "bwfq")

Row = tuple[int, int, float, float, float, float, float, str, str]


@experiment("bwfq-scale", "More workers, more tenants", "BWFQ, section 4.3, Figure 5")
def scale(setting: Setting) -> Section:
    rows = _rows(setting)
    slow = [row for row in rows if row[2] > 1.0]
    return Section(
        text=(
            f"Load 60 %, 300 s, {SCALE_SEEDS} seeds. First workers and tenants grow together, then tenants alone. "
            "In the first four rows all batch tenants have their bursts at the same moments, in the others each at its "
            "own. In the larger sizes each interactive tenant sends less, so that capacity is left for batch. The "
            "paper prints improvements of 2.1 times at 10 workers, 3.2 at 100, 4.2 at 5,000 and 4.3 at 10,000, and "
            "does not say of which quantity. The time of a decision depends on the machine; `make bench` prints it.",
        ),
        tables=[
            Table(
                "P99 wait (s) and use of the workers",
                (
                    *("workers", "tenants", "interactive: fcfs", "interactive: ratio+wake", "interactive: bwfq"),
                    *("batch: fcfs", "batch: bwfq", "bwfq: use of the workers", "bwfq: work relative to fcfs"),
                ),
                rows,
            )
        ],
        checks=[
            Check(
                "bwfq never lets interactive requests wait longer than FCFS does",
                all(row[4] <= row[2] + 0.01 for row in rows),
                "FCFS and bwfq: "
                + "; ".join(f"{row[0]:,} workers, {row[1]:,} tenants: {row[2]:.2f} s, {row[4]:.2f} s" for row in rows),
            ),
            Check(
                "where FCFS lets them wait more than a second, bwfq takes at most a quarter of that",
                all(row[4] <= row[2] / 4 for row in slow),
                f"{len(slow)} of {len(rows)} sizes",
            ),
        ],
    )


def _rows(setting: Setting) -> list[Row]:
    jobs = [(scenario, seed, SCALE_ORDERS) for scenario in SIZES for seed in range(1, SCALE_SEEDS + 1)]
    played = iter(setting.map(play_paper, jobs))
    rows: list[Row] = []
    for scenario in SIZES:
        runs = [next(played) for _ in range(SCALE_SEEDS)]
        waits = [fmean(run[order].interactive_wait_s for run in runs) for order in SCALE_ORDERS]
        batch = [fmean(run[order].batch_wait_s for run in runs) for order in ("fcfs", "bwfq")]
        work = fmean(run["bwfq"].work for run in runs) / scenario.workers / scenario.duration_s
        of_fcfs = fmean(run["bwfq"].work / run["fcfs"].work for run in runs)
        tenants = scenario.interactive + scenario.batch
        shares = f"{work:.0%}", f"{of_fcfs:.1%}"
        rows.append((scenario.workers, tenants, waits[0], waits[1], waits[2], batch[0], batch[1], *shares))
    return rows
