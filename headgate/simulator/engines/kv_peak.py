"""Admission by the peak of future KV use: when each request in the batch ends, and which request still fits.

Source: the server of the VTC artifact, which knows each request's output length in advance. Sort the requests by
remaining output, longest first. Then use peaks just before one of the requests ends. Before the k-th ends, the first k
are still in the batch and hold

    remaining_k x k + sum of the tokens held by the first k

A request fits if, with it, each of these sums stays below the pool.

In decode steps since the beginning, these sums do not change with time. A request that was admitted at step s with a
prompt of p tokens ends at step e = s + output - 1 (the prefill gives the first token), and holds c + step tokens, where
c = p + 1 - s. So the use before its end is k e_k + c_1 + ... + c_k, whatever the current step is. KvPeak keeps this use
with one more request; a candidate costs one bisection, and a maximum over the requests that end before it.

That server also keeps room for the adapter of each tenant with a request in the batch, the candidate's included: four
tokens for each rank of the adapter, also with `--no-lora`, under which its logs were measured. So the pool of the sums
is smaller by `tenant_tokens` for each such tenant. This holds for each of the sums: the room of a candidate's tenant
counts beside the requests that outlast the candidate too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from operator import add

from headgate.simulator.requests import SimRequest

Admitted = tuple[SimRequest, int]
"""A request in the batch, and its prompt tokens."""


class KvPeak:
    """`batch_max`: most requests in the batch; None: as many as fit. `tenant_tokens`: what each tenant with a request
    in the batch takes from the pool."""

    def __init__(self, pool_tokens: int, batch_max: int | None = None, tenant_tokens: int = 0) -> None:
        self.pool_tokens = pool_tokens
        self._tenant_tokens = tenant_tokens
        self._requests_of: dict[str, int] = {}
        """Requests in the batch by tenant; only with `tenant_tokens`."""
        self._batch_max = math.inf if batch_max is None else batch_max
        self.step = 0
        """Decode steps so far; the engine sets it."""
        self._ends: list[int] = []
        """Minus the step at which each request ends, ascending: the longest remaining output comes first. The lists
        below are in the same order."""
        self._with_one_more: list[int] = []
        """Use before each request's end with one more request, which holds no tokens yet: (k + 1) e_k + sum of c."""
        self._admitted: list[Admitted] = []
        self.size = 0
        """Number of requests."""
        self.next_end = math.inf
        """The step at which the next request ends."""

    def __len__(self) -> int:
        return self.size

    def add_if_fits(self, request: SimRequest, prompt: int, output: int) -> int | None:
        """Add the request if it fits beside those in the batch, and return None. If it does not fit, return for how
        many more steps it surely will not, unless a request ends before.

        Its own peak does not fall until the next request that outlasts it would no longer do so. The peaks of the
        requests that end before it fall by one token a step.
        """
        if self.size >= self._batch_max:
            return int(self.next_end) - self.step
        step, ends, uses = self.step, self._ends, self._with_one_more
        end = step + output - 1 if output > 1 else step
        at = bisect_right(ends, -end)
        # What the first `at` requests hold before step `end`, and `end` itself of one more. The sum of their constants
        # is what `_with_one_more` of the last of them has beyond its own ends.
        own = uses[at - 1] + (at + 1) * (ends[at - 1] + end) if at else end
        later = uses[at:]
        most_later = max(later) if later else 0
        constant = prompt + 1 - step
        limit, takes_room = self.pool_tokens - constant, False
        if self._tenant_tokens:
            takes_room = request.tenant not in self._requests_of
            limit -= self._tenant_tokens * (len(self._requests_of) + takes_room)
        if own >= limit or most_later >= limit:
            outlasts = -ends[at - 1] - end if at and own >= limit else 0
            return max(most_later - limit, outlasts, 0)
        # The uses before the ends of those that outlast it: they have no part of it, but its tenant's room.
        if takes_room and at and max(map(add, uses[:at], ends)) >= limit + constant:
            return int(self.next_end) - step
        uses[at:] = [use + constant - minus_end for use, minus_end in zip(later, ends[at:], strict=False)]  # faster
        uses.insert(at, own + constant + end)
        ends.insert(at, -end)
        self._admitted.insert(at, (request, prompt))
        self.size += 1
        self.next_end = -ends[-1]
        if self._tenant_tokens:
            self._requests_of[request.tenant] = self._requests_of.get(request.tenant, 0) + 1
        return None

    def take_ended(self) -> list[Admitted]:
        """Remove and return the requests that have ended, the longest output first."""
        ends, first_kept = self._ends, self.size
        minus_step = -self.step
        while first_kept and ends[first_kept - 1] >= minus_step:
            first_kept -= 1
        ended = self._admitted[first_kept:]
        del self._admitted[first_kept:], ends[first_kept:], self._with_one_more[first_kept:]
        self.size = first_kept
        self.next_end = -ends[-1] if ends else math.inf
        if self._tenant_tokens:
            self._free_tenants(ended)
        return ended

    def _free_tenants(self, ended: list[Admitted]) -> None:
        for request, _ in ended:
            self._requests_of[request.tenant] -= 1
            if not self._requests_of[request.tenant]:
                del self._requests_of[request.tenant]
