"""Carries out the swaps that the gate orders: drain, load the other model, serve again.

    order ──▶ draining (heartbeats say so) ──▶ running requests end, or are returned after drain_s ──▶ load ──▶ serving

While a swap is under way, the worker takes no order, and the gate's answers to its heartbeats order nothing new. A
returned request that its caller has no token of is offered to another worker, or to this one after the swap.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from dispatcher.model.commands import Report
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.ports import Clock
from gpu_worker.engines.model_swaps import ModelSwaps, SwapFailed
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.policies.expected_capacity import ExpectedCapacity, SettledService
from gpu_worker.service.executions.execution import Abort
from gpu_worker.service.executions.executions import Executions

logger = logging.getLogger("headgate.agent")

DRAIN_S = 30.0
"""A swap waits for running requests at most so long."""
_ABORTED_S = 5.0
"""The longest wait for aborted requests to leave the engine."""
CAPACITY_STRETCH_S = 5.0
"""Over so many seconds a model's service is measured: some batches of usual answers."""
POLL_S = 0.05


class Swapper:
    """`swaps`: the worker's models. `executions`: the requests that must end first."""

    def __init__(self, swaps: ModelSwaps, executions: Executions, clock: Clock, drain_s: float = DRAIN_S) -> None:
        self.swaps = swaps
        self._executions = executions
        self._clock = clock
        self._drain_s = drain_s
        self._swap: asyncio.Task[None] | None = None
        self._stopped = False
        self._facts = executions.engine.facts
        """The facts of the model that was loaded when no swap was under way."""
        self._capacities: defaultdict[str, MeasuredCapacity] = defaultdict(
            lambda: MeasuredCapacity(stretch_s=CAPACITY_STRETCH_S)
        )
        self._expected: dict[str, ExpectedCapacity] = {}
        self._settled = SettledService()
        self._is_changed = True
        """True until the first report after the start and after each swap: the service until then is of canaries and of
        another model."""

    @property
    def is_swapping(self) -> bool:
        return self._swap is not None

    def order(self, model: str) -> None:
        """Begin a swap to the model, unless one is under way, the model is loaded, or it cannot be loaded now."""
        loaded = self._executions.engine.facts.model
        if not model or model == loaded or self.is_swapping or self._stopped or not self.swaps.can_load(model):
            return
        logger.info("swap from %s to %s", loaded, model)
        self._is_changed = True
        self._swap = asyncio.ensure_future(self._load(model))
        self._swap.add_done_callback(self._on_swap_end)
        self.swaps.engine.changed.set()

    def described(self, report: Report, now_s: float, served: float, *, saturated: bool) -> Report:
        """Return the report with the loaded model's facts and capacity, and all models that can be loaded.

        `served`: service units since the worker started. Until its end a swap may fail, so the report has the former
        model; no capacity is measured meanwhile.
        """
        times_s = self._executions.fills.take(now_s)
        settled = self._settled.take(served, WEIGHTED_TOKENS(self._executions.prompt_tokens(), 0))
        if not self.is_swapping:
            self._facts = self._executions.engine.facts
            self._capacities[self._facts.model].observe(now_s, served, saturated=saturated)
            if not self._is_changed:
                self._find_expectation(self._facts.model).observe(times_s, settled)
            self._is_changed = False
        facts, measured = self._facts, self._capacities[self._facts.model]
        models = self.swaps.loadable(facts.model, lambda model: self._capacities[model].service_per_s)
        return report._replace(
            model=facts.model,
            context_tokens=facts.context_tokens,
            bytes_per_token=facts.bytes_per_token,
            capabilities=tuple(sorted(facts.capabilities)),
            service_per_s=measured.service_per_s,
            draining=report.draining or self.is_swapping,
            models=models,
            expected_per_s=tuple(self._find_expectation(each.model).service_per_s(report.slots) for each in models),
        )

    def _find_expectation(self, model: str) -> ExpectedCapacity:
        """Return the model's. At first it knows a decode step of the model's canary."""
        found = self._expected.get(model)
        if found is None:
            found = self._expected[model] = ExpectedCapacity()
            found.observe_step(self.swaps.step_s(model), WEIGHTED_TOKENS(0, 1))
        return found

    async def stop(self) -> None:
        """Begin no further swap, and wait for the end of a swap that is under way: half an engine cannot be stopped."""
        self._stopped = True
        if self._swap is not None:
            await asyncio.wait({self._swap})

    async def _load(self, model: str) -> None:
        self._executions.accepting = False
        if not await self._await_drain(self._drain_s):
            await self._executions.abort_all(Abort.SWAPPED)
            if not await self._await_drain(_ABORTED_S):
                logger.error("a request did not leave the engine before the swap")
        await self.swaps.load(model)

    async def _await_drain(self, within_s: float) -> bool:
        until_s = self._clock.monotonic() + within_s
        while self._executions.running():
            if self._clock.monotonic() >= until_s:
                return False
            await self._clock.sleep(POLL_S)
        return True

    def _on_swap_end(self, swap: asyncio.Task[None]) -> None:
        """Report the worker as it is now. The engine of a failed swap is that of the former model again."""
        self._swap = None
        self.swaps.engine.changed.set()
        if not swap.cancelled() and (error := swap.exception()) is not None and not isinstance(error, SwapFailed):
            logger.error("the swap ended by an error: %s", type(error).__name__)
