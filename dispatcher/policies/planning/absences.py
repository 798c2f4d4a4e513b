"""How long a model still stays absent that no worker has or loads: quantiles of the rest. Pure.

An absence begins when a call waits for the model and no worker has it, and ends when a worker has it. Calls arrive at
any time in it. So if the lengths of absences have the survival function S, a call that arrives after `elapsed` waits
longer than t with the probability

    S(elapsed + t) / S(elapsed)

S is that of the last absences of this model, and with a smaller weight of all models. Those that were shorter than
`elapsed` say nothing about the rest. Beside them there is a prior: some multiples of the soonest time at which a worker
may have the model, or of a part of `elapsed`, whichever is longer. So the longer an absence lasts beyond all others,
the longer its rest is expected to be, as for lengths with a heavy tail.

Ratios of actual over predicted waits (wait_ratios.py) cannot tell this: all calls of one absence share its length, so
hundreds of ratios are one observation.

Units: seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dispatcher.policies.planning.wait_ratios import Quantiles

OTHERS_WEIGHT = 0.5
"""The weight of an absence of any model beside one of the model's own."""
PRIOR_WEIGHT = 2.0
"""The weight of the prior: so many absences of the model's own."""
PRIOR_MULTIPLES = (0.6, 1.0, 1.5, 2.2, 4.0)
ELAPSED_PART = 0.5
"""Chosen, as the weights, on scenes of benchmarks/announced_waits.py, which says on which."""


def absence_rest(own_s: Iterable[float], all_s: Iterable[float], elapsed_s: float, soonest_s: float) -> Quantiles:
    """Return the quantiles of the rest of an absence. `own_s`, `all_s`: the lengths of the last absences of the model,
    and of all models."""
    longest_s = max(soonest_s, ELAPSED_PART * elapsed_s)
    rests = [(length - elapsed_s, 1.0) for length in own_s if length > elapsed_s]
    rests += [(length - elapsed_s, OTHERS_WEIGHT) for length in all_s if length > elapsed_s]
    rests += [(multiple * longest_s, PRIOR_WEIGHT / len(PRIOR_MULTIPLES)) for multiple in PRIOR_MULTIPLES]
    return rest_quantiles(rests)


def rest_quantiles(rests: Iterable[tuple[float, float]], least_s: float = 0.0) -> Quantiles:
    """Return the quantiles of these rests, each with its weight. There is one at least, and none below `least_s`."""
    ordered = sorted(rests)
    total = sum(weight for _, weight in ordered)
    return Quantiles(*(_quantile(ordered, part * total, least_s) for part in (0.1, 0.5, 0.9)))


def _quantile(rests: Sequence[tuple[float, float]], wanted: float, least_s: float) -> float:
    """Return the rest up to which the weights add up to `wanted`, on the line between two rests."""
    before_s, passed = least_s, 0.0
    for rest_s, weight in rests:
        if passed + weight >= wanted:
            return before_s + (rest_s - before_s) * (wanted - passed) / weight
        passed, before_s = passed + weight, rest_s
    return before_s
