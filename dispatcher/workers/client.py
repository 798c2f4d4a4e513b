"""The gate's client for workers: it sends a signed work order, and gives the events of the answer to their receiver.

A work order goes out in one POST, and the bytes of the answer come back (connections.py). `Connections` is the
interface, so that tests can put an application in memory behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from functools import lru_cache

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.fleet_secrets import EXECUTION_TOKEN_TTL_S, ExecutionToken, FleetSecrets, cache_salt, digest, sign
from dispatcher.model.worker_protocol import Alive, Finished, WorkOrder, WorkRefused
from dispatcher.ports import AttemptEvents, Clock, RunningAttempt
from dispatcher.workers.connections import Connections, HttpConnections
from dispatcher.workers.http_connection import BrokenConnection, Exchange, NotSent
from dispatcher.workers.wire import encode_order, parse_event

LINE_BYTES_MAX = 1_000_000

logger = logging.getLogger("headgate.gate")


class HttpWorkerClient:
    """ports.WorkerClient over HTTP."""

    def __init__(self, *, secrets: FleetSecrets, clock: Clock, connections: Connections | None = None) -> None:
        self._secrets = secrets
        self._clock = clock
        self._connections = connections or HttpConnections()

    def execute(self, offer: Offer, order: WorkOrder, events: AttemptEvents) -> RunningAttempt:
        """Send the order. Closing the attempt closes the connection, which aborts work that is not durable.

        The attempt fails with WorkerFailed if the worker cannot be reached, stops before the last event, is silent, or
        sends nonsense. Its `began` is False only if no byte of the order was sent.
        """
        attempt = _HttpAttempt(events)
        body = encode_order(order, _salt(order.terms.tenant, self._secrets.signing, order.prefix_group))
        headers = self._headers(offer, order, body)
        attempt.exchange = self._connections.post(f"{offer.url}/v1/execute", headers, body, attempt)
        return attempt

    async def close(self) -> None:
        await self._connections.close()

    def _headers(self, offer: Offer, order: WorkOrder, body: bytes) -> dict[str, str]:
        token = ExecutionToken(
            worker=offer.worker,
            invocation=order.invocation,
            attempt=order.attempt,
            expires_at=self._clock.now() + EXECUTION_TOKEN_TTL_S,
            body_digest=digest(body),
        )
        return {"authorization": f"Bearer {sign(token, self._secrets.signing)}", "content-type": "application/json"}


@lru_cache(maxsize=1024)
def _salt(tenant: str, secret: bytes, prefix_group: str) -> str:
    return cache_salt(tenant, secret, prefix_group)


class _HttpAttempt:
    """RunningAttempt, and the receiver of its answer. During a pause it keeps the lines that arrived before.

    It splits the answer at line feeds only. The last line needs no line feed.
    """

    exchange: Exchange

    def __init__(self, events: AttemptEvents) -> None:
        self._events: AttemptEvents | None = events
        """None after the last event, a failure or `close`."""
        self._status = 200
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        """The beginning of the next line."""
        self._failure: WorkerFailed | None = None
        """What comes after the lines."""
        self._is_paused = False

    def pause(self) -> None:
        self._is_paused = True
        self.exchange.pause()

    def resume(self) -> None:
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._go_on)

    def close(self) -> None:
        self._events = None
        self._lines.clear()
        self.exchange.close()

    # ── The answer ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_head(self, status: int) -> None:
        self._status = status

    def on_body(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            data = bytes(self._rest) if b"\n" in data else b""
        if data:
            *lines, rest = data.split(b"\n")
            self._lines += lines
            self._rest = bytearray(rest)
        if len(self._rest) > LINE_BYTES_MAX:
            self._failure = WorkerFailed("The worker cannot be used: it sent a line that is too long.")
        if self._is_paused:
            self.exchange.pause()
        self._deliver()

    def on_end(self) -> None:
        if self._rest or self._status != 200:
            self._lines.append(bytes(self._rest))
            self._rest.clear()
        self._failure = WorkerFailed()
        self._deliver()

    def on_broken(self, error: NotSent | BrokenConnection) -> None:
        if isinstance(error, NotSent):
            self._failure = WorkerFailed(f"The worker cannot be reached: {error}.", began=False)
        else:
            self._failure = WorkerFailed(f"The worker cannot be used: {error}.")
        self._deliver()

    # ── The events ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _go_on(self) -> None:
        """Deliver what arrived before the pause, and read on."""
        self._deliver()
        if not self._is_paused:
            self.exchange.resume()

    def _deliver(self) -> None:
        """Deliver lines, and the failure after them, unless the receiver pauses or closes the attempt."""
        while self._events is not None and not self._is_paused:
            if self._lines:
                self._take(self._events, self._lines.popleft())
            elif self._failure is not None:
                self._fail(self._events, self._failure)
            else:
                return

    def _take(self, events: AttemptEvents, line: bytes) -> None:
        try:
            event = parse_event(line) if self._status == 200 else _refusal(self._status, line)
        except (ValueError, RecursionError) as error:
            self._fail(events, WorkerFailed(f"The worker cannot be used: {type(error).__name__}."))
            return
        if isinstance(event, Alive):
            return
        is_last = isinstance(event, Finished | WorkRefused)
        if is_last:
            self._end(is_clean=not self._lines and not self._rest)
        try:
            events.take(event)
        except Exception as error:
            logger.exception("the receiver of an attempt failed: %s", type(error).__name__)
            if is_last or self._events is not None:
                self._fail(events, WorkerFailed())

    def _end(self, *, is_clean: bool) -> None:
        """Leave the connection for the next order unless there is more after the last event."""
        if is_clean:
            self._events = None
            self.exchange.release()
        else:
            self.close()

    def _fail(self, events: AttemptEvents, failure: WorkerFailed) -> None:
        self.close()
        try:
            events.fail(failure)
        except Exception as error:
            logger.exception("the receiver of an attempt failed: %s", type(error).__name__)


def _refusal(status: int, line: bytes) -> WorkRefused:
    """Return the refusal in the body of an HTTP error, or a refusal without details if the body contains none."""
    try:
        event = parse_event(line)
    except (ValueError, RecursionError):
        event = None
    if isinstance(event, WorkRefused):
        return replace(event, status=status)
    return WorkRefused(status, "worker_refused", "The worker refused the request.")
