"""Figures 9, 10, 15 and 17 of QLM: one model, several classes, and workers of two kinds."""

from __future__ import annotations

from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.qlm.scenes import A_MODELS, fleet, mixed_fleet, percent, played, times, w_a

PLANNERS = ("fcfs", "edf", "shepherd", "qlm", "plan")
LOADS = (10.0, 20.0, 40.0, 500.0)
"""Requests per second; four workers serve about 20."""
FULL = 40.0
WORKERS = 6
A10S = (0, 1, 2, 3, 6)
QUEUES = (50, 200, 800, 2000)
BURST_PER_S = 500.0


@experiment(
    "qlm-figure-9-10", "Figures 9 and 10: W_A, one model and three classes", "QLM, section 8.1, Figures 9 and 10"
)
def figures_9_and_10(setting: Setting) -> Section:
    workers = fleet(4, A_MODELS)
    runs = played(setting, {load: (w_a(load), workers) for load in LOADS}, PLANNERS)
    ours = [runs[load, "plan"] for load in LOADS]
    firsts = [
        runs[load, "plan"].classes["interactive"].in_time
        >= max(runs[load, name].classes["interactive"].in_time for name in PLANNERS) - 0.01
        for load in LOADS
    ]
    order = runs[FULL, "plan"].requests_per_s / runs[FULL, "fcfs"].requests_per_s
    return Section(
        text=(
            "2,000 requests of one tenant for a 13B model on four workers: half interactive (20 s), a quarter Batch-1 "
            "(60 s), a quarter Batch-2 (1 h).",
        ),
        tables=[
            Table(
                "In time, all requests (interactive ones)",
                ("requests/s", *PLANNERS),
                [
                    (
                        load,
                        *(
                            f"{percent(runs[load, name].all.in_time)} "
                            f"({percent(runs[load, name].classes['interactive'].in_time)})"
                            for name in PLANNERS
                        ),
                    )
                    for load in LOADS
                ],
            ),
            Table(
                "Requests/s",
                ("requests/s", *PLANNERS),
                [(load, *(round(runs[load, name].requests_per_s, 2) for name in PLANNERS)) for load in LOADS],
            ),
        ],
        checks=[
            times(
                "plan: at least 20 % more than fixed batches (Figure 9)",
                1.2,
                runs[FULL, "plan"],
                runs[FULL, "shepherd"],
            ),
            Check(
                "plan: 20 % more than vLLM and EDF (Figure 9)",
                None,
                f"{order:.2f} times FCFS. Workers that admit whenever a slot is free do the same work in every order.",
            ),
            Check(
                "plan: at least 90 % in time below the knee (Figure 10)",
                ours[0].all.in_time >= 0.9,
                percent(ours[0].all.in_time),
            ),
            Check(
                "plan: most interactive requests in time at every load, within a point (Figure 10)",
                all(firsts),
                ", ".join(percent(run.classes["interactive"].in_time) for run in ours),
            ),
        ],
    )


@experiment("qlm-figure-15", "Figure 15: A10 and A100 GPUs together", "QLM, section 8.3, Figure 15")
def figure_15(setting: Setting) -> Section:
    scenes = {a10s: (w_a(0.0, requests=1500), mixed_fleet(a10s, WORKERS - a10s)) for a10s in A10S}
    runs = played(setting, scenes, ("round-robin", "plan"))
    gains = {a10s: runs[a10s, "plan"].requests_per_s / runs[a10s, "round-robin"].requests_per_s for a10s in A10S}
    rows: list[tuple[Cell, ...]] = [
        (
            percent(a10s / WORKERS),
            *(round(runs[a10s, name].requests_per_s, 2) for name in ("round-robin", "plan")),
            round(gains[a10s], 2),
        )
        for a10s in A10S
    ]
    best = max(A10S, key=lambda a10s: gains[a10s])
    return Section(
        text=(
            "1,500 requests wait at once for six workers; an A10 has 20 slots and an A100 70. No profile has the same "
            "model on both kinds, so the A10 has a 7B model's step times and the A100 a 13B model's.",
        ),
        tables=[Table("Requests/s", ("A10s", "round-robin", "plan", "ratio"), rows)],
        checks=[
            Check("plan: at least 1.5 times round robin", gains[best] >= 1.5, f"{gains[best]:.2f} times"),
            Check(
                "the gain is greatest with both kinds",
                0 < best < WORKERS,
                ", ".join(f"{percent(a10s / WORKERS)}: {gains[a10s]:.2f}" for a10s in A10S),
            ),
        ],
    )


@experiment("qlm-figure-17", "Figure 17: the gain grows with the queue", "QLM, section 8.3, Figure 17")
def figure_17(setting: Setting) -> Section:
    workers = fleet(4, A_MODELS)
    runs = played(setting, {n: (w_a(BURST_PER_S, requests=n), workers) for n in QUEUES}, ("fcfs", "plan"))
    gains = [runs[n, "plan"].all.in_time - runs[n, "fcfs"].all.in_time for n in QUEUES]
    rows: list[tuple[Cell, ...]] = [
        (n, *(percent(runs[n, name].all.in_time) for name in ("fcfs", "plan")), f"{100 * gain:+.1f}")
        for n, gain in zip(QUEUES, gains, strict=True)
    ]
    return Section(
        text=(
            "W_A again, at 500 requests/s on four workers: the part in time, and the gain of plan in points. "
            "With the longest queue most requests are late in every order.",
        ),
        tables=[Table("In time", ("requests", "fcfs", "plan", "points"), rows)],
        checks=[
            Check(
                "no gain without a queue, and at least 5 points with a long one",
                abs(gains[0]) < 0.01 and max(gains) >= 0.05,
                ", ".join(f"{100 * gain:+.1f}" for gain in gains),
            )
        ],
    )
