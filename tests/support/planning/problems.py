"""Planning problems of tests and benchmarks beside those of Figure 20, the same for the same seed."""

from __future__ import annotations

from random import Random

from dispatcher.policies.planning.problem import PlannedWorker, Problem, WaitingGroup
from headgate.evidence.qlm.problems import from_known_plan

KIND = "gpu"


def small(seed: int) -> Problem:
    """Return 8 to 10 groups of 2 to 4 models for 2 or 3 workers, about as much work as can be done in time."""
    random = Random(seed)
    models = [f"m{at}" for at in range(random.randint(2, 4))]
    swap_s = {model: random.uniform(2.0, 15.0) for model in models}
    workers = [
        PlannedWorker(f"w{at}", KIND, random.choice(models), swap_s, random.uniform(0.0, 10.0))
        for at in range(random.randint(2, 3))
    ]
    count = random.randint(8, 10)
    horizon_s = 25.0 * count / len(workers)
    groups = [
        WaitingGroup(
            f"g{at}",
            random.choice(models),
            random.randint(1, 64),
            random.uniform(0.1, 1.4) * horizon_s,
            {KIND: random.uniform(5.0, 40.0)},
        )
        for at in range(count)
    ]
    return Problem(groups, workers)


def feasible(seed: int, groups: int = 1000, workers: int = 100, models: int = 10, slack: float = 0.08) -> Problem:
    """Return an easy problem of one kind of worker. The known plan changes the model at three of ten groups."""
    random = Random(seed)
    names = [f"m{at}" for at in range(models)]
    swap_s = {name: random.uniform(3.0, 10.0) for name in names}
    planned = [PlannedWorker(f"w{at}", KIND, random.choice(names), swap_s) for at in range(workers)]
    return from_known_plan(random, planned, {name: {KIND: 1.0} for name in names}, groups, 0.3, slack)
