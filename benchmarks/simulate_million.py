"""How fast `headgate simulate` is: `python -m benchmarks.simulate_million [--requests N] [--json]`.

It simulates one million requests of 1,000 tenants under VTC and under FCFS, without the gate, on `a10g-llama2-7b`.
Lengths are drawn from the arena trace of the VTC paper; arrivals are Poisson, at 1.1 times the engine's capacity. One
core is used. Each row has a process of its own, so that its peak memory is its own.

Seconds are CPU seconds of the process. The floor is what no simulator of these requests can save in Python: drawing
them, and a bare event loop that pushes the end of each on a heap and pops it. It is measured in the same process.

To measure where the time goes, the calls of the policy and of the KV pool in a run of 50,000 requests are recorded and
played again alone. The policy's are also played on BareVtc, which makes the same decisions and does nothing else: a
policy hardly costs less in Python. The baseline is an engine that takes one decode step after another and computes
everything anew, on few requests. The ratio is what skipping from event to event saves.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.bare_vtc import BareVtc
from benchmarks.sampled import SampledWorkload
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines import separate_prefill as engine_module
from headgate.simulator.engines.kv_peak import KvPeak
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.measures.collector import Collector
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.sources import open_workload

TRACE = Path("../shared/traces/vtc/real.csv")
TENANTS = 1_000
OVERLOAD = 1.1
CAPACITY_REQUESTS = 5_000
"""Requests of the backlog that measures the engine's capacity."""
COUNTED = 50_000
STEPWISE = 400
LIMIT_S, LIMIT_MB = 60.0, 2048.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_million", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--trace", type=Path, default=TRACE, help=f"lengths are drawn from it ({TRACE})")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--policy", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.trace.is_file():
        sys.stdout.write(f"skipped: there is no {options.trace} to draw lengths from\n")
        return 0
    if options.policy:
        sys.stdout.write(json.dumps(run(options.trace, options.requests, options.policy)) + "\n")
        return 0
    found = {
        "runs": [in_its_own_process(options.trace, options.requests, policy) for policy in ("vtc", "fcfs")],
        "parts": parts(options.trace),
        "stepwise_ratio": stepwise_ratio(options.trace),
    }
    sys.stdout.write(json.dumps(found) + "\n" if options.json else table(found))
    return 0


def sampled(trace: Path, requests: int) -> SampledWorkload:
    lengths = list(open_workload([str(trace)]))
    flood = SampledWorkload.of(lengths, requests=CAPACITY_REQUESTS, tenants=TENANTS, rate_per_s=1e6)
    served = simulate(RunSpec(flood, "fcfs", load_profile(), horizon_s=0.0))
    rate_per_s = OVERLOAD * served.served / served.total_time_s
    return SampledWorkload.of(lengths, requests=requests, tenants=TENANTS, rate_per_s=rate_per_s)


def run(trace: Path, requests: int, policy: str) -> dict[str, Any]:
    workload = sampled(trace, requests)
    floor_s = timed(lambda: bare_loop(workload))
    began = process_time()
    done = simulate(RunSpec(workload, policy, load_profile()))
    seconds = process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    return {
        "policy": policy,
        "requests": requests,
        "served": done.served,
        "rate_per_s": workload.rate_per_s,
        "seconds": seconds,
        "us_a_request": 1e6 * seconds / requests,
        "floor_us_a_request": 1e6 * floor_s / requests,
        "peak_mb": peak,
        "simulated_days": done.total_time_s / 86_400,
    }


def bare_loop(workload: SampledWorkload) -> None:
    """Draw every request, push its end on a heap, and pop the ends that are due."""
    ends: list[tuple[float, int]] = []
    for number, arrival in enumerate(workload):
        now_s = arrival.arrival_s
        while ends and ends[0][0] <= now_s:
            heappop(ends)
        heappush(ends, (now_s + 0.03 * arrival.output_tokens, number))


def in_its_own_process(trace: Path, requests: int, policy: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.simulate_million", "--requests", str(requests)]
    done = subprocess.run(
        [*command, "--trace", str(trace), "--policy", policy], check=True, capture_output=True, text=True
    )
    row: dict[str, Any] = json.loads(done.stdout)
    return row


Call = tuple[str, tuple[Any, ...]]


class _Recorded:
    """Records every call and passes it on."""

    def __init__(self, of: Any, calls: list[Call]) -> None:
        self._of, self._calls = of, calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._of, name)

        def recorded(*args: Any) -> Any:
            self._calls.append((name, args))
            return method(*args)

        return recorded


def parts(trace: Path) -> dict[str, float]:
    """Return microseconds per request: of the whole, the policy, the KV pool, and of feeding and measuring."""
    workload = sampled(trace, COUNTED)
    policy_calls: list[Call] = []
    pool_calls: list[Call] = []
    _play(workload, policy_calls, pool_calls)
    gc.freeze()  # a search for garbage among the recorded calls is no cost of a part
    whole_s = timed(lambda: _play(workload))
    fed_s = timed(lambda: drive(workload, _Instant(), Collector(WEIGHTED_TOKENS, 0.0)))
    policy_s = replayed(policy_calls, lambda: make_policy("vtc"))
    bare_s = replayed(policy_calls, BareVtc)
    if _play(workload, policy=BareVtc()) != _play(workload):
        raise RuntimeError("BareVtc decides otherwise")
    pool_s = replayed(pool_calls, lambda: KvPeak(load_profile().pool_tokens))
    scale = 1e6 / COUNTED
    engine_s = whole_s - policy_s - fed_s
    times_s = {"whole": whole_s, "policy": policy_s, "engine": engine_s, "KV pool of it": pool_s}
    times_s["a bare policy"] = bare_s
    times_s["feeding, measures"] = fed_s
    return {name: scale * seconds for name, seconds in times_s.items()}


class _RecordedKvPeak(KvPeak):
    calls: list[Call]

    def add_if_fits(self, request: Any, prompt: int, output: int) -> int | None:
        self.calls += [("at", (self.step,)), ("add_if_fits", (request, prompt, output))]
        return super().add_if_fits(request, prompt, output)

    def take_ended(self) -> Any:
        self.calls += [("at", (self.step,)), ("take_ended", ())]
        return super().take_ended()


def _play(
    workload: SampledWorkload,
    policy_calls: list[Call] | None = None,
    pool_calls: list[Call] | None = None,
    policy: Any = None,
) -> tuple[float, int]:
    """Return when the run ends, and its decisions."""
    policy = policy or make_policy("vtc")
    if policy_calls is not None:
        policy = _Recorded(policy, policy_calls)
    engine = make_engine(load_profile(), policy)
    if pool_calls is not None and isinstance(engine, engine_module.SeparatePrefillEngine):
        recorded = _RecordedKvPeak(load_profile().pool_tokens)
        recorded.calls = pool_calls
        engine._kv = recorded
    drive(workload, engine, Collector(WEIGHTED_TOKENS, 0.0))
    return engine.now_s, engine.decisions


def replayed(calls: list[Call], make: Callable[[], Any]) -> float:
    """Return the seconds of these calls on a new object, less those of the loop."""
    fresh = make()

    def call(name: str, args: tuple[Any, ...]) -> None:
        if name == "at":
            fresh.step = args[0]
        else:
            methods[name](*args)

    methods = {name: getattr(fresh, name) for name, _ in calls if name != "at"}

    def nothing(name: str, args: tuple[Any, ...]) -> None: ...

    def each(do: Callable[[str, tuple[Any, ...]], None]) -> None:
        for name, args in calls:
            do(name, args)

    return timed(lambda: each(call)) - timed(lambda: each(nothing))


def timed(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return process_time() - began


class _Instant:
    """An engine that serves every request at once: what is left is feeding and measuring."""

    now_s = 0.0

    def __init__(self) -> None:
        self._done: list[Any] = []

    def submit(self, request: Any, at_s: float) -> bool:
        request.admitted_s, request.first_token_s, request.finish_s = at_s, at_s, at_s
        self.now_s = at_s
        self._done.append(request)
        return True

    def advance(self, until_s: float) -> list[Any]:
        done, self._done = self._done, []
        return done


def stepwise_ratio(trace: Path) -> float:
    from tests.support.simulator.stepwise_engine import StepwiseEngine

    arrivals = list(sampled(trace, STEPWISE))
    literal_s = timed(lambda: StepwiseEngine(load_profile(), make_policy("vtc")).play(arrivals))
    skipping_s = timed(
        lambda: drive(arrivals, make_engine(load_profile(), make_policy("vtc")), Collector(WEIGHTED_TOKENS, 0.0))
    )
    return literal_s / skipping_s


def table(found: dict[str, Any]) -> str:
    lines = ["policy      requests   seconds   µs a request   floor, µs   peak MB   simulated days   within 60 s, 2 GB"]
    for row in found["runs"]:
        within = row["seconds"] <= LIMIT_S and row["peak_mb"] <= LIMIT_MB
        lines.append(
            f"{row['policy']:8} {row['requests']:11,} {row['seconds']:9.1f} {row['us_a_request']:14.1f} "
            f"{row['floor_us_a_request']:11.1f} {row['peak_mb']:9.0f} {row['simulated_days']:16.1f}   "
            f"{'yes' if within else 'no'}"
        )
    whole = found["parts"]["whole"]
    lines.append("\nwhere it goes (vtc, 50,000 requests), µs a request")
    lines += [f"{name:18} {value:6.1f}  {value / whole:6.0%}" for name, value in found["parts"].items()]
    lines.append(f"engine over policy: {found['parts']['engine'] / found['parts']['policy']:.2f}")
    lines.append(f"one step after another, over skipping to the next event: {found['stepwise_ratio']:.0f} times")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
