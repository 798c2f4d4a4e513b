"""One response from the events of its call: the response object, its output items, and OpenAI's events. Pure.

ResponseEvents is the state machine that returns the events:

    opening()  response.created, response.in_progress
    token()    the events of each piece: items are opened, grow and are closed
    finish()   the events that close the last items; then `final` is the whole response
    last()     response.completed or response.incomplete, with the final response
    failed()   response.failed

A response that is not streamed is built by the same calls, and its events are dropped.

An item is opened by its first piece, and closed when an item of another kind begins or the answer ends. The calls of
functions stay open together, because an engine may send the pieces of several calls in turn. The events of items have
no `sequence_number` yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dispatcher.model.answers import Choices, tokens_of
from dispatcher.model.errors import AnsweredError
from dispatcher.model.worker_protocol import Finished, Token
from dispatcher.responses.items import output_id, response_id
from dispatcher.responses.request import Asked

_RATE_LIMIT = 429
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields that every state of one response has."""

    call_id: str
    created: int
    """Unix seconds."""
    model: str
    asked: Asked

    @property
    def id(self) -> str:
        return response_id(self.call_id)

    def response(self, status: str, output: Sequence[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
        """Return the response in a state. `more` replaces fields, such as `usage` and `error`."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": list(output),
            "usage": None,
            **_settings(self.asked.fields),
            "store": self.asked.is_stored,
            **more,
        }


def ended(reason: str) -> tuple[str, dict[str, Any] | None]:
    """Return the status of a response and its `incomplete_details`, by the reason that the worker gives for its end."""
    if reason not in _INCOMPLETE:
        return "completed", None
    return "incomplete", {"reason": _INCOMPLETE[reason]}


def usage(finished: Finished) -> dict[str, Any]:
    """Return the counts in OpenAI's form. No engine counts the tokens that it writes to its cache: they are 0."""
    return {
        "input_tokens": finished.input_tokens,
        "input_tokens_details": {"cached_tokens": finished.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": finished.output_tokens,
        "output_tokens_details": {"reasoning_tokens": finished.reasoning_tokens},
        "total_tokens": finished.input_tokens + finished.output_tokens,
    }


def failure(error: AnsweredError) -> dict[str, Any]:
    """Return the `error` of a failed response. OpenAI's API has few codes; the message has the reason."""
    code = "rate_limit_exceeded" if error.status == _RATE_LIMIT else "server_error"
    return {"code": code, "message": error.message}


def _settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's settings as OpenAI's API repeats them, with its defaults."""
    reasoning = fields.get("reasoning", {})
    return {
        "instructions": fields.get("instructions"),
        "previous_response_id": fields.get("previous_response_id"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": fields.get("metadata") or {},
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "temperature": fields.get("temperature", 1.0),
        "text": {"format": fields.get("text", {}).get("format") or {"type": "text"}},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [
            {"description": None, "parameters": None, "strict": None, **tool} for tool in fields.get("tools", [])
        ],
        "top_logprobs": fields.get("top_logprobs", 0),
        "top_p": fields.get("top_p", 1.0),
        "truncation": "disabled",
        "background": False,
    }


Event = dict[str, Any]


class OutputItem(Protocol):
    """One output item. `item` is its present form."""

    item: dict[str, Any]

    def open(self) -> list[Event]:
        """Return the events that begin the item."""
        ...

    def close(self, status: str) -> list[Event]:
        """Return the events that end the item. `status` is "completed" or "incomplete"."""
        ...


class _Parts:
    """A message or reasoning: an item with content parts, of which the last one grows."""

    def __init__(self, kind: str, call_id: str, index: int, fields: Mapping[str, Any]) -> None:
        self.item: dict[str, Any] = {"id": output_id(kind, call_id, index), "type": kind, **fields}
        self.item |= {"status": "in_progress", "content": []}
        self._index = index

    def open(self) -> list[Event]:
        return [{"type": "response.output_item.added", "output_index": self._index, "item": _copy(self.item)}]

    def close(self, status: str) -> list[Event]:
        events = self._close_part()
        self.item["status"] = status
        return [*events, {"type": "response.output_item.done", "output_index": self._index, "item": _copy(self.item)}]

    def _write(self, kind: str, field: str, text: str) -> list[Event]:
        """Add text to the last part, or to a new part if the last one is of another kind."""
        parts, events = self.item["content"], []
        if not parts or parts[-1]["type"] != kind:
            events = self._close_part() if parts else []
            parts.append(_empty_part(kind, field))
            events.append({"type": "response.content_part.added", **self._place(), "part": dict(parts[-1])})
        parts[-1][field] += text
        return [*events, {"type": f"response.{kind}.delta", **self._place(), "delta": text}]

    def _close_part(self) -> list[Event]:
        if not self.item["content"]:
            return []
        part = self.item["content"][-1]
        field = "refusal" if part["type"] == "refusal" else "text"
        done = {"type": f"response.{part['type']}.done", **self._place(), field: part[field]}
        if part["type"] == "output_text":
            done["logprobs"] = _event_logprobs(part["logprobs"])
        return [done, {"type": "response.content_part.done", **self._place(), "part": _copy(part)}]

    def _place(self) -> Event:
        number = len(self.item["content"]) - 1
        return {"item_id": self.item["id"], "output_index": self._index, "content_index": number}


class MessageItem(_Parts):
    """A message of the assistant, with text or a refusal."""

    def __init__(self, call_id: str, index: int) -> None:
        super().__init__("message", call_id, index, {"role": "assistant"})

    def text(self, text: str, logprobs: Sequence[Mapping[str, Any]]) -> list[Event]:
        events = self._write("output_text", "text", text)
        self.item["content"][-1]["logprobs"] += [_complete_logprob(each) for each in logprobs]
        events[-1]["logprobs"] = _event_logprobs(logprobs)
        return events

    def refuse(self, text: str) -> list[Event]:
        return self._write("refusal", "refusal", text)


class ReasoningItem(_Parts):
    """The reasoning as the engine writes it. The gate makes no summary."""

    def __init__(self, call_id: str, index: int) -> None:
        super().__init__("reasoning", call_id, index, {"summary": []})

    def text(self, text: str) -> list[Event]:
        return self._write("reasoning_text", "text", text)


class FunctionItem:
    """A call of a function."""

    def __init__(self, call_id: str, index: int, piece: Mapping[str, Any]) -> None:
        self.item = {
            "id": output_id("function_call", call_id, index),
            "type": "function_call",
            "call_id": piece.get("id") or f"call_{call_id}_{index}",
            "name": _function(piece).get("name") or "",
            "arguments": "",
            "status": "in_progress",
        }
        self._index = index

    def open(self) -> list[Event]:
        return [{"type": "response.output_item.added", "output_index": self._index, "item": dict(self.item)}]

    def piece(self, piece: Mapping[str, Any]) -> list[Event]:
        text = _function(piece).get("arguments") or ""
        self.item["arguments"] += text
        return [{"type": "response.function_call_arguments.delta", **self._place(), "delta": text}] if text else []

    def close(self, status: str) -> list[Event]:
        self.item["status"] = status
        arguments = self.item["arguments"]
        return [
            {"type": "response.function_call_arguments.done", **self._place(), "arguments": arguments},
            {"type": "response.output_item.done", "output_index": self._index, "item": dict(self.item)},
        ]

    def _place(self) -> Event:
        return {"item_id": self.item["id"], "output_index": self._index}


def _empty_part(kind: str, field: str) -> dict[str, Any]:
    return {"type": kind, field: "", **({"annotations": [], "logprobs": []} if kind == "output_text" else {})}


def _function(piece: Mapping[str, Any]) -> Mapping[str, Any]:
    return piece.get("function") or {}


def _complete_logprob(logprob: Mapping[str, Any]) -> dict[str, Any]:
    """Return a token's log probability with all fields of OpenAI's."""
    top = [{**each, "bytes": each.get("bytes") or []} for each in logprob.get("top_logprobs") or ()]
    return {**logprob, "bytes": logprob.get("bytes") or [], "top_logprobs": top}


def _event_logprobs(logprobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return log probabilities as events have them: without bytes."""
    return [
        {
            "token": each["token"],
            "logprob": each["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]} for top in each.get("top_logprobs") or ()
            ],
        }
        for each in logprobs
    ]


def _copy(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item with a copy of its content, which may grow."""
    return {name: [*value] if isinstance(value, list) else value for name, value in item.items()}


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
