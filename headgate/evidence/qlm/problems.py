"""Planning problems for Figure 20 and for the exact optimum, the same for the same seed.

Groups of hundreds of workers are made from a known plan: due times are its ends, times 1 + `slack`. So a plan without
lateness exists. How hard it is to find depends on the known plan's swaps: their time is a reserve for every plan that
needs fewer. `mixed` has few, and two kinds of worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from dispatcher.policies.planning.problem import PlannedWorker, Problem, WaitingGroup, ends_s

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


def mixed(seed: int, groups: int = 1000, workers: int = 100, models: int = 10, slack: float = 0.08) -> Problem:
    """Return a problem of fast and slow workers. A slow one takes 2 to 4 times as long, by model, fits about half of
    the models, and swaps in twice the time. The known plan changes the model at three of a hundred groups."""
    random = Random(seed)
    names = [f"m{at}" for at in range(models)]
    small = [name for name in names if random.random() < 0.5] or names[:1]
    swaps_s = {name: random.uniform(3.0, 10.0) for name in names}
    factors = {
        name: {"fast": 1.0, "slow": random.uniform(2.0, 4.0)} if name in small else {"fast": 1.0} for name in names
    }
    planned = []
    for at in range(workers):
        kind, fits, factor = ("slow", small, 2.0) if random.random() < 0.4 else ("fast", names, 1.0)
        swap_s = {name: factor * swaps_s[name] for name in fits}
        planned.append(PlannedWorker(f"w{at}", kind, random.choice(fits), swap_s))
    return from_known_plan(random, planned, factors, groups, 0.03, slack)


def from_known_plan(
    random: Random,
    workers: list[PlannedWorker],
    factors: Mapping[str, Mapping[str, float]],
    groups: int,
    change: float,
    slack: float,
) -> Problem:
    """Return groups for a plan in which workers change to any of their models with the probability `change`.

    `factors`: by model and kind, how much longer than the fastest kind it takes.
    """
    made: list[WaitingGroup] = []
    queues: list[list[int]] = [[] for _ in workers]
    for at, worker in enumerate(workers):
        model = worker.loaded
        for _ in range(groups // len(workers)):
            model = random.choice(list(worker.swap_s)) if random.random() < change else model
            queues[at].append(len(made))
            shortest_s = random.uniform(5.0, 30.0)
            seconds = {kind: shortest_s * factor for kind, factor in factors[model].items()}
            made.append(WaitingGroup(f"g{len(made)}", model, random.randint(16, 64), 0.0, seconds))
    undated = Problem(made, workers)
    due_s = {
        group: end * (1.0 + slack)
        for worker_at, queue in enumerate(queues)
        for group, end in zip(queue, ends_s(undated, worker_at, queue), strict=True)
    }
    dated = [replace(each, due_s=due_s[at]) for at, each in enumerate(made)]
    random.shuffle(dated)
    return Problem(dated, workers)
