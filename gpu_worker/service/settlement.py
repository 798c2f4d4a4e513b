"""Settling what a vanished gate will not: nothing that was generated is free, though the table be away for a while."""

from __future__ import annotations

import logging
from typing import Protocol

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.worker_protocol import WorkOrder
from dispatcher.ports import Clock

logger = logging.getLogger("headgate.worker")

TRIES_MAX = 8
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 10.0
"""Eight tries pause for 35.5 s in all; the store has its own quick retries within each."""


class SettleLost(Protocol):
    """Settles an execution that ended without its gate: once, fenced by the attempt. Raises StoreUnavailable."""

    async def __call__(
        self, tenant: str, invocation_id: str, attempt: int, *, input_tokens: int, output_tokens: int
    ) -> object: ...


async def settle_patiently(
    settle_lost: SettleLost, clock: Clock, order: WorkOrder, *, input_tokens: int, output_tokens: int
) -> bool:
    """False where the table stayed away: the lease then runs out, and the reaper ends or repeats the invocation."""
    counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    for number in range(TRIES_MAX):
        if number:
            await clock.sleep(min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** (number - 1)))
        try:
            await settle_lost(order.tenant, order.invocation, order.attempt, **counts)
        except StoreUnavailable:
            continue
        logger.info("settled without its gate", extra={"execution": order.execution, **counts})
        return True
    logger.error("left unsettled: the table stayed away", extra={"execution": order.execution, **counts})
    return False
