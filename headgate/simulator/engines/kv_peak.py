"""Admission by the peak of future KV use: the requests in the batch, when each ends, and which request still fits.

Source: the server of the VTC artifact, which knows each request's output length in advance. Sort the requests by
remaining output, longest first. Then use peaks just before one of the requests ends. Before the k-th ends, the first k
are still in the batch and hold

    remaining_k x k + sum of the tokens held by the first k

A request fits if, with it, each of these sums stays below the pool.

In decode steps since the beginning, these sums do not change with time. A request that was admitted at step s with a
prompt of p tokens ends at step e = s + output - 1 (the prefill gives the first token), and holds (p + 1 - s) + step
tokens. So the use before its end is k e_k + sum (p_i + 1 - s_i), whatever the current step is. KvPeak keeps the prefix
sums; a candidate costs one bisection, and a maximum over the requests that end before it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from headgate.simulator.requests import SimRequest


class Admitted(NamedTuple):
    request: SimRequest
    prompt: int


class KvPeak:
    def __init__(self, pool_tokens: int) -> None:
        self.pool_tokens = pool_tokens
        self.step = 0
        """Decode steps so far; the engine sets it."""
        self._ends: list[int] = []
        """Minus the step at which each request ends, ascending: the longest remaining output comes first. The lists
        below are in the same order."""
        self._constants: list[int] = []
        """p + 1 - s of each request."""
        self._sums: list[int] = []
        """Prefix sums of `_constants`."""
        self._with_one_more: list[int] = []
        """Use before each request's end with one more request, which holds no tokens yet: (k + 1) e_k + sum."""
        self._admitted: list[Admitted] = []
        self.size = 0
        """Number of requests."""
        self.next_end = math.inf
        """The step at which the next request ends."""

    def __len__(self) -> int:
        return self.size

    def could_hold(self, prompt: int, output: int) -> bool:
        """Return whether the request fits an empty pool."""
        return prompt + max(output, 1) < self.pool_tokens

    def fits(self, prompt: int, output: int) -> bool:
        """Return whether the request fits beside those in the batch."""
        end = self.step + max(output, 1) - 1
        constant = prompt + 1 - self.step
        at = bisect_right(self._ends, -end)
        before = self._sums[at - 1] if at else 0
        if (at + 1) * end + before + constant >= self.pool_tokens:
            return False
        shorter = self._with_one_more[at:]
        return not shorter or max(shorter) + constant < self.pool_tokens

    def add(self, request: SimRequest, prompt: int, output: int) -> None:
        end = self.step + max(output, 1) - 1
        at = bisect_right(self._ends, -end)
        self._ends.insert(at, -end)
        self._constants.insert(at, prompt + 1 - self.step)
        self._admitted.insert(at, Admitted(request, prompt))
        self._sum_up_from(at)
        self._set_size()

    def _sum_up_from(self, at: int) -> None:
        sums = list(accumulate(self._constants[at:], initial=self._sums[at - 1] if at else 0))[1:]
        self._sums[at:] = sums
        places = range(at + 2, at + 2 + len(sums))
        self._with_one_more[at:] = [
            total - place * end for total, place, end in zip(sums, places, self._ends[at:], strict=True)
        ]

    def _set_size(self) -> None:
        self.size = len(self._ends)
        self.next_end = -self._ends[-1] if self._ends else math.inf

    def take_ended(self) -> list[Admitted]:
        """Remove and return the requests that have ended, the longest output first."""
        ended: list[Admitted] = []
        while self._ends and -self._ends[-1] <= self.step:
            ended.append(self._admitted.pop())
            for column in (self._ends, self._constants, self._sums, self._with_one_more):
                column.pop()
        ended.reverse()
        self._set_size()
        return ended
