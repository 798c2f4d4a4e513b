"""The output items of a response while they grow, each with its events. Pure.

An item is opened by its first piece, and closed when an item of another kind begins or the answer ends. The calls of
functions stay open together, because an engine may send the pieces of several calls in turn. Events have no
`sequence_number` yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dispatcher.responses.ids import output_id

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
