"""Invocations in DynamoDB: each write is one transaction over exactly the items that must agree.

The invocation's statement always comes first, so that its refusal is reported before any other. Each write stamps the
invocation with its nonce. A refusal that shows this nonce means that the write was applied and its reply was lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from dispatcher.model.old_fleet import Lease
from dispatcher.model.old_invocation import Invocation, Slot, State, retried
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.old_stores.dynamodb import queues
from dispatcher.old_stores.dynamodb.expressions import Statement
from dispatcher.old_stores.dynamodb.items import ending_attributes, execution_attributes, invocation_item, waiting_item
from dispatcher.old_stores.dynamodb.layout import EXPIRY, PARTITION, invocation_key, waiting_key
from dispatcher.old_stores.dynamodb.reads import Reads
from dispatcher.old_stores.dynamodb.requests import ConditionFailed, Requests
from dispatcher.old_stores.dynamodb.workers import DynamoWorkers, claim, release
from dispatcher.old_stores.limits import checked_body, fitting
from dispatcher.old_stores.numbers import service
from dispatcher.policies.clocks import STAY, Debit, Step

INVOCATION, QUEUE = 0, 1
"""Places in every transaction here."""
COUNTS_REMEMBERED_MAX = 10_000
COUNT_TRIES_MAX = 4
"""How often a queue's count may move between two tries of one write."""

Statements = list[dict[str, Any]]


class DynamoInvocations:
    def __init__(self, requests: Requests, reads: Reads, workers: DynamoWorkers, retention_s: float) -> None:
        self._requests = requests
        self._reads = reads
        self._workers = workers
        self._retention_s = retention_s
        self._is_last: dict[str, bool] = {}

    def remember_last(self, queue: str, *, is_last: bool) -> None:
        """Whether the next to leave a queue is its last, as far as was seen: a hint that saves a request."""
        if len(self._is_last) >= COUNTS_REMEMBERED_MAX:
            self._is_last.clear()
        self._is_last[queue] = is_last

    # ── Accepting ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def admit(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        nonce = self._requests.nonce()
        seat = await self._claimed(invocation, now)
        if seat is None:
            return await self._there(invocation) or Written.CONFLICT
        queue = queues.charged(invocation, debit)
        # A request of the same tenant began to wait after the snapshot: an arrival must not overtake it.
        queues.require_empty_queue(queue)
        try:
            await self._transact([self._new(invocation, nonce), self._update(queue), self._update(seat)])
        except ConditionFailed as refused:
            return _existing(refused, nonce) or Written.CONFLICT
        return Written.DONE

    async def enqueue(self, invocation: Invocation, lift: Step | None, waiting_max: int) -> Written:
        if waiting_max <= 0:
            return await self._there(invocation) or Written.FULL
        nonce = self._requests.nonce()
        queue = queues.lifted(invocation, lift)
        if lift is not None:
            # A request of the same tenant came first and lifted the clock: a second lift could move it too far.
            queues.require_empty_queue(queue)
        else:
            # The queue became empty meanwhile: without the lift the tenant would start with an old, low stamp.
            queue.require(queue.compares("waiting", ">=", 1))
            # The bound holds whatever arrives at once.
            queue.require(queue.compares("waiting", "<", waiting_max))
        queues.join(queue, invocation.pool)
        statements = [self._new(invocation, nonce), self._update(queue), self._waiting(invocation)]
        try:
            await self._transact(statements)
        except ConditionFailed as refused:
            return _existing(refused, nonce) or _full_or_moved(refused, waiting_max)
        return Written.DONE

    # ── From the queue to a slot ────────────────────────────────────────────────────────────────────────────────────

    async def dispatch(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        seat = await self._claimed(invocation, now)
        if seat is None:
            return Written.CONFLICT

        async def attempt(nonce: str, last: bool) -> None:
            queue = queues.charged(invocation, debit)
            queues.quit_queue(queue, last=last)
            # Two processes chose the same head, or its caller left: exactly one of them moves it on.
            moved = self._in_state(invocation, State.QUEUED, invocation.attempt - 1)
            moved.require(moved.compares("detached", "=", invocation.detached))
            moved.set_all(execution_attributes(invocation, nonce))
            statements = [self._update(moved), self._update(queue), self._update(seat), self._left(invocation)]
            await self._transact(statements)

        done = await self._quitting(invocation, debit.tat, debit.vft, attempt)
        return Written.DONE if done else Written.CONFLICT

    async def requeue(self, invocation: Invocation, tat: Step, vft: Step) -> Settled:
        queued = retried(invocation)
        queue = queues.refunded(invocation, tat, vft)
        queues.join(queue, invocation.pool)

        def changed(nonce: str) -> Statement:
            moved = self._in_state(invocation, State.RUNNING, invocation.attempt)
            moved.set_all(execution_attributes(queued, nonce))
            return moved

        return await self._stop(invocation, changed, queue, [self._waiting(queued)])

    # ── Ends ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def settle(self, ended: Invocation, tat: Step, vft: Step) -> Settled:
        kept = fitting(ended)
        queue = queues.refunded(ended, tat, vft)
        queue.add("spent", service(ended.served))

        def changed(nonce: str) -> Statement:
            moved = self._in_state(ended, State.RUNNING, ended.attempt)
            moved.set_all(ending_attributes(kept, nonce, self._retention_s))
            return moved

        return await self._stop(ended, changed, queue, [])

    async def drop(self, ended: Invocation) -> Settled:
        kept = fitting(ended)

        async def attempt(nonce: str, last: bool) -> None:
            queue = queues.untouched(ended)
            queues.quit_queue(queue, last=last)
            # It was dispatched or dropped a moment ago: this write must not end it.
            moved = self._in_state(ended, State.QUEUED, ended.attempt)
            moved.set_all(ending_attributes(kept, nonce, self._retention_s))
            await self._transact([self._update(moved), self._update(queue), self._left(ended)])

        dropped = await self._quitting(ended, STAY, STAY, attempt)
        return Settled.SETTLED if dropped else Settled.FENCED

    async def detach(self, tenant: str, invocation_id: str) -> Written:
        statement = Statement(invocation_key(tenant, invocation_id))
        # It was dispatched or ended at the moment of the detach: the caller's process handles it.
        statement.require(statement.compares("state", "=", State.QUEUED.value))
        # Without the request no process can execute it.
        statement.require(f"attribute_exists({statement.name('body')})")
        statement.set("detached", True)
        try:
            await self._requests.write("update_item", statement.as_update(self._requests.table))
        except ConditionFailed as refused:
            detached = (refused.old[0] or {}).get("detached", False)
            return Written.DONE if refused.perhaps_applied and detached else Written.CONFLICT
        return Written.DONE

    # ── Parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _quitting(
        self, invocation: Invocation, tat: Step, vft: Step, attempt: Callable[[str, bool], Awaitable[None]]
    ) -> bool:
        """Take an invocation out of its queue: tried with the count last seen, and again where only that was wrong."""
        nonce, last = self._requests.nonce(), self._is_last.get(invocation.queue, True)
        for _ in range(COUNT_TRIES_MAX):
            try:
                await attempt(nonce, last)
            except ConditionFailed as refused:
                if (refused.old[INVOCATION] or {}).get("nonce") == nonce:
                    return True
                others = any(refused.failed[:QUEUE] + refused.failed[QUEUE + 1 :])
                if others or not queues.only_the_count_differed(refused.old[QUEUE], tat, vft):
                    return False
                last = (refused.old[QUEUE] or {})["waiting"] == 1
            else:
                self._is_last.pop(invocation.queue, None)
                return True
        return False

    async def _stop(
        self, ran: Invocation, changed: Callable[[str], Statement], queue: Statement, more: Statements
    ) -> Settled:
        """End or put back a running invocation, with its slot where it still holds one."""
        nonce = self._requests.nonce()
        seat = await self._released(ran)
        base = [self._update(changed(nonce)), self._update(queue), *more]
        try:
            await self._transact(base + ([self._update(seat)] if seat is not None else []))
        except ConditionFailed as refused:
            if refused.failed[INVOCATION]:
                return _settled_before(refused, nonce)
        else:
            return Settled.SETTLED
        # Only the slot refused: it was given to another execution, which keeps it; this one is settled all the same.
        try:
            await self._transact(base)
        except ConditionFailed as refused:
            return _settled_before(refused, nonce)
        return Settled.SETTLED

    async def _there(self, invocation: Invocation) -> Written | None:
        """EXISTS, where nothing can be written anyway; a retry of the same id is answered all the same."""
        item = await self._reads.item(invocation_key(invocation.tenant, invocation.id))
        return Written.EXISTS if item is not None else None

    async def _claimed(self, invocation: Invocation, now: float) -> Statement | None:
        """None where the slot's worker has no seat."""
        slot = invocation.slot
        if slot is None or slot.number < 0:
            return None
        seat = await self._workers.seat_of(invocation.pool, slot.worker)
        if seat is None:
            return None
        lease = Lease(invocation.tenant, invocation.id, invocation.attempt, now)
        return claim(invocation.pool, seat, slot, lease, now)

    async def _released(self, ran: Invocation) -> Statement | None:
        slot: Slot | None = ran.slot
        seat = await self._workers.seat_of(ran.pool, slot.worker) if slot is not None else None
        if slot is None or seat is None:
            return None
        return release(ran.pool, seat, slot, f"{ran.tenant}/{ran.id}#{ran.attempt}")

    def _in_state(self, invocation: Invocation, state: State, attempt: int) -> Statement:
        statement = Statement(invocation_key(invocation.tenant, invocation.id))
        # Ended or requeued before, by another process or in an earlier try: nothing is charged twice.
        statement.require(statement.compares("state", "=", state.value))
        # A later attempt runs: a report of an older one has no effect.
        statement.require(statement.compares("attempt", "=", attempt))
        return statement

    def _new(self, invocation: Invocation, nonce: str) -> dict[str, Any]:
        item = invocation_item(replace(invocation, body=checked_body(invocation.body)), nonce)
        statement = Statement(invocation_key(invocation.tenant, invocation.id))
        # The same id again, within the retention, is a retry; an item past its expiry may lie about for days.
        expired = statement.compares(EXPIRY, "<=", self._requests.clock.now())
        statement.require(statement.absent(PARTITION), expired)
        return {"Put": statement.as_put(self._requests.table, item)}

    def _waiting(self, invocation: Invocation) -> dict[str, Any]:
        return {"Put": Statement(waiting_key(invocation)).as_put(self._requests.table, waiting_item(invocation))}

    def _left(self, invocation: Invocation) -> dict[str, Any]:
        return {"Delete": Statement(waiting_key(invocation)).as_delete(self._requests.table)}

    def _update(self, statement: Statement) -> dict[str, Any]:
        return {"Update": statement.as_update(self._requests.table)}

    async def _transact(self, statements: Statements) -> None:
        """Each under a token of its own: a token stands for one set of statements, a nonce for one purpose."""
        await self._requests.transact(statements, self._requests.nonce())


def _existing(refused: ConditionFailed, nonce: str) -> Written | None:
    if not refused.failed[INVOCATION]:
        return None
    return Written.DONE if (refused.old[INVOCATION] or {}).get("nonce") == nonce else Written.EXISTS


def _full_or_moved(refused: ConditionFailed, waiting_max: int) -> Written:
    waiting = (refused.old[QUEUE] or {}).get("waiting", 0)
    return Written.FULL if waiting >= waiting_max else Written.CONFLICT


def _settled_before(refused: ConditionFailed, nonce: str) -> Settled:
    own = (refused.old[INVOCATION] or {}).get("nonce") == nonce
    return Settled.SETTLED if own else Settled.FENCED
