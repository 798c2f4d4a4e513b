"""The retry rule of the tenant client: only after a refusal that says when, and within a bound."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import openai

PAUSE_MIN_S = 0.1
JITTER = 0.25
"""A pause is up to a quarter longer than Retry-After, so that callers refused together do not come back together."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds a client may pause in total, over all tries of one call.

    A client pauses and tries again after a 429 or 503 that carries Retry-After. 0, the default: it never does.
    Streams are not retried.
    """

    within_s: float = 0.0
    sleep: Callable[[float], None] = time.sleep
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = lambda: secrets.randbits(16) / 2**16
    """Returns a random number from 0 to 1."""

    def ask(self, once: Callable[[], T]) -> T:
        """Call `once` until it answers or the patience ends, then raise its error."""
        waited_s = 0.0
        while True:
            try:
                return once()
            except openai.APIStatusError as error:
                pause_s = self._pause_s(error, waited_s)
            self.sleep(pause_s)
            waited_s += pause_s

    async def ask_async(self, once: Callable[[], Awaitable[T]]) -> T:
        """Do the same for asyncio."""
        waited_s = 0.0
        while True:
            try:
                return await once()
            except openai.APIStatusError as error:
                pause_s = self._pause_s(error, waited_s)
            await self.sleep_async(pause_s)
            waited_s += pause_s

    def _pause_s(self, error: openai.APIStatusError, waited_s: float) -> float:
        """Seconds until the next try. Raises the error if there is none."""
        after_s = retry_after_s(error)
        if error.status_code not in (429, 503) or after_s is None:
            raise error
        pause_s = max(after_s, PAUSE_MIN_S) * (1 + JITTER * self.jitter())
        if waited_s + pause_s > self.within_s:
            raise error
        return pause_s


def retry_after_s(error: openai.APIStatusError) -> float | None:
    """Seconds after which to try again; None if the answer names none, or a date, which a proxy may send."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None
