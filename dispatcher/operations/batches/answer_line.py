"""Gets the answer of one line: a durable call of the deferred class, submitted again until it has an end that counts.

A line of the endpoint of responses is submitted as a chat; a line of another endpoint is submitted as it is. The result
has the body with which the endpoint of the line answers.

The key of the call is made from the batch and the line. So a process that takes a batch over finds the calls of the
process before it, running or answered, and no line is charged twice.

A call that no worker begins within half of its time is withdrawn and submitted again. Otherwise a line that waited long
would begin shortly before its deadline, and the worker would end it in the middle of its answer.

A line without an answer is given up when its batch stops: the tenant cancelled it or was deleted, or its window is
over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from dispatcher.fields.parse import parse
from dispatcher.fields.tables import BATCH_ENDPOINTS, RESPONSES_PATH
from dispatcher.model.answers import AnswerHead, Choices
from dispatcher.model.batches import Batch
from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    HeadgateError,
    InvalidRequest,
    ServiceError,
    StoreUnavailable,
    TenantDeleted,
)
from dispatcher.model.requests import Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished
from dispatcher.operations.batches.create import deferred_class
from dispatcher.operations.batches.lines import Line, LineResult, custom_id_of, done, failed, fields_of, given_up
from dispatcher.operations.calls.answer import head_of, result_of
from dispatcher.operations.calls.call import Call
from dispatcher.operations.calls.ends import cancel
from dispatcher.operations.calls.followed import FollowedCall
from dispatcher.operations.calls.results import choices_of, last_event
from dispatcher.operations.calls.submit import Known, NewCall, submit
from dispatcher.operations.context import Context
from dispatcher.operations.responses import Turn, keep_if_wanted, read_turn
from dispatcher.responses.answer import ResponseEvents, ResponseHead
from dispatcher.responses.items import listed
from dispatcher.responses.request import renamed

CANCELLED_BY_TENANT = ("batch_cancelled", "The batch was cancelled before this request had an answer.")
WINDOW_OVER = ("batch_expired", "This request had no answer at the end of the completion window.")
TENANT_DELETED = ("tenant_deleted", "The tenant was deleted before this request had an answer.")


class TenantGone(HeadgateError):
    """The batch's tenant was deleted. No result is written."""


class Stop:
    """Set at most once. `reason` is the code and the message of the lines that are given up."""

    def __init__(self) -> None:
        self.reason = ("", "")
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self, reason: tuple[str, str]) -> None:
        if not self.is_set:
            self.reason = reason
            self._event.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when the batch stops, or after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return


_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.5, 30.0
"""The pause before a refused line is submitted again doubles from the first to the second of these."""
_WITHDRAWN = "cancelled"
"""The code of the error of a call that another process has withdrawn."""
_RAN_INTO_DEADLINE_MAX = 3
"""A line fails whose call reached its deadline so often while a worker ran it: its answer takes too long."""

logger = logging.getLogger("headgate.batches")


class _Withdrawn(Exception):
    """No worker began the call in time, or the batch stops. The call is not at the gate any more."""


@dataclass(frozen=True, slots=True)
class LineRequest:
    """`turn`: of a line of the endpoint of responses, which is submitted as a chat; None for the other endpoints."""

    request: Request
    turn: Turn | None = None

    def renamed(self) -> AbstractContextManager[None]:
        """Give an error that passes through the places of the line's own fields."""
        return nullcontext() if self.turn is None else renamed(self.turn.places)

    async def body(
        self, context: Context, tenant: str, head: AnswerHead, choices: Choices, finished: Finished
    ) -> dict[str, Any]:
        """Return the body of the answer. A response is kept, unless its line says `store` false."""
        if self.turn is None:
            return head.body(choices, finished)
        events = ResponseEvents(ResponseHead(head.id, head.created, head.model, self.turn.asked))
        response = events.whole(choices, finished)
        await keep_if_wanted(context, tenant, response, listed(self.turn.items, head.id))
        return response


class LineCall:
    """The way of one line to its result. `on_begun` is called when a worker begins the line."""

    def __init__(self, context: Context, batch: Batch, stop: Stop, on_begun: Callable[[], None] = lambda: None) -> None:
        self.has_begun = False
        self._context, self._batch = context, batch
        self._stop, self._on_begun = stop, on_begun
        self._call_id = ""
        self._number = self._ran_into_deadline = 0

    async def result(self, line: Line) -> LineResult:
        """Return the result of the line. It fails alone: no error of it is raised."""
        batch, own = self._batch, custom_id_of(line)
        try:
            body = await self._await_answer(line)
        except AnsweredError as error:
            return failed(batch, line, own, self._call_id, error)
        except Exception as error:
            logger.error("line %d of %s failed: %s", line.number + 1, batch.id, type(error).__name__)
            return failed(batch, line, own, self._call_id, ServiceError("The server had an error.", "internal_error"))
        if body is None:
            return given_up(batch, line, own, *self._stop.reason)
        return done(batch, line, own, self._call_id, body)

    async def _await_answer(self, line: Line) -> dict[str, Any] | None:
        """Return the body of the answer, or None if the batch stops first. Raises the error that is the line's end."""
        pause_s, asked = _PAUSE_FIRST_S, None
        while not self._stop.is_set:
            try:
                asked = asked or await self._build_request(line)
                with asked.renamed():
                    return await self._once(asked, line)
            except _Withdrawn:
                self._number += 1
            except AnsweredError as error:
                if isinstance(error, DeadlineExceeded) or error.code == _WITHDRAWN:
                    if self._ran_into_deadline >= _RAN_INTO_DEADLINE_MAX:
                        raise
                    self._number += 1
                    continue
                if isinstance(error, InvalidRequest) or error.retry_after_s is None:
                    raise
                await self._stop.wait(max(pause_s, min(error.retry_after_s, _PAUSE_MAX_S)))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        return None

    async def _build_request(self, line: Line) -> LineRequest:
        return await line_request(self._context, await self._tenant(), line, self._batch.endpoint)

    async def _once(self, asked: LineRequest, line: Line) -> dict[str, Any]:
        key = f"batch:{self._batch.id}:{line.number}:{self._number}"
        due_at = due_at_of(self._batch, line.number)
        submitted = await submit(self._context, await self._tenant(), asked.request, key, due_at=due_at)
        try:
            if isinstance(submitted, Known):
                return await self._follow_known(submitted, asked)
            return await self._follow_new(submitted, asked)
        except DeadlineExceeded:
            self._ran_into_deadline += _has_run(submitted)
            raise
        finally:
            submitted.leave()

    async def _tenant(self) -> Tenant:
        """Return the tenant as it is configured now: a batch may run for a day. Raises TenantDeleted."""
        found = await self._context.directory.tenant_of_identity(self._batch.tenant)
        if found is None:
            raise TenantDeleted
        return found

    async def _follow_known(self, known: Known, asked: LineRequest) -> dict[str, Any]:
        """Return the answer of a call that was submitted before, by another process."""
        self._call_id = known.invocation.id
        reading = asyncio.ensure_future(result_of(self._context, known))
        try:
            await self._any_of(reading)
            if not reading.done() and known.following is not None:
                await self._withdraw(known.following)
            answer = await reading
        finally:
            reading.cancel()
        assert answer is not None  # noqa: S101 - it waits without a timeout
        return await self._body(asked, head_of(known.invocation), choices_of(answer), last_event(answer))

    async def _follow_new(self, accepted: NewCall, asked: LineRequest) -> dict[str, Any]:
        call, following = accepted.call, accepted.following
        self._call_id = call.id
        reading, begun = asyncio.ensure_future(following.whole()), asyncio.ensure_future(following.begun.wait())
        try:
            await self._any_of(reading, begun, within_s=self._begins_within_s(call))
            if not reading.done():
                await self._withdraw(following)
            self.has_begun = True
            self._on_begun()
            answer = await reading
        finally:
            reading.cancel()
            begun.cancel()
        head = AnswerHead(call.id, int(call.created_at), call.request.model, call.request.endpoint)
        return await self._body(asked, head, answer.choices(), answer.finished)

    async def _body(self, asked: LineRequest, head: AnswerHead, choices: Choices, finished: Finished) -> dict[str, Any]:
        return await asked.body(self._context, self._batch.tenant, head, choices, finished)

    async def _withdraw(self, following: FollowedCall) -> None:
        """Take the call from the gate unless a worker has begun it. Raises _Withdrawn if it is withdrawn."""
        if not following.begun.is_set():
            with suppress(StoreUnavailable):
                await cancel(self._context, following.call, "cancelled", following.attempt)
            raise _Withdrawn

    def _begins_within_s(self, call: Call) -> float:
        """Return how long the call may wait for its worker: less after a deadline in the middle of the answer."""
        return self._context.pools.named(call.pool).deadline_s / (2 << self._ran_into_deadline)

    async def _any_of(self, *events: asyncio.Future[Any], within_s: float | None = None) -> None:
        """Wait for one of the events, for the stop of the batch, or for so many seconds."""
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({*events, stopped}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()


async def line_request(context: Context, tenant: Tenant, line: Line, endpoint: str) -> LineRequest:
    """Return the request of a line, in the deferred class of its model's pool. Raises InvalidRequest, which names the
    line, and what `read_turn` raises."""
    try:
        return await _line_request(context, tenant, line, endpoint)
    except InvalidRequest as error:
        error.message = f"Line {line.number + 1}: {error.message}"
        raise


async def _line_request(context: Context, tenant: Tenant, line: Line, endpoint: str) -> LineRequest:
    fields, turn = fields_of(line, endpoint), None
    if endpoint == RESPONSES_PATH:
        turn = await read_turn(context, tenant.identity, fields)
        request = turn.chat.request
    else:
        drops = context.settings.unknown_fields == "drop"
        request = parse(fields, BATCH_ENDPOINTS[endpoint], drop_unknown=drops).request
    if request.stream:
        raise InvalidRequest("A line of a batch cannot be streamed: leave out `stream`.", "stream")
    slo_class = deferred_class(await context.pools.serving(request.model), tenant).name
    if request.slo_class not in ("", slo_class):
        message = f"The lines of a batch have the SLO class {slo_class}: leave out `headgate_slo_class`."
        raise InvalidRequest(message, "metadata.headgate_slo_class")
    return LineRequest(replace(request, slo_class=slo_class), turn)


def due_at_of(batch: Batch, number: int) -> float:
    """Return when a line's first token is due, in Unix seconds.

    The first half of the window is slack: the line waits for capacity that others leave. Over the second half the due
    times are spread evenly. So a batch that found no such capacity uses its tenant's share evenly until its end, and
    not all at once.
    """
    half_s = (batch.expires_at - batch.created_at) / 2
    return batch.expires_at - half_s * (1 - (number + 1) / max(batch.total, number + 1))


def _has_run(submitted: NewCall | Known) -> bool:
    if isinstance(submitted, NewCall):
        return submitted.following.begun.is_set()
    answer = submitted.invocation.answer
    return answer is not None and answer.attempt > 0
