"""What every tenant client shares: bodies out, keys that make a retry the same invocation, and when to ask again."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headgate.client.answers import BadRequest, HeadgateClientError

Prompt = str | Sequence[Mapping[str, Any]]
"""The user's words, or messages: an answer's own message (`answer.raw["choices"][0]["message"]`) is one too."""
PAUSE_MIN_S = 0.1
JITTER = 0.25
"""Pauses are up to a quarter longer than asked, so that callers refused together do not come back together."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may pause, over all its tries of one call, where it is told when to come back (429, 503).

    0, the default, is not at all: the refusal is raised. Streams are never asked for again.
    """

    within_s: float = 0.0
    sleep: Callable[[float], None] = time.sleep
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = lambda: secrets.randbits(16) / 2**16
    """From 0 to 1."""

    def pause_s(self, error: HeadgateClientError, waited_s: float) -> float | None:
        """How long to pause before the next try; None to give up."""
        if error.status not in (429, 503) or error.retry_after_s is None:
            return None
        pause_s = max(error.retry_after_s, PAUSE_MIN_S) * (1 + JITTER * self.jitter())
        return pause_s if waited_s + pause_s <= self.within_s else None

    def ask(self, once: Callable[[], T]) -> T:
        """`once`, as often as patience lasts."""
        waited_s = 0.0
        while True:
            try:
                return once()
            except HeadgateClientError as error:
                pause_s = self.pause_s(error, waited_s)
                if pause_s is None:
                    raise
            self.sleep(pause_s)
            waited_s += pause_s


def body_of(prompt: Prompt, model: str, fields: Mapping[str, Any], *, chat: bool) -> dict[str, Any]:
    """OpenAI's body; fields that are None are left out."""
    if chat:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        asked: dict[str, Any] = {"messages": messages}
    else:
        asked = {"prompt": prompt}
    return {"model": model, **asked, **{name: value for name, value in fields.items() if value is not None}}


def as_header(value: str, name: str) -> str:
    """Raises BadRequest for what no header can carry."""
    if not (value.isascii() and value.isprintable()):
        raise BadRequest(f"{name} has characters that an HTTP header cannot carry", param=name)
    return value
