"""Ends a batch before its lines have ended: the tenant cancelled it or was deleted, or its window is over."""

from __future__ import annotations

import asyncio

from dispatcher.model.errors import HeadgateError

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
