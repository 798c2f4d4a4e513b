"""Counts of a worker's swaps of its model, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SwapCounts:
    """Swaps of the model that ended well, swaps that failed, and the seconds of the last good one.

    `sleeps` and `wakes` ended well. After a failed one the engine was stopped. `evicted`: sleeping engines that were
    stopped to make room for others. `wake_s`: seconds of the last good swap that woke an engine.
    """

    done: int = 0
    failed: int = 0
    last_s: float = 0.0
    sleeps: int = 0
    sleeps_failed: int = 0
    wakes: int = 0
    wakes_failed: int = 0
    evicted: int = 0
    wake_s: float = 0.0
