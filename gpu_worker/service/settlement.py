"""Settlement of executions that lost their gate. Tries again while DynamoDB is unavailable: no output is free."""

from __future__ import annotations

import logging
from typing import Protocol

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.worker_protocol import WorkOrder
from dispatcher.old_ports import Clock

logger = logging.getLogger("headgate.worker")

TRIES_MAX = 8
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 10.0
"""Eight tries pause for 35.5 s in all. The store makes quick retries of its own within each try."""


class SettleLost(Protocol):
    """Settles an execution once, fenced by its attempt. Raises StoreUnavailable."""

    async def __call__(
        self, tenant: str, invocation_id: str, attempt: int, *, input_tokens: int, output_tokens: int
    ) -> object: ...


async def settle_with_retries(
    settle_lost: SettleLost, clock: Clock, order: WorkOrder, *, input_tokens: int, output_tokens: int
) -> bool:
    """Settle. False if DynamoDB stayed unavailable: the lease then expires, and the gate's sweep ends or repeats the
    invocation."""
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
    logger.error("not settled: DynamoDB stayed unavailable", extra={"execution": order.execution, **counts})
    return False
