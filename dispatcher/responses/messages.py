"""Turns the items of a response into the messages of a chat. Pure.

An assistant's message, its reasoning and its function calls are items of their own here, and one message in a chat.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dispatcher.responses.errors import Places

Item = dict[str, Any]
Message = dict[str, Any]
EARLIER = "previous_response_id"
"""The place of the items of earlier responses."""


@dataclass(slots=True)
class Messages:
    """The messages so far, and where each comes from. `add` the items in their order, then `close`."""

    places: Places
    messages: list[Message] = field(default_factory=list)
    _turn: Message | None = None
    """The assistant's message to which the next item of the assistant belongs."""

    def add(self, item: Item, place: str) -> None:
        """Add an item. `place` is its place in the request."""
        kind = item["type"]
        if kind == "function_call":
            self._call(item, place)
        elif kind == "function_call_output":
            self._result(item, place)
        elif kind == "reasoning":
            self._reasoning(item, place)
        elif item["role"] == "assistant":
            self._add_assistant_text(item, place)
        else:
            self._append({"role": item["role"], "content": _content(item["content"])}, place)
            self._place_images(item["content"], place)

    def close(self) -> list[Message]:
        """Return the messages. An assistant's message with reasoning alone is left out."""
        self._turn = None
        return [message for message in self.messages if set(message) != {"role", "reasoning"}]

    def _call(self, item: Item, place: str) -> None:
        calls = self._assistant(place).setdefault("tool_calls", [])
        at = f"{self._last()}.tool_calls.{len(calls)}"
        self.places.add(at, place)
        self.places.add(f"{at}.id", f"{place}.call_id" if place != EARLIER else place)
        self.places.add(f"{at}.function", place)
        function = {"name": item["name"], "arguments": item["arguments"]}
        calls.append({"id": item["call_id"], "type": "function", "function": function})

    def _result(self, item: Item, place: str) -> None:
        self._append({"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])}, place)
        if place != EARLIER:
            self.places.add(f"{self._last()}.tool_call_id", f"{place}.call_id")
            self.places.add(f"{self._last()}.content", f"{place}.output")

    def _reasoning(self, item: Item, place: str) -> None:
        if self._turn is None or set(self._turn) != {"role", "reasoning"}:
            self._begin(place)
        text = "".join(part["text"] for part in item.get("content") or item.get("summary") or ())
        turn = self._assistant(place)
        turn["reasoning"] = turn.get("reasoning", "") + text

    def _add_assistant_text(self, item: Item, place: str) -> None:
        if self._turn is None or "content" in self._turn or "tool_calls" in self._turn:
            self._begin(place)
        content = item["content"]
        parts = content if isinstance(content, list) else [{"text": content}]
        self._assistant(place)["content"] = "".join(_text(part) for part in parts)
        self.places.add(self._last(), place)

    def _assistant(self, place: str) -> Message:
        if self._turn is None:
            self._begin(place)
        return self.messages[-1]

    def _begin(self, place: str) -> None:
        self._append({"role": "assistant"}, place)
        self._turn = self.messages[-1]

    def _append(self, message: Message, place: str) -> None:
        self._turn = None
        self.messages.append(message)
        self.places.add(self._last(), place)

    def _last(self) -> str:
        return f"messages.{len(self.messages) - 1}"

    def _place_images(self, content: Any, place: str) -> None:
        if place == EARLIER or not isinstance(content, list):
            return
        for number, part in enumerate(content):
            if part["type"] == "input_image":
                at = f"content.{number}.image_url"
                self.places.add(f"{self._last()}.{at}.url", f"{place}.{at}")


def messages_of(
    instructions: str | None, earlier: Iterable[Item], items: Iterable[Item], places: Places
) -> list[Message]:
    """Return the messages of a request. `places` gets the place of each message."""
    made = Messages(places)
    if instructions:
        made.add({"type": "message", "role": "system", "content": instructions}, "instructions")
    for item in earlier:
        made.add(item, EARLIER)
    for number, item in enumerate(items):
        made.add(item, f"input.{number}")
    return made.close()


def _content(content: str | list[Any]) -> str | list[Any]:
    """Return the content of a chat's message: one text as it is, several parts as a list."""
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content]
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Item) -> Item:
    if part["type"] != "input_image":
        return {"type": "text", "text": _text(part)}
    image = {"url": part["image_url"], **({"detail": part["detail"]} if "detail" in part else {})}
    return {"type": "image_url", "image_url": image}


def _text(part: Item) -> str:
    """Return the text of a part, or its refusal."""
    return str(part.get("text", part.get("refusal", "")))
