"""One attempt of a call on one worker: its events go to the caller's queue, its end goes to the call's task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkOrder, WorkRefused
from dispatcher.ports import WorkerClient

NOT_TAKEN = frozenset({"gate_unreachable", "grant_refused", "request_too_slow", "signed_before_start"})
"""Refusals before the worker takes the attempt: it neither begins nor reports it."""

logger = logging.getLogger("headgate.gate")


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The worker ended its stream as the protocol says: the log knows how the attempt ended."""

    attempt: int
    worker: str
    event: Finished | WorkRefused


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream broke. `began` is False if the worker certainly did not begin the attempt."""

    attempt: int
    worker: str
    began: bool


async def run_attempt(
    workers: WorkerClient,
    offer: Offer,
    order: WorkOrder,
    deliver: Callable[[Started | Token], Awaitable[None]],
    report: Callable[[LastEvent | Broken], None],
) -> None:
    """Stream one attempt. `deliver` gets its events; `report` is called once, unless this task is cancelled."""
    broken = Broken(offer.attempt, offer.worker, began=True)
    try:
        async with aclosing(workers.execute(offer, order)) as events:
            async for event in events:
                if isinstance(event, Finished | WorkRefused):
                    report(LastEvent(offer.attempt, offer.worker, event))
                    return
                await deliver(event)
    except WorkerFailed as error:
        broken = Broken(offer.attempt, offer.worker, error.began)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        logger.exception("the stream of an attempt failed: %s", type(error).__name__)
    report(broken)
