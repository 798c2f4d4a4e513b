"""A process's claim on a batch: for a while, no other process runs it. Each change of the record renews the claim.

If two processes run one batch nevertheless (one was suspended, and its claim expired), the record of the batch goes to
one of them, and each line is charged once, because both submit it under the same idempotency key.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from dispatcher.model.batches import CANCELLING, IN_PROGRESS, Batch
from dispatcher.model.errors import HeadgateError
from dispatcher.operations.context import Context

CLAIM_S = 15.0
"""Another process may take the batch so long after the last renewal."""


class ClaimLost(HeadgateError):
    """Another process runs the batch, or it has ended."""


async def claimed(context: Context, batch: Batch) -> Claim | None:
    """Claim an open batch. Return None if another process has it, or takes it first."""
    now = context.clock.now()
    if not batch.is_open or (batch.runner and now < batch.claimed_until):
        return None
    name = context.ids.new()
    own = replace(batch, version=batch.version + 1, runner=name, claimed_until=now + CLAIM_S)
    return Claim(context, own) if await context.store.replace_batch(own, batch.version) else None


class Claim:
    """`batch` is the record as this process last wrote or read it."""

    def __init__(self, context: Context, batch: Batch) -> None:
        self.batch = batch
        self.name = batch.runner
        self._context = context
        self._lock = asyncio.Lock()

    async def change(self, **changes: Any) -> None:
        """Write the changes and renew the claim. Raises ClaimLost, StoreUnavailable.

        `times` are added to those of the record. A tenant may cancel the batch at any time. Then it stays `cancelling`
        instead of `in_progress`, and the other changes are written.
        """
        async with self._lock:
            while True:
                now = self._context.clock.now()
                if self.batch.status == CANCELLING and changes.get("status") == IN_PROGRESS:
                    changes.pop("status")
                claim = {"version": self.batch.version + 1, "claimed_until": now + CLAIM_S}
                times = {**self.batch.times, **changes.get("times", {})}
                changed = replace(self.batch, **(claim | changes | {"times": times}))
                if await self._context.store.replace_batch(changed, self.batch.version):
                    self.batch = changed
                    return
                await self._read()

    async def enter(self, status: str, **changes: Any) -> None:
        """Write a new status with its time, and the changes. Raises as `change`."""
        await self.change(status=status, times={status: self._context.clock.now()}, **changes)

    async def release(self) -> None:
        """Let another process take the batch at once. Raises as `change`."""
        await self.change(claimed_until=0.0)

    async def _read(self) -> None:
        found = await self._context.store.batch(self.batch.tenant, self.batch.id)
        if found is None or found.runner != self.name or not found.is_open:
            raise ClaimLost(f"Another process runs {self.batch.id}, or it has ended.")
        self.batch = found
