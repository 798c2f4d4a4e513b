"""The outbox repeats the report of every attempt's end until the log contains it.

The log recognizes a repeated report by its attempt, so a repetition is not charged again. And no charge is lost while
the gate is unavailable. An attempt in the outbox still counts as live in the worker's heartbeats. With a journal on
disk (outbox_journal.py), the reports survive the death of the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from dispatcher.model.commands import Command, Outcome, Refused
from dispatcher.model.errors import HeadgateError
from dispatcher.model.worker_protocol import execution_name
from dispatcher.ports import Clock
from gpu_worker.service.executions.outbox_journal import AttemptReport, Journal


class Gate(Protocol):
    """The part of a GateLink (dispatcher/ports.py) that a worker uses."""

    async def do(self, command: Command) -> Outcome:
        """Send the command, and return its outcome when the log contains it. Raises StoreUnavailable if neither the
        leader nor the log answers."""
        ...


logger = logging.getLogger("headgate.outbox")

TRY_S = 15.0
"""Longest wait for one answer. A link answers or fails within seconds."""
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
PENDING_MAX = 10_000
"""With this many unconfirmed reports a worker takes no more orders."""


@dataclass(eq=False)
class Outbox:
    """Delivers the reports of one worker. `random` spreads the repetitions of a fleet's workers over time."""

    gate: Gate
    clock: Clock
    random: Random
    journal: Journal | None = None
    on_delivered: Callable[[str], None] = lambda _name: None
    """Called with the name of an execution when the log has its report."""
    _deliveries: dict[str, asyncio.Task[Outcome]] = field(default_factory=dict)
    """The deliveries in progress, by the execution's name."""
    _back: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the gate answers again; then replaced."""

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def full(self) -> bool:
        return len(self) >= PENDING_MAX

    def recover(self) -> list[AttemptReport]:
        """Begin to deliver the reports that earlier processes left on disk, and return them."""
        found = {} if self.journal is None else self.journal.recover()
        for number, report in found.items():
            self._deliver(report, number)
        if found:
            logger.warning("%d reports of an earlier process are delivered", len(found))
        return list(found.values())

    def post(self, report: AttemptReport) -> asyncio.Task[Outcome]:
        """Keep and repeat the report until the log contains it. Return a task that ends with the log's outcome."""
        return self._deliver(report, 0 if self.journal is None else self.journal.put(report))

    def live(self) -> frozenset[str]:
        """Return the names of the executions with unconfirmed reports."""
        return frozenset(self._deliveries)

    def gate_is_back(self) -> None:
        """Repeat all reports at once, without the rest of their pauses."""
        self._back.set()
        self._back = asyncio.Event()

    async def flushed(self) -> None:
        """Wait until every report is in the log."""
        while self._deliveries:
            await asyncio.wait(set(self._deliveries.values()))

    async def close(self) -> None:
        """Stop the deliveries. Unconfirmed reports stay on disk."""
        deliveries = set(self._deliveries.values())
        for delivery in deliveries:
            delivery.cancel()
        if deliveries:
            await asyncio.wait(deliveries)
        if self.journal is not None:
            self.journal.close()

    def _deliver(self, report: AttemptReport, number: int) -> asyncio.Task[Outcome]:
        name = execution_name(report.id, report.attempt)
        delivery = asyncio.ensure_future(self._repeat_report(report, name))
        self._deliveries[name] = delivery
        delivery.add_done_callback(self._remover(name, number))
        return delivery

    def _remover(self, name: str, number: int) -> Callable[[asyncio.Task[Outcome]], None]:
        def remove(delivery: asyncio.Task[Outcome]) -> None:
            if self._deliveries.get(name) is delivery:
                del self._deliveries[name]
            if self.journal is not None and not delivery.cancelled():
                self.journal.acknowledge(number)
            if not delivery.cancelled():
                self.on_delivered(name)

        return remove

    async def _repeat_report(self, report: AttemptReport, name: str) -> Outcome:
        """Repeat the report until the log answers it."""
        pause_s = PAUSE_FIRST_S
        while True:
            least_s = 0.0
            try:
                async with asyncio.timeout(TRY_S):
                    outcome = await self.gate.do(report)
                if not isinstance(outcome, Refused):
                    return outcome
                least_s = outcome.retry_after_s
                logger.warning("report refused: %s", outcome.code, extra={"execution": name})
            except (HeadgateError, TimeoutError) as error:
                logger.warning("report not delivered: %s", type(error).__name__, extra={"execution": name})
            except Exception as error:  # a bug must not lose a charge; its message may hold an answer
                logger.error("report not delivered: %s", type(error).__name__, extra={"execution": name})
            if self.journal is not None:
                await self.journal.sync()
            await self.clock.sleep(least_s)
            await self._pause(pause_s * (0.5 + 0.5 * self.random.random()) - least_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _pause(self, seconds: float) -> None:
        """Wait, but only until the gate answers again."""
        waits = (asyncio.ensure_future(self.clock.sleep(seconds)), asyncio.ensure_future(self._back.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
