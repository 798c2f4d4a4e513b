"""Admission by the peak of future KV use: who is in the batch, when each ends, and what still fits.

Source: the server of the VTC artifact, which knows each request's output length beforehand. With the requests sorted by
remaining output, longest first, use peaks at one of the moments at which one ends: just before the k-th of them ends
the first k are still there, and hold

    remaining_k x k + sum of the tokens held by the first k

A request fits when, with it, all of these stay below the pool.

Counted in decode steps since the beginning, nothing in that changes while time passes. A request that entered at step
s with a prompt of p ends at step e = s + output - 1 (the prefill gives the first token) and holds (p + 1 - s) + step
tokens, so the use before its end is k e_k + sum (p_i + 1 - s_i), whatever the step is now. The prefix sums are kept,
and a candidate costs one bisection and a maximum over those who end before it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from headgate.simulator.requests import SimRequest


class Resident(NamedTuple):
    request: SimRequest
    prompt: int


class KvPeak:
    def __init__(self, pool_tokens: int) -> None:
        self.pool_tokens = pool_tokens
        self.step = 0
        """Decode steps so far: whoever takes them counts."""
        self._ends: list[int] = []
        """Minus the step at which each ends: ascending, the longest first."""
        self._constants: list[int] = []
        """p + 1 - s of each…"""
        self._sums: list[int] = []
        """…summed up to and with it."""
        self._with_one_more: list[int] = []
        """Use before each one's end if one more were there that began with nothing: (k + 1) e_k + sum."""
        self._residents: list[Resident] = []
        self.size = 0
        """How many are there."""
        self.next_end = math.inf
        """The step at which the first of them ends."""

    def __len__(self) -> int:
        return self.size

    def could_hold(self, prompt: int, output: int) -> bool:
        """Whether it fits with nothing else there."""
        return prompt + max(output, 1) < self.pool_tokens

    def fits(self, prompt: int, output: int) -> bool:
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
        self._residents.insert(at, Resident(request, prompt))
        self._sum_up_from(at)
        self._noted()

    def _sum_up_from(self, at: int) -> None:
        sums = list(accumulate(self._constants[at:], initial=self._sums[at - 1] if at else 0))[1:]
        self._sums[at:] = sums
        places = range(at + 2, at + 2 + len(sums))
        self._with_one_more[at:] = [
            total - place * end for total, place, end in zip(sums, places, self._ends[at:], strict=True)
        ]

    def _noted(self) -> None:
        self.size = len(self._ends)
        self.next_end = -self._ends[-1] if self._ends else math.inf

    def take_ended(self) -> list[Resident]:
        """Those whose last step was taken, in the order in which they stood."""
        ended: list[Resident] = []
        while self._ends and -self._ends[-1] <= self.step:
            ended.append(self._residents.pop())
            for column in (self._ends, self._constants, self._sums, self._with_one_more):
                column.pop()
        ended.reverse()
        self._noted()
        return ended
