"""The planner beside the exact optimum, and a thousand groups on a hundred workers beside simpler planners.

    python -m benchmarks.planner_quality [--instances N] [--moves N]

The first table has problems of 8 to 10 groups, 2 to 4 models and 2 or 3 workers (headgate/evidence/qlm/problems.py).
Ratios are over the problems for which the best plan has lateness; for the others, a plan without lateness must be
found. The others have problems of 1,000 groups, 100 workers and 10 models, for which a plan without lateness exists:
the due times are the ends of a known plan, 8 % later. "Mixed" has fast and slow workers, and hardly any swaps in the
known plan, which leaves little reserve; "uniform" is easier. "Late" is the part of the requests that are served too
late.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from dispatcher.policies.planning.problem import Problem, Queue, late_requests, plan_cost, queue_cost
from dispatcher.policies.planning.search import anneal, insert_by_due_time
from headgate.evidence.qlm.exact import cheapest_cost
from headgate.evidence.qlm.problems import mixed, small
from tests.support.planning.baselines import edf_in_turn, list_edf
from tests.support.planning.problems import feasible

Planner = Callable[[Problem], list[Queue]]
NO_LATENESS = 1.0
"""A weighted cost below this is that of swaps alone: a second of an entitled request costs a million."""
LARGE_MOVES = (200_000, 800_000)
SEEDS = (1, 2, 3, 4, 5)


def cost_of(problem: Problem, queues: list[Queue]) -> float:
    return sum(queue_cost(problem, worker, queue) for worker, queue in enumerate(queues))


def annealed(moves: int) -> Planner:
    return lambda problem: anneal(problem, insert_by_due_time(problem), moves)


def against_exact(instances: int, moves: int) -> None:
    problems = [small(seed) for seed in range(instances)]
    began_s = time.process_time()
    exact = [cheapest_cost(problem) for problem in problems]
    exact_s = (time.process_time() - began_s) / instances
    print(f"{instances} problems of 8 to 10 groups; the exact programme takes {exact_s:.2f} s of CPU for each")
    print(f"{'':24} {'mean':>7} {'P90':>7} {'worst':>7} {'exact':>11} {'without lateness':>17} {'CPU s':>7}")
    planners = {
        f"annealing, {moves:,} moves": annealed(moves),
        "insertion": insert_by_due_time,
        "list EDF": list_edf,
        "EDF, workers in turn": edf_in_turn,
    }
    for name, planner in planners.items():
        began_s = time.process_time()
        plans = [planner(problem) for problem in problems]
        seconds = (time.process_time() - began_s) / instances
        costs = [cost_of(problem, plan) for problem, plan in zip(problems, plans, strict=True)]
        ratios = sorted(cost / best for cost, best in zip(costs, exact, strict=True) if best >= NO_LATENESS)
        zeros = [cost < NO_LATENESS for cost, best in zip(costs, exact, strict=True) if best < NO_LATENESS]
        same = sum(ratio < 1.0001 for ratio in ratios)
        p90 = ratios[int(0.9 * len(ratios))]
        counts = f"{same:>4} of {len(ratios):<4} {sum(zeros):>9} of {len(zeros):<4}"
        print(f"{name:24} {statistics.mean(ratios):>7.3f} {p90:>7.3f} {ratios[-1]:>7.3f} {counts} {seconds:>7.3f}")


def large(name_of_problems: str, make: Callable[[int], Problem]) -> None:
    print(f"\n{name_of_problems}: 1,000 groups, 100 workers, 10 models, 8 % slack; means of {len(SEEDS)} problems")
    planners: dict[str, Planner] = {"EDF, workers in turn": edf_in_turn, "list EDF": list_edf}
    planners["insertion"] = insert_by_due_time
    planners |= {f"annealing, {moves:,} moves": annealed(moves) for moves in LARGE_MOVES}
    for name, planner in planners.items():
        late, swap_s = [], []
        began_s = time.process_time()
        plans = [(problem, planner(problem)) for problem in map(make, SEEDS)]
        seconds = (time.process_time() - began_s) / len(SEEDS)
        for problem, plan in plans:
            late.append(late_requests(problem, plan) / sum(group.requests for group in problem.groups))
            swap_s.append(plan_cost(problem, plan).swap_s)
        print(
            f"{name:26} late {100 * statistics.mean(late):>6.2f} %   swaps {statistics.mean(swap_s):>6.0f} s   "
            f"{seconds:>6.2f} CPU s"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner_quality", description=__doc__)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--moves", type=int, default=24_000, help="moves for a small problem")
    options = parser.parse_args()
    against_exact(options.instances, options.moves)
    large("mixed", mixed)
    large("uniform", feasible)
    return 0


if __name__ == "__main__":
    sys.exit(main())
