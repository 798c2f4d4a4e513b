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

from bisect import bisect_right
from typing import NamedTuple

from headgate.simulator.requests import SimRequest


class Resident(NamedTuple):
    request: SimRequest
    prompt: int


class KvRoom:
    def __init__(self, pool_tokens: int) -> None:
        self.pool_tokens = pool_tokens
        self.step = 0
        self._ends: list[int] = []
        """Minus the step at which each ends: ascending, the longest first."""
        self._constants: list[int] = []
        """p + 1 - s of each…"""
        self._sums: list[int] = []
        """…summed up to and with it."""
        self._with_one_more: list[int] = []
        """Use before each one's end if one more were there that began with nothing: (k + 1) e_k + sum."""
        self._residents: list[Resident] = []

    def __len__(self) -> int:
        return len(self._ends)

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

    def _sum_up_from(self, at: int) -> None:
        del self._sums[at:], self._with_one_more[at:]
        total = self._sums[-1] if at else 0
        for k in range(at, len(self._ends)):
            total += self._constants[k]
            self._sums.append(total)
            self._with_one_more.append(total - (k + 2) * self._ends[k])

    def steps_to_next_end(self) -> int:
        """Raises IndexError where nobody is there."""
        return -self._ends[-1] - self.step

    def stepped(self, steps: int) -> None:
        self.step += steps

    def take_ended(self) -> list[Resident]:
        """Those whose last step was taken, in the order in which they stood."""
        ended: list[Resident] = []
        while self._ends and -self._ends[-1] <= self.step:
            ended.append(self._residents.pop())
            for column in (self._ends, self._constants, self._sums, self._with_one_more):
                column.pop()
        ended.reverse()
        return ended
