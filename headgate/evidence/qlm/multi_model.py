"""Figures 5, 12 and 13 of QLM: several models on one fleet."""

from __future__ import annotations

from collections.abc import Callable

from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.qlm.scenes import (
    PLANNERS,
    at_least,
    due_by_turns,
    due_by_turns_fleet,
    missed,
    percent,
    played,
    times,
    w_b,
    w_b_fleet,
)
from headgate.simulator.run import Run

LOADS = (10.0, 40.0, 100.0, 500.0)
"""Requests of Batch-1 per second. Eight workers serve about 32 with as many of Batch-2; 500 is a burst."""
COLD_LOADS = (40.0, 100.0)
COLD_PLANNERS = ("fcfs", "edf", "static", "plan")
BURST = 100.0
QUEUED = 600

Runs = dict[tuple[float, str], Run]


@experiment("qlm-figure-5", "Figure 5: a queue of five models on one worker drains", "QLM, section 2.4, Figure 5")
def figure_5(setting: Setting) -> Section:
    runs = played(setting, {"": (due_by_turns(QUEUED), due_by_turns_fleet())}, ("edf", "qlm", "plan"))
    found = {name: run for (_, name), run in runs.items()}
    rows: list[tuple[Cell, ...]] = [
        (name, round(run.total_time_s), run.swaps, percent(run.all.in_time)) for name, run in found.items()
    ]
    slower = found["edf"].total_time_s / found["plan"].total_time_s
    return Section(
        text=(
            f"{QUEUED} requests for five models wait at once, with six due times between ten minutes and an hour that "
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
    scenes = {load: (w_b(load), w_b_fleet()) for load in LOADS}
    cold_scenes = {load: (w_b(load), w_b_fleet(cold=True)) for load in COLD_LOADS}
    warm = played(setting, scenes, PLANNERS)
    cold = played(setting, cold_scenes, COLD_PLANNERS)
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


def _in_time(warm: Runs, cold: Runs) -> list[Check]:
    return [
        at_least(f"plan: at least 98 % in time at every load, {where}", 0.98, _plan(runs))
        for where, runs in (("from host memory", warm), ("from storage", cold))
    ] + [
        Check(
            "plan is first at every load (Figure 13)",
            all(warm[load, "plan"].all.in_time >= run.all.in_time for (load, _), run in warm.items()),
            ", ".join(percent(part) for part in _plan(warm)),
        )
    ]


def _throughput(warm: Runs, cold: Runs) -> list[Check]:
    known = "The partition knows the demand, which does not change, and swaps almost nothing; the plan learns it."
    heads = "With one global queue whose head finds the model, few requests cause a swap."
    return [
        times(
            "plan: at least 3 times vLLM's instances (Figure 12)", 3, warm[BURST, "plan"], warm[BURST, "round-robin"]
        ),
        times("plan: at least 1.5 times the global FCFS", 1.5, warm[BURST, "plan"], warm[BURST, "fcfs"]),
        times("plan: at least 1.5 times the global EDF", 1.5, warm[BURST, "plan"], warm[BURST, "edf"]),
        times("plan: at least 3 times the global FCFS, from storage", 3, cold[BURST, "plan"], cold[BURST, "fcfs"]),
        missed("plan: at least 3 times the global EDF, from storage", heads, cold[BURST, "plan"], cold[BURST, "edf"]),
        missed("plan: at least 1.3 times the partition", known, warm[BURST, "plan"], warm[BURST, "static"]),
    ]


def _plan(runs: Runs) -> list[float]:
    return [run.all.in_time for (_, name), run in runs.items() if name == "plan"]


def _table(title: str, runs: Runs, figure: Callable[[Run], Cell]) -> Table:
    names = list(dict.fromkeys(name for _, name in runs))
    return Table(
        title,
        ("requests/s", *names),
        [(load, *(figure(runs[load, name]) for name in names)) for load in dict.fromkeys(load for load, _ in runs)],
    )
