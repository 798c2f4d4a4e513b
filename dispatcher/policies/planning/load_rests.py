"""How long a worker still takes to load a model, when nothing runs on it: quantiles of the rest. Pure.

A load takes the seconds that its worker believes, and is late by what follows from the reports: the worker learns of
its order with a heartbeat, and tells of its model with a report. Believed seconds may also be wrong. So the lateness of
the last loads, of all workers together, is learned in seconds. (Ratios of waits cannot tell it: all calls of one load
share its lateness, and what is late by a second is late by 10 % or by 10 times, by when a call arrives.)

If the lengths of loads have the survival function S, a load lasts longer than another t after `elapsed` with the
probability S(elapsed + t) / S(elapsed). S is that of the last loads, and of a prior, which follows from the interval of
the heartbeats alone. A load that lasts longer than all of them lasts another part of what it took so far.

Units: seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.policies.planning.absences import rest_quantiles
from dispatcher.policies.planning.wait_ratios import Quantiles

PRIOR_HEARTBEATS = (0.2, 0.5, 0.8, 1.1, 1.5)
"""The lateness of loads before any was seen: the time to a heartbeat is anything up to one, and with reports that come
with later commands some more."""
PRIOR_WEIGHT = 1.0
"""The weight of the prior: one load."""
OVERDUE_PART = 0.25


def load_rest(late_s: Iterable[float], swap_s: float, elapsed_s: float, heartbeat_s: float) -> Quantiles:
    """Return the quantiles of the rest of a load. `late_s`: how much longer than believed the last loads took.
    `swap_s`: what this one is believed to take. `elapsed_s`: since it could begin."""
    rests = [(swap_s + late - elapsed_s, 1.0) for late in late_s if swap_s + late > elapsed_s]
    longest_s, weight = max(swap_s, elapsed_s), PRIOR_WEIGHT / len(PRIOR_HEARTBEATS)
    for part in PRIOR_HEARTBEATS:
        rest = swap_s + part * heartbeat_s - elapsed_s
        rests.append((rest if rest > 0.0 else part * OVERDUE_PART * longest_s, weight))
    return rest_quantiles(rests, max(0.0, swap_s - elapsed_s))
