"""How many seeds each experiment has in the smaller runs."""

from __future__ import annotations

SEEDS = 2
SEEDS_OF = {
    "fairserve": 6,
    "fairserve-service": 12,
    "preemption-limits": 10,
    "vtc-figure-4": 12,
    "vtc-overload-multi": 12,
}
"""Cheap experiments: with counts of few requests a run, or with means that differ from seed to seed."""


def seeds_of(experiment: str) -> int:
    return SEEDS_OF.get(experiment, SEEDS)
