"""Time a queue policy's pick and its charges: `python -m benchmarks.vtc_pick [--policy NAME] [--json]`.

One operation: pick the next request of all waiting tenants, admit it, charge its prompt, charge one output token,
finish it, and queue another request of its tenant. Baselines, in the same run on the same sequence of charges:

- bare heap: one heapreplace of (counter, tenant) for each pick: the least that an exact pick can cost
- scan: collect the waiting tenants and take the lowest counter, as the published queue does on line 20 of the paper's
  Algorithm 2 (to 10,000 tenants)

"Pick" is `peek` alone, right after a charge made the head stale; "whole" is everything named above. The last columns
are ratios of the means in this run: the scan to the pick, and each pick to the first row's, beside the logarithm's.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from heapq import heapify, heapreplace
from statistics import fmean
from time import perf_counter_ns

from dispatcher.policies.percentiles import percentile
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy

SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
SCAN_MAX = 10_000
PICKS = 20_000
SCAN_TIME_MAX_S = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vtc_pick", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--policy", default="vtc", help="a queue policy by its name (vtc)")
    options = parser.parse_args()
    rows = [measure(tenants, options.policy) for tenants in SIZES]
    if options.json:
        sys.stdout.write(json.dumps({f"{options.policy}_pick_us": rows}) + "\n")
    else:
        sys.stdout.write(table(rows, options.policy))
    return 0


def measure(tenants: int, policy: str = "vtc") -> dict[str, object]:
    """Return mean and P99 in microseconds; None for what was not measured."""
    names = [f"tenant-{number:07}" for number in range(tenants)]
    picks, whole = picked(names, policy)
    row: dict[str, object] = {"tenants": tenants, "pick": figures(picks), "whole": figures(whole)}
    row["bare_heap"] = figures(bare_heap(names))
    row["scan"] = figures(scan(names)) if tenants <= SCAN_MAX else None
    gc.collect()
    return row


def picked(names: list[str], policy_name: str) -> tuple[list[int], list[int]]:
    policy, prompts = make_policy(policy_name), prompt_lengths()
    for number, name in enumerate(names):
        # Two requests each: the tenant stays in the queue, like a flooding tenant, and its heap entry becomes stale.
        policy.enqueue(QueueRequest(f"r{number}-0", name, next(prompts)))
        policy.enqueue(QueueRequest(f"r{number}-1", name, next(prompts)))
    upcoming = [QueueRequest(f"n{number}", "", next(prompts)) for number in range(PICKS)]
    policy.peek()
    picks, whole = [], []
    with quiet():
        for blank in upcoming:
            start = perf_counter_ns()
            head = policy.peek()
            picked = perf_counter_ns()
            assert head is not None
            policy.admit(head.request_id)
            policy.on_generated(head.request_id, 1)
            policy.finish(head.request_id)
            policy.enqueue(QueueRequest(blank.request_id, head.tenant, blank.input_tokens))
            whole.append(perf_counter_ns() - start)
            picks.append(picked - start)
    return picks, whole


def bare_heap(names: list[str]) -> list[int]:
    prompts = prompt_lengths()
    heap = [(0.0, name) for name in names]
    heapify(heap)
    charges = [next(prompts) + 2.0 for _ in range(PICKS)]
    return timed(charges, lambda charge: heapreplace(heap, (heap[0][0] + charge, heap[0][1])))


def scan(names: list[str]) -> list[int]:
    prompts = prompt_lengths()
    counters, queue = dict.fromkeys(names, 0.0), dict.fromkeys(names, 2)
    picks = max(200, min(PICKS, int(SCAN_TIME_MAX_S / (len(names) * 100e-9))))
    charges = [next(prompts) + 2.0 for _ in range(picks)]

    def pick(charge: float) -> None:
        waiting = {name: counter for name, counter in counters.items() if queue[name]}
        counters[min(waiting, key=waiting.__getitem__)] += charge

    return timed(charges, pick)


def timed(charges: list[float], pick: Callable[[float], object]) -> list[int]:
    durations = []
    with quiet():
        for charge in charges:
            start = perf_counter_ns()
            pick(charge)
            durations.append(perf_counter_ns() - start)
    return durations


def prompt_lengths() -> Iterator[int]:
    """Yield the same lengths in every run: log-normal around 128 tokens."""
    source = random.Random(1)
    while True:
        yield min(8_192, max(1, int(source.lognormvariate(math.log(128), 1.0))))


class quiet:  # noqa: N801 - reads as a statement
    """Disable garbage collection while timing: its walk over a million tenants is no part of a pick."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


def figures(durations_ns: list[int]) -> dict[str, float]:
    return {
        "mean_us": round(fmean(durations_ns) / 1_000, 2),
        "p99_us": round((percentile(durations_ns, 0.99) or 0.0) / 1_000, 2),
    }


def table(rows: list[dict[str, object]], policy: str) -> str:
    columns = ("pick", "whole", "bare_heap", "scan")
    head = "".join(f"{name:>20}" for name in columns) + f"{'scan / pick':>14}{'pick / first':>14}{'log / first':>13}"
    lines = [f"{policy}, microseconds: mean / P99", f"{'tenants':>10}{head}"]
    for row in rows:
        cells = [row[name] for name in columns]
        shown = [f"{c['mean_us']:.2f} / {c['p99_us']:.2f}" if isinstance(c, dict) else "-" for c in cells]
        ratios = [ratio(row, "scan", row, "pick"), ratio(row, "pick", rows[0], "pick")]
        growth = math.log(float(str(row["tenants"]))) / math.log(float(str(rows[0]["tenants"])))
        line = f"{row['tenants']:>10,}" + "".join(f"{cell:>20}" for cell in shown)
        lines.append(line + f"{ratios[0]:>14}{ratios[1]:>14}{growth:>13.1f}")
    return "\n".join(lines) + "\n"


def ratio(row: dict[str, object], name: str, other: dict[str, object], to: str) -> str:
    above, below = row[name], other[to]
    return f"{above['mean_us'] / below['mean_us']:.1f}" if isinstance(above, dict) and isinstance(below, dict) else "-"


if __name__ == "__main__":
    sys.exit(main())
