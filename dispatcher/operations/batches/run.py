"""Runs the batches: claims those that wait or that another process has left, one of each tenant at a time.

A batch has no pool: each of its lines goes to the pool of the line's model.

The results of lines are stored in order, in parts. Each part is written before the batch's record names it. So after a
crash another process continues at the first line without a stored result.

For a while, no other process runs a claimed batch. Each change of its record renews the claim. If two processes run one
batch nevertheless (one was suspended, and its claim expired), the record of the batch goes to one of them, and each
line is charged once, because both submit it under the same idempotency key.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

from dispatcher.model.batches import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FAILED,
    FINALIZING,
    IN_PROGRESS,
    VALIDATING,
    Batch,
)
from dispatcher.model.errors import HeadgateError, StoreUnavailable, TenantError
from dispatcher.model.tenants import Tenant
from dispatcher.operations.administration import TenantData
from dispatcher.operations.batches.answer_line import (
    CANCELLED_BY_TENANT,
    TENANT_DELETED,
    WINDOW_OVER,
    LineCall,
    Stop,
    TenantGone,
)
from dispatcher.operations.batches.create import check_deferred
from dispatcher.operations.batches.lines import LineResult, delete_parts, inspect, lines_of, put_together, store_part
from dispatcher.operations.context import Context
from dispatcher.operations.files import file_of, file_store

_CLAIM_S = 15.0
"""Another process may take the batch so long after the last renewal."""


class ClaimLost(HeadgateError):
    """Another process runs the batch, or it has ended."""


async def _claimed(context: Context, batch: Batch) -> Claim | None:
    """Claim an open batch. Return None if another process has it, or takes it first."""
    now = context.clock.now()
    if not batch.is_open or (batch.runner and now < batch.claimed_until):
        return None
    name = context.ids.new()
    own = replace(batch, version=batch.version + 1, runner=name, claimed_until=now + _CLAIM_S)
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
                claim = {"version": self.batch.version + 1, "claimed_until": now + _CLAIM_S}
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


_WAITING_MAX = 16
"""So many lines of one batch wait at the gate: enough to fill slots as they become free."""
_UNANSWERED_MAX = 256
"""So many lines of one batch wait or run."""
_AHEAD_MAX = 512
"""A line is read only if fewer lines before it have no stored result. So memory holds few answers."""
_PART_LINES, _PART_S = 100, 10.0
"""Results are stored after so many lines, or this time after the part before."""
_RENEW_S = 4.0
"""The claim is renewed, and a cancellation noticed, this often."""

logger = logging.getLogger("headgate.batches")


class BatchRun:
    def __init__(self, context: Context, claim: Claim) -> None:
        self._context, self._claim = context, claim
        self._stop = Stop()
        self._running: deque[tuple[LineCall, asyncio.Task[LineResult]]] = deque()
        """The lines without a stored result, in order."""
        self._moved = asyncio.Event()
        """Set when a worker begins a line, or a line ends."""
        self._stored_at = context.clock.monotonic()

    async def run(self) -> None:
        """Run the batch to its end. Raises ClaimLost, StoreUnavailable; then another run continues it.

        If its tenant is deleted, the running lines end, and then all data of the tenant is deleted, with the batch.
        """
        try:
            await self._run()
        except TenantGone:
            await TenantData(self._context.store, self._context.files).erase_all(self._claim.batch.tenant)
            logger.info("the data of the deleted tenant %s is deleted", self._claim.batch.tenant)

    async def _run(self) -> None:
        """Raises TenantGone, ClaimLost, StoreUnavailable."""
        working, watching = asyncio.ensure_future(self._work()), asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            await (working if working.done() else watching)
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _work(self) -> None:
        tenant = await self._context.directory.tenant_of_identity(self._claim.batch.tenant)
        if tenant is None:
            raise TenantGone
        try:
            await self._work_for(tenant)
        except TenantError as error:  # the input file was deleted, or the service has no deferred class any more
            await self._fail(error.code, error.message)

    async def _work_for(self, tenant: Tenant) -> None:
        claim = self._claim
        blob = (await file_of(self._context, tenant.identity, claim.batch.input_file_id)).blob
        if claim.batch.status == VALIDATING:
            found = await inspect(lines_of(file_store(self._context).read(blob)))
            if found.errors:
                await self._end(FAILED, errors=found.errors)
                return
            await claim.enter(IN_PROGRESS, total=found.lines)
        if claim.batch.status != FINALIZING:
            await self._answer_lines(tenant, blob)
            if self._context.directory.is_deleted(tenant.identity):
                raise TenantGone
            await claim.enter(FINALIZING)
        await self._end(_last_status(claim), **await put_together(self._context, claim.batch))

    async def _answer_lines(self, tenant: Tenant, blob: str) -> None:
        """Get and store the results of all lines that have none."""
        batch = self._claim.batch
        check_deferred(self._context, tenant)
        content = file_store(self._context).read(blob, batch.next_byte)
        try:
            async with aclosing(content), aclosing(lines_of(content, batch.next_byte, batch.next_line)) as lines:
                async for line in lines:
                    await self._make_room()
                    call = LineCall(self._context, batch, self._stop, self._moved.set)
                    task = asyncio.ensure_future(call.result(line))
                    task.add_done_callback(lambda _: self._moved.set())
                    self._running.append((call, task))
            while self._running:
                await self._progress()
        finally:
            tasks = [task for _, task in self._running]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _make_room(self) -> None:
        """Wait until a further line may be submitted."""
        while len(self._running) >= _AHEAD_MAX or not self._has_room():
            await self._progress()

    def _has_room(self) -> bool:
        unanswered = [call for call, task in self._running if not task.done()]
        return len(unanswered) < _UNANSWERED_MAX and sum(not call.has_begun for call in unanswered) < _WAITING_MAX

    async def _progress(self) -> None:
        """Wait until a line begins or ends, and store results if it is time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PART_S):
                await self._moved.wait()
        self._moved.clear()
        results = [task.result() for _, task in takewhile(lambda each: each[1].done(), self._running)]
        now = self._context.clock.monotonic()
        is_time = len(results) >= _PART_LINES or len(results) == len(self._running) or now >= self._stored_at + _PART_S
        if results and is_time:
            await self._claim.change(**await store_part(self._context, self._claim.batch, results, self._claim.name))
            self._stored_at = now
            for _ in results:
                self._running.popleft()

    async def _watch(self) -> None:
        """Renew the claim, and stop the batch when it is cancelled, its tenant is deleted, or its window is over.

        Raises ClaimLost.
        """
        clock, claim, directory = self._context.clock, self._claim, self._context.directory
        while True:
            left_s = claim.batch.expires_at - clock.now()
            if claim.batch.status == CANCELLING:
                self._stop.set(CANCELLED_BY_TENANT)
            elif directory.is_deleted(claim.batch.tenant):
                self._stop.set(TENANT_DELETED)
            elif left_s <= 0:
                self._stop.set(WINDOW_OVER)
            await clock.sleep(min(_RENEW_S, left_s) if left_s > 0 else _RENEW_S)
            self._context.spawn(directory.look_again(claim.batch.tenant))
            with suppress(StoreUnavailable):  # the claim holds for a while longer
                await claim.change()

    async def _fail(self, code: str, message: str) -> None:
        """End the batch as failed. The results that it has are kept."""
        files = await put_together(self._context, self._claim.batch)
        await self._end(FAILED, errors=({"code": code, "message": message, "param": None, "line": None},), **files)

    async def _end(self, status: str, **changes: Any) -> None:
        parts = self._claim.batch.parts
        await self._claim.enter(status, parts=(), **changes)
        await self._context.store.retire_batch(self._claim.batch)
        await delete_parts(self._context, parts)


def _last_status(claim: Claim) -> str:
    batch = claim.batch
    if CANCELLING in batch.times:
        return CANCELLED
    return COMPLETED if batch.completed + batch.failed == batch.total else EXPIRED


_LOOK_EVERY_S = 2.0
"""The pause between two looks for batches."""
_RUNNING_MAX = 16
"""The most batches that one process runs at a time. The oldest of each tenant goes first."""
_CLEAN_EVERY_S = 3600.0
_DAY_S = 24 * 3600.0


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
                await self._context.clock.sleep(_LOOK_EVERY_S)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self) -> None:
        """Begin the oldest open batch of each tenant that has none running here."""
        seen = set(self._running)
        for tenant, batch_id in await self._context.store.open_batches(self._context.batch_queue):
            if tenant in seen or len(self._running) >= _RUNNING_MAX:
                continue
            batch = await self._context.store.batch(tenant, batch_id)
            if batch is None:
                continue
            if not batch.is_open:
                await self._context.store.retire_batch(batch)
                continue
            seen.add(tenant)
            claim = await _claimed(self._context, batch)
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
            self._clean_at = now + _CLEAN_EVERY_S
            await file_store(self._context).delete_older(self._context.settings.files_kept_s + _DAY_S)
