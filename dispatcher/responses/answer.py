"""One response from the events of its call: a state machine that returns OpenAI's events. Pure.

    opening()  response.created, response.in_progress
    token()    the events of each piece: items are opened, grow and are closed
    finish()   the events that close the last items; then `final` is the whole response
    last()     response.completed or response.incomplete, with the final response
    failed()   response.failed

A response that is not streamed is built by the same calls, and its events are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from dispatcher.model.answers import Choices, tokens_of
from dispatcher.model.errors import AnsweredError
from dispatcher.model.worker_protocol import Finished, Token
from dispatcher.responses.output import Event, FunctionItem, MessageItem, OutputItem, ReasoningItem
from dispatcher.responses.shape import ResponseHead, ended, failure, usage

_REASONING = ("reasoning", "reasoning_content")
"""The names that engines give the reasoning in a chat's delta."""

Item = TypeVar("Item", bound=MessageItem | ReasoningItem)


class ResponseEvents:
    def __init__(self, head: ResponseHead) -> None:
        self.final: dict[str, Any] = {}
        """The whole response, after `finish`."""
        self._head = head
        self._items: list[OutputItem] = []
        self._open: list[OutputItem] = []
        self._calls: dict[int, FunctionItem] = {}
        """The open calls of functions, by their `index` in the chat's delta."""
        self._number = 0

    def opening(self) -> list[Event]:
        response = self._head.response("in_progress")
        return self._number_events(
            [{"type": f"response.{each}", "response": response} for each in ("created", "in_progress")]
        )

    def token(self, token: Token) -> list[Event]:
        """Return the events of a piece. In one piece, reasoning comes before text, and text before function calls."""
        delta, events = token.delta or {}, []
        for name in _REASONING:
            if text := delta.get(name):
                events += self._reasoning(text)
                break
        if token.text:
            events += self._text(token)
        if refusal := delta.get("refusal"):
            message, opened = self._current(MessageItem)
            events += [*opened, *message.refuse(refusal)]
        for piece in delta.get("tool_calls") or ():
            events += self._call(piece)
        return self._number_events(events)

    def finish(self, finished: Finished) -> list[Event]:
        status, details = ended(finished.reason)
        _, opened = self._current(MessageItem) if not self._items else (None, [])
        events = [*opened, *self._close_all(status)]
        spent = usage(finished)
        self.final = self._head.response(status, self._output(), usage=spent, incomplete_details=details)
        return self._number_events(events)

    def whole(self, choices: Choices, finished: Finished) -> dict[str, Any]:
        """Return the whole response of an answer that is not streamed. It is `final` from then on."""
        for token in tokens_of(choices[:1], finished.output_tokens):
            self.token(token)
        self.finish(finished)
        return self.final

    def last(self) -> list[Event]:
        return self._number_events([{"type": f"response.{self.final['status']}", "response": self.final}])

    def failed(self, error: AnsweredError) -> list[Event]:
        """Return the event that ends a response with an error. Items that are not complete stay as they are."""
        response = self._head.response("failed", self._output(), error=failure(error), store=False)
        return self._number_events([{"type": "response.failed", "response": response}])

    def _reasoning(self, text: str) -> list[Event]:
        item, opened = self._current(ReasoningItem)
        return [*opened, *item.text(text)]

    def _text(self, token: Token) -> list[Event]:
        item, opened = self._current(MessageItem)
        logprobs = (token.logprobs or {}).get("content") or ()
        return [*opened, *item.text(token.text, logprobs)]

    def _call(self, piece: Mapping[str, Any]) -> list[Event]:
        number = piece.get("index", len(self._calls))
        if number in self._calls:
            return self._calls[number].piece(piece)
        events = [] if self._calls else self._close_all("completed")
        item = FunctionItem(self._head.call_id, len(self._items), piece)
        self._calls[number] = item
        return [*events, *self._begin(item), *item.piece(piece)]

    def _current(self, kind: type[Item]) -> tuple[Item, list[Event]]:
        """Return the open item of this kind, and the events that open it if another kind was open."""
        last = self._open[-1] if self._open else None
        if isinstance(last, kind):
            return last, []
        closed = self._close_all("completed")
        item = kind(self._head.call_id, len(self._items))
        return item, [*closed, *self._begin(item)]

    def _begin(self, item: OutputItem) -> list[Event]:
        self._items.append(item)
        self._open.append(item)
        return item.open()

    def _close_all(self, status: str) -> list[Event]:
        """Close the open items. Only the last one gets the status; those before it are complete."""
        events = [event for item in self._open[:-1] for event in item.close("completed")]
        events += self._open[-1].close(status) if self._open else []
        self._open, self._calls = [], {}
        return events

    def _output(self) -> list[dict[str, Any]]:
        return [item.item for item in self._items]

    def _number_events(self, events: list[Event]) -> list[Event]:
        for event in events:
            event["sequence_number"] = self._number
            self._number += 1
        return events
