"""Figures 5, 9, 10, 12, 13, 15 and 17 of QLM: one model with several classes, and several models on one fleet.

With one model there are also workers of two kinds.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.qlm.scenes import (
    A_MODELS,
    PLANNERS,
    at_least,
    due_by_turns,
    due_by_turns_fleet,
    fleet,
    mixed_fleet,
    percent,
    played,
    times,
    w_a,
    w_b,
    w_b_fleet,
)
from headgate.simulator.run import Run

_ONE_MODEL_PLANNERS = ("fcfs", "edf", "shepherd", "qlm", "plan")
_ONE_MODEL_LOADS = (10.0, 20.0, 40.0, 500.0)
"""Requests per second; four workers serve about 20."""
_FULL = 40.0
_WORKERS = 6
_A10S = (0, 1, 2, 3, 6)
_QUEUES = (50, 200, 800, 2000)
_BURST_PER_S = 500.0


@experiment(
    "qlm-figure-9-10", "Figures 9 and 10: W_A, one model and three classes", "QLM, section 8.1, Figures 9 and 10"
)
def figures_9_and_10(setting: Setting) -> Section:
    workers = fleet(4, A_MODELS)
    runs = played(setting, {load: (w_a(load), workers) for load in _ONE_MODEL_LOADS}, _ONE_MODEL_PLANNERS)
    ours = [runs[load, "plan"] for load in _ONE_MODEL_LOADS]
    firsts = [
        runs[load, "plan"].classes["interactive"].in_time
        >= max(runs[load, name].classes["interactive"].in_time for name in _ONE_MODEL_PLANNERS) - 0.01
        for load in _ONE_MODEL_LOADS
    ]
    order = runs[_FULL, "plan"].requests_per_s / runs[_FULL, "fcfs"].requests_per_s
    return Section(
        text=(
            "2,000 requests of one tenant for a 13B model on four workers: half interactive (20 s), a quarter Batch-1 "
            "(60 s), a quarter Batch-2 (1 h).",
        ),
        tables=[
            Table(
                "In time, all requests (interactive ones)",
                ("requests/s", *_ONE_MODEL_PLANNERS),
                [
                    (
                        load,
                        *(
                            f"{percent(runs[load, name].all.in_time)} "
                            f"({percent(runs[load, name].classes['interactive'].in_time)})"
                            for name in _ONE_MODEL_PLANNERS
                        ),
                    )
                    for load in _ONE_MODEL_LOADS
                ],
            ),
            Table(
                "Requests/s",
                ("requests/s", *_ONE_MODEL_PLANNERS),
                [
                    (load, *(round(runs[load, name].requests_per_s, 2) for name in _ONE_MODEL_PLANNERS))
                    for load in _ONE_MODEL_LOADS
                ],
            ),
        ],
        checks=[
            times(
                "plan: at least 50 % more than fixed batches (Figure 9)",
                1.5,
                runs[_FULL, "plan"],
                runs[_FULL, "shepherd"],
            ),
            Check(
                "plan: 20 % more than vLLM and EDF (Figure 9)",
                order >= 1.2,
                f"{order:.2f} times FCFS",
                "workers that admit whenever a slot is free do the same work in every order",
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
    scenes = {a10s: (w_a(0.0, requests=1500), mixed_fleet(a10s, _WORKERS - a10s)) for a10s in _A10S}
    runs = played(setting, scenes, ("round-robin", "plan"))
    gains = {a10s: runs[a10s, "plan"].requests_per_s / runs[a10s, "round-robin"].requests_per_s for a10s in _A10S}
    rows: list[tuple[Cell, ...]] = [
        (
            percent(a10s / _WORKERS),
            *(round(runs[a10s, name].requests_per_s, 2) for name in ("round-robin", "plan")),
            round(gains[a10s], 2),
        )
        for a10s in _A10S
    ]
    best = max(_A10S, key=lambda a10s: gains[a10s])
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
                0 < best < _WORKERS,
                ", ".join(f"{percent(a10s / _WORKERS)}: {gains[a10s]:.2f}" for a10s in _A10S),
            ),
        ],
    )


@experiment("qlm-figure-17", "Figure 17: the gain grows with the queue", "QLM, section 8.3, Figure 17")
def figure_17(setting: Setting) -> Section:
    workers = fleet(4, A_MODELS)
    runs = played(setting, {n: (w_a(_BURST_PER_S, requests=n), workers) for n in _QUEUES}, ("fcfs", "plan"))
    gains = [runs[n, "plan"].all.in_time - runs[n, "fcfs"].all.in_time for n in _QUEUES]
    rows: list[tuple[Cell, ...]] = [
        (n, *(percent(runs[n, name].all.in_time) for name in ("fcfs", "plan")), f"{100 * gain:+.1f}")
        for n, gain in zip(_QUEUES, gains, strict=True)
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


_LOADS = (10.0, 40.0, 100.0, 500.0)
"""Requests of Batch-1 per second. Eight workers serve about 32 with as many of Batch-2; 500 is a burst."""
_COLD_LOADS = (40.0, 100.0)
_COLD_PLANNERS = ("fcfs", "edf", "static", "plan")
_BURST = 100.0
_QUEUED = 600

_Runs = dict[tuple[float, str], Run]


@experiment("qlm-figure-5", "Figure 5: a queue of five models on one worker drains", "QLM, section 2.4, Figure 5")
def figure_5(setting: Setting) -> Section:
    runs = played(setting, {"": (due_by_turns(_QUEUED), due_by_turns_fleet())}, ("edf", "qlm", "plan"))
    found = {name: run for (_, name), run in runs.items()}
    rows: list[tuple[Cell, ...]] = [
        (name, round(run.total_time_s), run.swaps, percent(run.all.in_time)) for name, run in found.items()
    ]
    slower = found["edf"].total_time_s / found["plan"].total_time_s
    return Section(
        text=(
            f"{_QUEUED} requests for five models wait at once, with six due times between ten minutes and an hour that "
            "do not depend on the model. A swap takes 3 s. The figure is drawn without numbers.",
        ),
        tables=[Table("Until the queue is empty", ("planner", "seconds", "swaps", "in time"), rows)],
        checks=[
            Check("EDF drains at least twice as slowly as plan", slower >= 2, f"{slower:.1f} times"),
            Check("all requests are in time under plan", found["plan"].all.in_time == 1.0,
                  percent(found["plan"].all.in_time)),
        ],
    )  # fmt: skip


@experiment(
    "qlm-figure-12-13", "Figures 12 and 13: W_B, five models on eight workers", "QLM, section 8.2, Figures 12 and 13"
)
def figures_12_and_13(setting: Setting) -> Section:
    scenes = {load: (w_b(load), w_b_fleet()) for load in _LOADS}
    cold_scenes = {load: (w_b(load), w_b_fleet(cold=True)) for load in _COLD_LOADS}
    warm = played(setting, scenes, PLANNERS)
    cold = played(setting, cold_scenes, _COLD_PLANNERS)
    return Section(
        text=(
            "3,500 requests: half are Batch-1 (60 s to the first token) for variants of Mistral 7B and Llama 70B, half "
            "are Batch-2 (1 h) for two variants of Vicuna 13B and one of Llama 70B. Both halves arrive at the rate in "
            "the first column. Eight workers begin with the models in turn. Swaps take 2, 3 and 6 s from host memory, "
            "and 10, 15 and 60 s from storage.",
            "`round-robin` is what the paper calls vLLM: instances with a queue each. `fcfs` and `edf` are stronger "
            "here than in the paper: one global queue, and its head goes to a worker that has the model. `static` "
            "divides the workers by the demand of the whole workload, which it knows in advance.",
        ),
        tables=[
            _table("In time, swaps from host memory", warm, lambda run: percent(run.all.in_time)),
            _table("Requests/s, swaps from host memory", warm, lambda run: round(run.requests_per_s, 2)),
            _table("In time, swaps from storage", cold, lambda run: percent(run.all.in_time)),
            _table("Requests/s, swaps from storage", cold, lambda run: round(run.requests_per_s, 2)),
        ],
        checks=[*_in_time(warm, cold), *_throughput(warm, cold)],
    )


def _in_time(warm: _Runs, cold: _Runs) -> list[Check]:
    return [
        at_least(f"plan: at least 98 % in time at every load, {where}", 0.98, _plan(runs))
        for where, runs in (("from host memory", warm), ("from storage", cold))
    ] + [
        Check(
            "plan: no other has more in time, at any load (Figure 13)",
            all(warm[load, "plan"].all.in_time >= run.all.in_time for (load, _), run in warm.items()),
            ", ".join(percent(part) for part in _plan(warm)),
        )
    ]


def _throughput(warm: _Runs, cold: _Runs) -> list[Check]:
    known = "the partition knows the demand, which does not change, and swaps almost nothing; the plan learns it"
    return [
        times(
            "plan: at least 3 times vLLM's instances (Figure 12)", 3, warm[_BURST, "plan"], warm[_BURST, "round-robin"]
        ),
        times("plan: at least 1.5 times the global FCFS", 1.5, warm[_BURST, "plan"], warm[_BURST, "fcfs"]),
        times("plan: at least 1.5 times the global EDF", 1.5, warm[_BURST, "plan"], warm[_BURST, "edf"]),
        times("plan: at least 3 times the global FCFS, from storage", 3, cold[_BURST, "plan"], cold[_BURST, "fcfs"]),
        times("plan: at least 3 times the global EDF, from storage", 3, cold[_BURST, "plan"], cold[_BURST, "edf"]),
        times("plan: at least 1.3 times the partition", 1.3, warm[_BURST, "plan"], warm[_BURST, "static"], known),
    ]


def _plan(runs: _Runs) -> list[float]:
    return [run.all.in_time for (_, name), run in runs.items() if name == "plan"]


def _table(title: str, runs: _Runs, figure: Callable[[Run], Cell]) -> Table:
    names = list(dict.fromkeys(name for _, name in runs))
    return Table(
        title,
        ("requests/s", *names),
        [(load, *(figure(runs[load, name]) for name in names)) for load in dict.fromkeys(load for load, _ in runs)],
    )
