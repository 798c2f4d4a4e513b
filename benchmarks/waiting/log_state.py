"""What a gate would know at a time of a measured run: from the log's past only.

What the logs do not have is put together from them:

- the output tokens that a running request has so far: its tokens, spread evenly from first to last, as a stream shows
- Θ: the mean service rate while a request waits longer than LATE_S, with an exponential memory of MEMORY_S, once that
  lasted MEASURED_MIN_S. A shorter wait is that of an admission, which this server attempts every ten decode steps
- B r: r per request for the mean number of running requests in that time
- room: fewer requests run and wait than QLM's equation 16 gives, pool / mean of (input + output), and none is late
- P: the mean wait of requests that waited less than LATE_S
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from math import exp
from pathlib import Path

from dispatcher.policies.planning.fair_drain import ArrivalRate
from dispatcher.policies.planning.lengths import LengthHistory, Lengths, lengths_without_history
from dispatcher.policies.planning.waiting import Ahead, Backlog, Batch
from dispatcher.policies.service import WEIGHTED_TOKENS

LATE_S = 1.0
MEMORY_S = 60.0
MEASURED_MIN_S = 5.0
FIRST_TOKEN_STEP = 0.05
MAX_TOKENS = 1024
PRIOR = lengths_without_history(MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class Row:
    """A served request of a log; times in seconds of the run."""

    number: str
    arrival_s: float
    tenant: str
    input_tokens: int
    output_tokens: int
    first_s: float
    end_s: float

    @property
    def output_per_s(self) -> float:
        return self.output_tokens / max(self.end_s - self.first_s, 1e-3)


def read(path: Path) -> list[Row]:
    """Read the served requests of a measured run. Requests that the scheduler refused never waited."""
    with path.open(newline="") as file:
        rows = [_row(number, row) for number, row in enumerate(csv.DictReader(file)) if float(row["latency_s"]) >= 0]
    return sorted(rows, key=lambda row: row.arrival_s)


def _row(number: int, row: dict[str, str]) -> Row:
    arrival_s = float(row["arrival_s"])
    tokens = int(row["input_tokens"]), int(row["output_tokens"])
    first_s, end_s = arrival_s + float(row["ttft_s"]), arrival_s + float(row["latency_s"])
    return Row(str(number), arrival_s, row["tenant"], *tokens, first_s, end_s)


class LogState:
    """The queue, the batch, and what was learned of lengths, arrivals, Θ, B and P. Call `pass_to` before each event."""

    def __init__(self, pool_tokens: int) -> None:
        self._pool_tokens = pool_tokens
        self.waiting: dict[str, Row] = {}
        self.running: dict[str, Row] = {}
        self.backlogs: defaultdict[str, Backlog] = defaultdict(Backlog)
        self.arrivals: defaultdict[str, ArrivalRate] = defaultdict(ArrivalRate)
        self._request_tokens = LengthHistory()
        self._lengths: defaultdict[str, LengthHistory] = defaultdict(LengthHistory)
        self._all_lengths = LengthHistory()
        self._now_s = 0.0
        self._served = self._served_s = self._running_s = 0.0
        self.first_token_s = 0.0

    @property
    def capacity_per_s(self) -> float | None:
        return self._served / self._served_s if self._served_s >= MEASURED_MIN_S else None

    def pass_to(self, now_s: float) -> None:
        """Measure Θ and the batch over the time that passes."""
        passed_s, self._now_s = now_s - self._now_s, now_s
        if not self._late(now_s) or passed_s <= 0:
            return
        keep = exp(-passed_s / MEMORY_S)
        rate = WEIGHTED_TOKENS.output_weight * sum(row.output_per_s for row in self.running.values())
        self._served = self._served * keep + rate * passed_s
        self._served_s = self._served_s * keep + passed_s
        self._running_s = self._running_s * keep + len(self.running) * passed_s

    def arrive(self, row: Row) -> None:
        self.waiting[row.number] = row
        self.backlogs[row.tenant].arrived(row.input_tokens)
        self.arrivals[row.tenant].arrived(self.cost(row), row.arrival_s)

    def first_token(self, row: Row) -> None:
        if self._late(row.first_s):
            self._served += row.input_tokens
        del self.waiting[row.number]
        self.backlogs[row.tenant].left(row.input_tokens)
        self.running[row.number] = row
        if row.first_s - row.arrival_s < LATE_S:
            known_s = self.first_token_s or row.first_s - row.arrival_s
            self.first_token_s = known_s + FIRST_TOKEN_STEP * (row.first_s - row.arrival_s - known_s)

    def end(self, row: Row) -> None:
        del self.running[row.number]
        self._lengths[row.tenant].observe(row.output_tokens)
        self._all_lengths.observe(row.output_tokens)
        self._request_tokens.observe(row.input_tokens + row.output_tokens)

    def lengths(self, tenant: str) -> Lengths:
        return self._lengths[tenant].lengths(self._all_lengths.lengths(PRIOR))

    def cost(self, row: Row) -> float:
        """Return the service that a request is expected to need."""
        return row.input_tokens + WEIGHTED_TOKENS.output_weight * self.lengths(row.tenant).output_mean

    def ahead_of(self, tenant: str) -> Ahead:
        return self.backlogs[tenant].ahead(self.lengths(tenant))

    def batch(self) -> Batch:
        rest = residual = 0.0
        for row in self.running.values():
            lengths = self.lengths(row.tenant)
            rest += lengths.left_after(row.output_per_s * (self._now_s - row.first_s))
            residual += lengths.residual
        each = residual / len(self.running) if self.running else self.lengths("").residual
        size = self._running_s / self._served_s if self._served_s else 0.0
        weight = WEIGHTED_TOKENS.output_weight
        return Batch(weight * rest, weight * size * each, self._has_room())

    def _has_room(self) -> bool:
        size = self._pool_tokens / self._request_tokens.lengths(PRIOR).output_mean
        return len(self.running) + len(self.waiting) < size and not self._late(self._now_s)

    def _late(self, now_s: float) -> bool:
        return any(now_s - row.arrival_s > LATE_S for row in self.waiting.values())
