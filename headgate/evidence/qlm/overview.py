"""Every figure of QLM's evaluation by number: where it is checked, or why it is not."""

from __future__ import annotations

from headgate.evidence.document.sections import Section, Setting, Table, experiment

FIGURES = (
    ("1", "fewer GPUs", "qlm-figure-1"),
    ("3, 18", "waiting times are predictable", "qlm-figure-3-18"),
    ("4", "eviction cuts the wait at the head", "qlm-figure-4"),
    ("5", "EDF drains more slowly than groups", "qlm-figure-5"),
    ("9, 10", "throughput and SLOs with one model", "qlm-figure-9-10"),
    ("11, 14", "each operation left out", "qlm-figure-11-14, without eviction"),
    ("12, 13", "throughput and SLOs with several models", "qlm-figure-12-13"),
    ("15", "A10 and A100 together", "qlm-figure-15"),
    ("16", "mega prompts", "qlm-figure-16"),
    ("17", "the gain grows with the queue", "qlm-figure-17"),
    ("19", "group size", "qlm-figure-19"),
    ("20", "the time of a plan", "qlm-figure-20"),
)


@experiment("qlm", "Queue management for SLOs: the figures of its evaluation", "QLM (SoCC 2024), sections 2 and 8")
def overview(_setting: Setting) -> Section:
    return Section(
        text=(
            "QLM publishes neither data nor rates: its curves are images. So its statements are checked as bands, on "
            "workloads made as it describes them, with lognormal lengths (prompts of 200 tokens and outputs of 250 in "
            "the mean, at most 1,000) and the simulator's profiles of step times. Prompts are computed in steps of "
            "their own. `headgate simulate --fleet` runs the same planners; docs/simulator.md describes them. `qlm` is "
            "QLM's planner with annealing in place of its program, `plan` is headgate's: the production's planner and "
            "gate. A request is in time if its first token is.",
        ),
        tables=[Table("Figures", ("figure", "statement", "where"), FIGURES)],
    )
