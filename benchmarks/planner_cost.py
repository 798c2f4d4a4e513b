"""Time a plan: `python -m benchmarks.planner_cost`.

A plan of unlike fleets with backlogs of all models, in CPU milliseconds of the thread, the median of some plans: the
orders alone (insertion and annealing of MOVES moves), and with simple rules played forward (choice.py). Both are of one
run; the second plan has what the first has, and arrivals to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import median
from time import thread_time_ns

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.claims import TenantBacklog
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.policies.planning.groups import GroupFigures, GroupKey
from dispatcher.policies.planning.history import Expected
from dispatcher.policies.planning.plan import make_plan

SIZES = ((3, 4, 10), (16, 12, 100), (64, 30, 300))
"""Workers, models, tenants."""
MOVES = 1_000
NOW = 1e9
_PLANS = 5
_WAITING_MAX, _PER_S = 20, 0.2


def fleet(workers: int, models: int, random: Random) -> list[FleetWorker]:
    names = [f"m{at}" for at in range(models)]
    made = []
    for at in range(workers):
        kind, rate = random.choice((("fast", 4_000.0), ("slow", 1_500.0)))
        loaded = random.choice(names)
        swap_s = {name: 0.0 if name == loaded else 5.0 for name in names}
        rates = dict.fromkeys(names, rate)
        made.append(
            FleetWorker(f"w{at}", kind, loaded, NOW - 60, swap_s, 2.0, rates, 32, 5.0, random.randint(0, 32), 0.0, 0.0)
        )
    return made


def backlogs(tenants: int, models: int, random: Random) -> list[TenantBacklog]:
    found = []
    for at in range(tenants):
        model = f"m{random.randrange(models)}"
        waiting = random.randint(1, _WAITING_MAX)
        due_at = NOW + random.uniform(-10, 20)
        group = GroupFigures(GroupKey(model, "interactive", 0), waiting, waiting * 600.0, 200.0, 20.0, due_at, due_at)
        service = {model: 60 * _PER_S * 600.0}
        found.append(TenantBacklog(f"t{at}", Share(), [group], service, {model: Expected(_PER_S, 600.0, 20.0)}))
    return found


def plan_ms(given: Sequence[TenantBacklog], workers: Sequence[FleetWorker]) -> float:
    times = []
    for seed in range(_PLANS):
        begin = thread_time_ns()
        make_plan(given, workers, NOW + seed, moves=MOVES)
        times.append((thread_time_ns() - begin) / 1e6)
    return median(times)


def main() -> None:
    print("workers  models  tenants   orders alone   with rules played forward")
    for workers, models, tenants in SIZES:
        random = Random(f"{workers} {tenants}")
        made, given = fleet(workers, models, random), backlogs(tenants, models, random)
        alone = plan_ms([replace(each, expected={}) for each in given], made)
        print(f"{workers:7} {models:7} {tenants:8} {alone:11.1f} ms {plan_ms(given, made):11.1f} ms")


if __name__ == "__main__":
    main()
