"""Replay the VTC paper's measured runs, forced by their logs, and predict each next mini-batch:
`python -m benchmarks.replayed_runs`.

A simulation of a whole run cannot tell an error of the rules from chance, because one request that is admitted a step
earlier changes the order for the rest. Here the log leads. At each of its mini-batches, what came before is as the log
has it: which requests ran, for how many steps, and what each tenant was charged. From this state the policy and the
rule of admission predict the mini-batch. It counts as predicted if it has exactly the log's requests.

The number of decode steps between two events of a log follows from three facts. A request with o output tokens decodes
exactly o - 1 steps from its mini-batch to its end. No step is negative. And the time between two events is that of the
steps and of the prefill between them. So the step of each mini-batch is the least-squares solution of one equation an
interval, rounded; the step times of the run are fitted in the same rounds.

The table has four servers for each run under counters: that of artifact_policy.py with the room for adapters; the same
with the second charge where it has none, and without where it has one; without the room; and the product's policy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dispatcher.policies.service import service_function
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from headgate.evidence.vtc.measured import A10G, DELIVERY_S, engine_of, measured_logs, policy_of, read_run
from headgate.simulator.engines.kv_peak import KvPeak
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

TRACES = Path(__file__).parents[2] / "shared" / "traces"
_TOGETHER_S = 0.002
_ROUNDS = 8
_SAME = 0.25
"""Two ends that are less than this part of a step apart are in one step."""
_ENDLESS = 10**9
_PRODUCT = {"vtc_predict": "vtc-predict", "vtc_oracle": "vtc-oracle", "vtc_pred_50": "vtc-noisy:0.5"}


@dataclass(frozen=True, slots=True)
class Logged:
    """`prompt`: with the tokens that the server adds."""

    number: int
    arrival: Arrival
    first_s: float
    end_s: float
    prompt: int

    @property
    def steps(self) -> int:
        return self.arrival.output_tokens - 1


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """`step`: the decode step of the run before which it was prefilled. `seen_s`: arrivals until then are queued."""

    requests: tuple[Logged, ...]
    step: int
    first_s: float
    seen_s: float


def mini_batches(path: Path, profile: EngineProfile) -> list[MiniBatch]:
    """Return the mini-batches of a run, with their decode steps."""
    requests = [
        Logged(
            number,
            arrival,
            arrival.arrival_s + first_s,
            arrival.arrival_s + whole_s,
            arrival.input_tokens + profile.prompt_extra_tokens,
        )
        for number, (arrival, first_s, whole_s) in enumerate(row for row in read_run(path) if row[2] >= 0)
    ]
    groups: list[list[Logged]] = []
    for request in sorted(requests, key=lambda each: each.first_s):
        if not groups or request.first_s - groups[-1][-1].first_s > _TOGETHER_S:
            groups.append([])
        groups[-1].append(request)
    steps = _Steps(groups, profile).solve()
    return [
        MiniBatch(
            tuple(sorted(group, key=lambda each: each.number)),
            step,
            group[-1].first_s,
            group[-1].first_s - profile.prefill_s(sum(each.prompt for each in group)) - DELIVERY_S,
        )
        for group, step in zip(groups, steps, strict=True)
    ]


_Event = tuple[float, int, int, tuple[Logged, ...]]
"""When; the number of the mini-batch that the event belongs to; how many steps after it; the requests of a mini-batch
that is prefilled now, none for the end of a request."""


class _Steps:
    """The decode step of each mini-batch, from the times of a log."""

    def __init__(self, groups: Sequence[Sequence[Logged]], profile: EngineProfile) -> None:
        self._profile = profile
        self._times = np.array([profile.decode_base_s, profile.decode_per_request_s, profile.decode_per_kv_token_s])
        events: list[_Event] = [(group[-1].first_s, number, 0, tuple(group)) for number, group in enumerate(groups)]
        for number, group in enumerate(groups):
            events += [(each.end_s, number, each.steps, ()) for each in group if each.steps > 0]
        self._events = sorted(events, key=lambda event: event[0])
        self._found = np.array([group[-1].first_s for group in groups]) / self._times[0]

    def solve(self) -> list[int]:
        for number in range(_ROUNDS):
            intervals = list(self._intervals())
            self._solve_steps(intervals)
            self._fit_times(intervals, np.round(self._found) if number >= _ROUNDS // 2 else self._found)
        return [int(step) for step in np.round(self._found)]

    def _intervals(self) -> Iterator[_Interval]:
        """Yield the time between each two events, and the batch in it."""
        batch: dict[tuple[int, int], list[Logged]] = {}
        running, before = 0, None
        for event in self._events:
            time_s, number, steps, group = event
            if before is not None:
                middle = (self._found[before[1]] + before[2] + self._found[number] + steps) / 2
                held = sum(
                    each.prompt + 1 + middle - self._found[begun]
                    for (begun, _), all_of in batch.items()
                    for each in all_of
                )
                prefill_s = self._profile.prefill_s(sum(each.prompt for each in group)) if group else 0.0
                yield _Interval(before, event, time_s - before[0] - prefill_s, running, held)
            for each in group:
                if each.steps > 0:
                    batch.setdefault((number, each.steps), []).append(each)
                    running += 1
            if not group:
                batch[number, steps].pop()
                running -= 1
            before = event

    def _solve_steps(self, intervals: Sequence[_Interval]) -> None:
        size = len(self._found)
        matrix, right = np.zeros((size, size)), np.zeros(size)
        matrix[0, 0] = 1.0
        for each in intervals:
            one, other = each.after[1], each.before[1]
            steps, sure = self._expect_steps(each)
            steps += each.before[2] - each.after[2]
            square = sure * sure
            for place, sign in ((one, 1.0), (other, -1.0)):
                matrix[place, one] += sign * square
                matrix[place, other] -= sign * square
                right[place] += sign * square * steps
        found = np.linalg.solve(matrix, right)
        self._found = found - np.angle(np.exp(2j * np.pi * found).mean()) / (2 * np.pi)

    def _expect_steps(self, each: _Interval) -> tuple[float, float]:
        """Return the steps of an interval by its time, and how sure that is."""
        if not each.running:
            return 0.0, 30.0
        steps = max(each.seconds / float(self._times @ (1.0, each.running, each.held)), 0.0)
        if steps < _SAME and not each.before[3] and not each.after[3]:
            return 0.0, 60.0
        return steps, 1.0 / (0.05 + 0.01 * steps + (0.1 if each.after[3] else 0.0))

    def _fit_times(self, intervals: Sequence[_Interval], found: np.ndarray) -> None:
        """Fit the step times of this run to the intervals without a prefill; outliers count little."""
        rows, seconds = [], []
        for each in intervals:
            steps = found[each.after[1]] + each.after[2] - found[each.before[1]] - each.before[2]
            if each.running and not each.after[3] and steps > _SAME:
                rows.append((steps, steps * each.running, steps * each.held))
                seconds.append(each.seconds)
        columns, right = np.array(rows), np.array(seconds)
        weights = np.ones(len(right))
        for _ in range(3):
            self._times = np.linalg.lstsq(columns * weights[:, None], right * weights, rcond=None)[0]
            weights = 1.0 / (1.0 + ((right - columns @ self._times) / 0.01) ** 2)


@dataclass(frozen=True, slots=True)
class _Interval:
    """`seconds`: without the prefill that ends it. `held`: KV tokens in its middle."""

    before: _Event
    after: _Event
    seconds: float
    running: int
    held: float


def predict(path: Path, profile: EngineProfile, policy: QueuePolicy) -> tuple[int, int]:
    """Return how many mini-batches of a run the policy and the rule of admission predict, and of how many."""
    return _Replay(mini_batches(path, profile), profile, policy).play()


class _Replay:
    def __init__(self, batches: Sequence[MiniBatch], profile: EngineProfile, policy: QueuePolicy) -> None:
        self._batches = batches
        self._profile = profile
        self._policy = policy
        self._pool = KvPeak(profile.pool_tokens, profile.batch_max, profile.tenant_tokens)
        self._pool.step = batches[0].step
        self._arriving = sorted((each for batch in batches for each in batch.requests), key=lambda each: each.number)
        self._known = {str(each.number): each for each in self._arriving}
        self._seen_s = 0.0

    def play(self) -> tuple[int, int]:
        predicted = 0
        for batch in self._batches:
            self._decode_and_enqueue(batch)
            predicted += self._predict() == {str(each.number) for each in batch.requests}
            self._admit(batch)
        return predicted, len(self._batches)

    def _decode_and_enqueue(self, batch: MiniBatch) -> None:
        """Take the steps up to this mini-batch. Each arrival is queued after its part of them, because a tenant that
        joins is lifted to a counter of that moment."""
        last = max(each.number for each in batch.requests)
        begin_s, begin, steps = self._seen_s, self._pool.step, batch.step - self._pool.step
        while self._arriving and (
            self._arriving[0].arrival.arrival_s <= batch.seen_s or self._arriving[0].number <= last
        ):
            each = self._arriving.pop(0)
            share = (each.arrival.arrival_s - begin_s) / max(batch.seen_s - begin_s, 1e-9)
            self._decode_until(begin + int(steps * min(max(share, 0.0), 1.0)))
            self._policy.enqueue(_request_of(each), each.arrival.arrival_s)
        self._decode_until(batch.step)
        self._seen_s = batch.first_s

    def _decode_until(self, step: int) -> None:
        while self._pool.step < step:
            until = int(min(step, max(self._pool.next_end, self._pool.step + 1)))
            self._policy.on_decoded(until - self._pool.step)
            self._pool.step = until
            for request, _ in self._pool.take_ended():
                self._policy.finish(request.request_id)

    def _predict(self) -> set[str]:
        policy, pool, admitted, tokens = deepcopy(self._policy), deepcopy(self._pool), set[str](), 0
        while (head := policy.peek()) is not None:
            each = self._known[head.request_id]
            if admitted and tokens + each.prompt > self._profile.minibatch_tokens_max:
                break
            if pool.add_if_fits(_request_of(each), each.prompt, each.arrival.output_tokens) is not None:
                break
            policy.admit(head.request_id)
            admitted.add(head.request_id)
            tokens += each.prompt
        return admitted

    def _admit(self, batch: MiniBatch) -> None:
        """Admit what the log admitted, whether it fits by the rules or not."""
        pool_tokens, self._pool.pool_tokens = self._pool.pool_tokens, _ENDLESS
        for each in batch.requests:
            self._policy.admit(str(each.number))
            self._pool.add_if_fits(_request_of(each), each.prompt, each.arrival.output_tokens)
            self._policy.on_generated(str(each.number), 1)
        self._pool.pool_tokens = pool_tokens
        for request, _ in self._pool.take_ended():
            self._policy.finish(request.request_id)


def _request_of(each: Logged) -> SimRequest:
    return SimRequest(str(each.number), each.arrival, each.arrival.arrival_s)


def _product_policy(run: str) -> QueuePolicy:
    scheduler = run.rpartition(".")[2]
    name = scheduler.removesuffix("_profile")
    return make_policy(_PRODUCT.get(name, name), service_function("profiled" if name != scheduler else "weighted"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replayed_runs", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", help="names of runs, such as real.vtc; all of the A10G under counters")
    options = parser.parse_args()
    logs = [path for path in measured_logs(TRACES) if engine_of(path) == A10G and _is_asked(path.stem, options.runs)]
    if not logs:
        sys.stderr.write(f"no such measured run in {TRACES}\n")
        return 2
    profile = load_profile(A10G)
    without_room = profile.model_copy(update={"tenant_tokens": 0})
    sys.stdout.write(
        "| run | mini-batches | predicted | other charge | no room | product |\n" + "| --- |" + 5 * " ---: |" + "\n"
    )
    for path in logs:
        name = path.stem
        found, count = predict(path, profile, policy_of(name, profile))
        other, _ = predict(path, profile, policy_of(name, profile, changes_charge=True))
        no_room, _ = predict(path, without_room, policy_of(name, profile))
        product, _ = predict(path, profile, _product_policy(name))
        sys.stdout.write(f"| {name} | {count} | {found} | {other} | {no_room} | {product} |\n")
        sys.stdout.flush()
    return 0


def _is_asked(run: str, asked: Sequence[str]) -> bool:
    return run in asked if asked else ".vtc" in run or run.endswith(".lcf")


if __name__ == "__main__":
    sys.exit(main())
