"""The workers of a fleet and its planner in virtual time: what drive() sends a workload to.

    drive ──▶ Fleet ──arrived──▶ planner ──dispatch, swap──▶ worker ──▶ engine
                ▲                   ▲                          │
                └───────────────────┴── ended, returned ───────┘

Engines run one after the other, each at most to the next event of another: so requests end in the order of time, and
the planner decides on the state of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from math import inf, nextafter

from headgate.simulator.fleet.planners.interface import Dispatch, Planner, Preempt
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest


class SimulatedFleet:
    """drive.EngineLike. `place`: sets the model, the SLO class and the due time of a request."""

    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        planner: Planner,
        place: Callable[[SimRequest], None],
        drain_s: float,
    ) -> None:
        self.now_s = 0.0
        self._workers = workers
        self._planner = planner
        self._place = place
        self._drain_s = drain_s
        self._numbered = self._open = 0
        self._ended: list[SimRequest] = []
        self._next_s = [worker.next_s() for worker in workers]

    def submit(self, request: SimRequest, at_s: float) -> bool:
        self.now_s = at_s
        request.number = self._numbered
        self._place(request)
        self._numbered += 1
        self._open += 1
        self._planner.on_arrived(request, at_s)
        if request.rejected is None:
            self._act()
            return True
        self._open -= 1
        return False

    def advance(self, until_s: float) -> list[SimRequest]:
        """Raises RuntimeError if requests wait and nothing will ever happen: an error of the planner."""
        while self._open and not self._ended:
            timer_s = min(min(worker.due_s for worker in self._workers), self._planner.next_s())
            first, *others = nsmallest(2, range(len(self._workers)), key=self._next_s.__getitem__)
            soonest_s = self._next_s[first]
            if until_s <= min(timer_s, soonest_s):
                if until_s == inf:
                    raise RuntimeError(f"{self._open} requests wait, and the planner does nothing")
                self.now_s = until_s
                break
            if timer_s <= soonest_s:
                self.now_s = max(self.now_s, timer_s)
                self._act()
            else:
                other_s = self._next_s[others[0]] if others else inf
                self._run(first, max(min(until_s, timer_s, other_s), nextafter(soonest_s, inf)))
        ended, self._ended = self._ended, []
        return ended

    def _run(self, number: int, until_s: float) -> None:
        worker = self._workers[number]
        ended = worker.advance(until_s)
        self._next_s[number] = worker.next_s()
        if ended:
            self.now_s = max(self.now_s, worker.now_s)
            self._finish(ended)
            self._act()

    def _act(self) -> None:
        """Take due steps of swaps, then do what the planner says, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for number, worker in enumerate(self._workers):
                if worker.target is not None:
                    self._settle(number, worker)
            for action in self._planner.actions(self.now_s):
                changed = True
                if isinstance(action, Dispatch):
                    self._dispatch(action.request, action.worker)
                elif isinstance(action, Preempt):
                    self._preempt(action.worker)
                else:
                    action.worker.swap(action.model, self.now_s, self._drain_s)

    def _preempt(self, worker: SimulatedWorker) -> None:
        self._finish(worker.advance(self.now_s))
        self._return(worker.evict())
        self._next_s[self._workers.index(worker)] = worker.next_s()

    def _settle(self, number: int, worker: SimulatedWorker) -> None:
        if worker.is_draining:
            self._finish(worker.advance(self.now_s))
        self._return(worker.settle(self.now_s))
        self._next_s[number] = worker.next_s()

    def _return(self, requests: Sequence[SimRequest]) -> None:
        for request in requests:
            if request.rejected is None:
                self._planner.on_returned(request, self.now_s)
            else:
                self._finish([request])

    def _dispatch(self, request: SimRequest, worker: SimulatedWorker) -> None:
        self._finish(worker.advance(self.now_s))
        if not worker.dispatch(request, self.now_s):
            self._finish([request])
        self._next_s[self._workers.index(worker)] = worker.next_s()

    def _finish(self, ended: Sequence[SimRequest]) -> None:
        for request in ended:
            if request.rejected is None:
                request.end()
            self._planner.on_ended(request, self.now_s)
            self._open -= 1
            self._ended.append(request)
