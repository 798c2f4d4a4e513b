"""The forms of an answer: as a chat or a completion, and as a response (responses.py).

A form writes one answer, whole or as a stream. replies.py gives it the events and sends what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dispatcher.model.answers import DONE, AnswerHead, Choices, event
from dispatcher.model.errors import AnsweredError
from dispatcher.model.requests import Request
from dispatcher.model.worker_protocol import Finished, Token, WorkEvent


class AnswerForm(Protocol):
    async def write(self, item: WorkEvent) -> list[bytes]:
        """Return the server-sent events for an event of the answer."""
        ...

    def failed(self, error: AnsweredError) -> list[bytes]:
        """Return the server-sent events that end the stream with an error."""
        ...

    def end(self) -> list[bytes]:
        """Return what comes after the last event of a complete answer."""
        ...

    async def whole(self, choices: Choices, finished: Finished) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        ...


FormMaker = Callable[[AnswerHead], AnswerForm]


@dataclass(slots=True)
class ChatForm:
    """A chat, a completion or embeddings."""

    head: AnswerHead
    request: Request
    _is_open: bool = field(default=False, init=False)

    async def write(self, item: WorkEvent) -> list[bytes]:
        chunks = self._chunks(item)
        if chunks and not self._is_open:
            self._is_open = True
            chunks = [*self.head.opening(self.request.choices), *chunks]
        return [event(chunk) for chunk in chunks]

    def failed(self, error: AnsweredError) -> list[bytes]:
        return [event(error.body_with_retry()), DONE]

    def end(self) -> list[bytes]:
        return [DONE]

    async def whole(self, choices: Choices, finished: Finished) -> dict[str, Any]:
        return self.head.body(choices, finished)

    def _chunks(self, item: WorkEvent) -> list[dict[str, Any]]:
        if isinstance(item, Token):
            return [self.head.chunk(item)] if item.text or item.delta or item.logprobs else []
        if not isinstance(item, Finished):
            return []
        last = self.head.last_chunks(item)
        if not self.request.include_usage:
            return last
        return [*last, self.head.usage_chunk(item)]
