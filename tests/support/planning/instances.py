"""Planning problems for tests and benchmarks, the same for the same seed."""

from __future__ import annotations

from random import Random

from dispatcher.policies.planning.costs import ends_s
from dispatcher.policies.planning.problem import PlannedWorker, Problem, WaitingGroup

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
    """Return a problem for which a plan without lateness exists: due times are its ends, times 1 + `slack`."""
    random = Random(seed)
    names = [f"m{at}" for at in range(models)]
    swap_s = {name: random.uniform(3.0, 10.0) for name in names}
    planned = [PlannedWorker(f"w{at}", KIND, random.choice(names), swap_s) for at in range(workers)]
    made: list[WaitingGroup] = []
    queues: list[list[int]] = [[] for _ in planned]
    for at, worker in enumerate(planned):
        model = worker.loaded
        for _ in range(groups // workers):
            model = random.choice(names) if random.random() < 0.3 else model
            queues[at].append(len(made))
            seconds = {KIND: random.uniform(5.0, 30.0)}
            made.append(WaitingGroup(f"g{len(made)}", model, random.randint(16, 64), 0.0, seconds))
    undated = Problem(made, planned)
    due_s = {
        group: end * (1.0 + slack)
        for worker, queue in enumerate(queues)
        for group, end in zip(queue, ends_s(undated, worker, queue), strict=True)
    }
    dated = [
        WaitingGroup(each.name, each.model, each.requests, due_s[at], each.seconds) for at, each in enumerate(made)
    ]
    random.shuffle(dated)
    return Problem(dated, planned)
