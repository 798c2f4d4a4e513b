"""Planning problems of tests and benchmarks beside those of Figure 20, the same for the same seed."""

from __future__ import annotations

from random import Random

from dispatcher.policies.planning.problem import PlannedWorker, Problem
from headgate.evidence.qlm.problems import KIND, from_known_plan


def feasible(seed: int, groups: int = 1000, workers: int = 100, models: int = 10, slack: float = 0.08) -> Problem:
    """Return an easy problem of one kind of worker. The known plan changes the model at three of ten groups."""
    random = Random(seed)
    names = [f"m{at}" for at in range(models)]
    swap_s = {name: random.uniform(3.0, 10.0) for name in names}
    planned = [PlannedWorker(f"w{at}", KIND, random.choice(names), swap_s) for at in range(workers)]
    return from_known_plan(random, planned, {name: {KIND: 1.0} for name in names}, groups, 0.3, slack)
