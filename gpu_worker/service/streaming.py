"""The HTTP answer that streams an execution's lines to the gate. If the gate stops reading, the execution soon ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from dispatcher.ports import Clock

logger = logging.getLogger("headgate.worker")

STALLED_S = 20.0
"""The longest time for the gate to accept one line. The output that is generated meanwhile is bounded by the order's
max_tokens. At most one line waits here, besides the server's send buffer."""
LATE_S = 1.0
"""The same time after the deadline, when only the last event is left to send."""


class LinesResponse(StreamingResponse):
    """Closes `lines` whenever the connection ends, in whatever way. This ends the execution, unless it is durable."""

    def __init__(
        self, first: bytes | None, lines: AsyncGenerator[bytes, None], *, name: str, deadline_at: float, clock: Clock
    ) -> None:
        super().__init__(_chain_lines(first, lines), media_type="application/x-ndjson")
        self._lines = lines
        self._name = name
        self._deadline_at = deadline_at
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            patience_s = max(LATE_S, min(STALLED_S, self._deadline_at - self._clock.now()))
            async with asyncio.timeout(patience_s):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            # After this return the server closes the connection, and the gate gets an incomplete answer.
            logger.warning("the gate does not read the answer", extra={"execution": self._name})
        finally:
            await self._lines.aclose()


async def _chain_lines(first: bytes | None, lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    if first is not None:
        yield first
    async for item in lines:
        yield item
