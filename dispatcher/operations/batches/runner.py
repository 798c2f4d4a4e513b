"""Runs the batches: claims those that wait or that another process has left, one of each tenant at a time.

A batch has no pool: each of its lines goes to the pool of the line's model.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from dispatcher.model.errors import HeadgateError, StoreUnavailable
from dispatcher.operations.batches.claim import Claim, ClaimLost, claimed
from dispatcher.operations.batches.run import BatchRun
from dispatcher.operations.context import Context
from dispatcher.operations.files import file_store

LOOK_EVERY_S = 2.0
"""The pause between two looks for batches."""
RUNNING_MAX = 16
"""The most batches that one process runs at a time. The oldest of each tenant goes first."""
CLEAN_EVERY_S = 3600.0
DAY_S = 24 * 3600.0

logger = logging.getLogger("headgate.batches")


async def serve_batches(context: Context) -> None:
    """Run batches until cancelled. Then release the claims, so that another process can continue at once."""
    await _Runner(context).serve()


class _Runner:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._running: dict[str, asyncio.Task[None]] = {}
        """Maps a tenant to the task that runs its batch."""
        self._clean_at = 0.0

    async def serve(self) -> None:
        try:
            while True:
                try:
                    await self._look()
                    await self._clean()
                except StoreUnavailable as error:
                    logger.warning("cannot look for batches: %s", error)
                await self._context.clock.sleep(LOOK_EVERY_S)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self) -> None:
        """Begin the oldest open batch of each tenant that has none running here."""
        seen = set(self._running)
        for tenant, batch_id in await self._context.store.open_batches(self._context.settings.batch_queue):
            if tenant in seen or len(self._running) >= RUNNING_MAX:
                continue
            batch = await self._context.store.batch(tenant, batch_id)
            if batch is None:
                continue
            if not batch.is_open:
                await self._context.store.retire_batch(batch)
                continue
            seen.add(tenant)
            claim = await claimed(self._context, batch)
            if claim is not None:
                self._running[tenant] = asyncio.create_task(self._run(tenant, claim))

    async def _run(self, tenant: str, claim: Claim) -> None:
        try:
            await BatchRun(self._context, claim).run()
            logger.info("batch %s of %s: %s", claim.batch.id, tenant, claim.batch.status)
        except ClaimLost as error:
            logger.warning("%s", error)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                logger.warning("batch %s of %s is interrupted: %s", claim.batch.id, tenant, type(error).__name__)
            with suppress(HeadgateError):
                await claim.release()
            if not isinstance(error, Exception):
                raise
        finally:
            del self._running[tenant]

    async def _clean(self) -> None:
        """Delete files that have expired, and parts that a dead process left. Their records expire by themselves."""
        now = self._context.clock.monotonic()
        if now >= self._clean_at:
            self._clean_at = now + CLEAN_EVERY_S
            await file_store(self._context).delete_older(self._context.settings.files_kept_s + DAY_S)
