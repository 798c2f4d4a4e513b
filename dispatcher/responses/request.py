"""Reads the body of POST /v1/responses by the table of fields, and translates it to the body of a chat. Pure.

An assistant's message, its reasoning and its function calls are items of their own here, and one message in a chat. An
error of the translated chat names the places of the response's own fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dispatcher.fields.kinds import Reading, missing, read_fields
from dispatcher.fields.tables import RESPONSES_TABLE
from dispatcher.model.errors import AnsweredError, TenantError
from dispatcher.responses.items import Item, as_items, with_types

_HOUR_S = 3600.0
_PLACES = (
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("tool_choice.function", "tool_choice"),
    ("logprobs", "include"),
    ("messages", "input"),
)
_FUNCTION = re.compile(r"tools\.(\d+)\.function")


class UnknownResponse(TenantError):
    """No kept response of the tenant has this id."""

    def __init__(self, kept_s: float) -> None:
        super().__init__(
            f"No response with this id. {_retention_text(kept_s)}", "not_found", "id", 404, "invalid_request_error"
        )


class UnknownPreviousResponse(TenantError):
    def __init__(self, kept_s: float) -> None:
        retention = _retention_text(kept_s)
        message = f"No response with the id in `previous_response_id`. {retention} Send the conversation in `input`."
        param, code = "previous_response_id", "previous_response_not_found"
        super().__init__(message, code, param, 400, "invalid_request_error")


class UnknownItem(TenantError):
    """No kept response of the tenant has the item that `input` refers to."""

    def __init__(self, place: str, kept_s: float) -> None:
        message = f"No item with the id in `{place}`. {_retention_text(kept_s)} Send the item itself."
        super().__init__(message, "item_not_found", place, 404, "invalid_request_error")


@dataclass(slots=True)
class Places:
    """Where the fields of the translated chat come from: pairs of a place in the chat and one in the response."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    """A more exact place comes after a less exact one."""

    def add(self, chat: str, response: str) -> None:
        self.pairs.append((chat, response))

    def of(self, chat: str) -> str:
        """Return the place in the response of a place in the chat."""
        for known, named in [*reversed(self.pairs), *_PLACES]:
            if chat == known or chat.startswith(f"{known}."):
                return named if named == "previous_response_id" else named + chat[len(known) :]
        return _FUNCTION.sub(r"tools.\1", chat)


@contextmanager
def renamed(places: Places) -> Iterator[None]:
    """Give an error that passes through the places of the response's fields."""
    try:
        yield
    except AnsweredError as error:
        if error.param is not None and (named := places.of(error.param)) != error.param:
            error.message = re.sub(rf"(?<![\w.]){re.escape(error.param)}(?![\w.]\w)", named, error.message)
            error.param = named
        raise


def _retention_text(kept_s: float) -> str:
    hours = f"{kept_s / _HOUR_S:g}"
    return (
        f"Responses are kept for {hours} hours, unless `store` is false, the response is too long, or the tenant has "
        "used up its space (then the response says `store` false)."
    )


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


def _messages_of(
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


_LOGPROBS = "message.output_text.logprobs"
_TRANSLATED = frozenset(
    [
        *("input", "instructions", "max_output_tokens", "previous_response_id", "store", "stream_options", "text"),
        *("reasoning", "tools", "tool_choice", "parallel_tool_calls", "top_logprobs", "include"),
    ]
)
"""Fields that a chat has not, or has in another form. All others are passed as they are."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a response, checked field by field. The chat's table checks the rest after the translation."""

    fields: Mapping[str, Any]
    items: list[Item]
    """The items of `input`; references among them."""
    dropped: tuple[str, ...] = ()
    """The places of unknown fields that the pool's configuration drops."""

    @property
    def previous(self) -> str | None:
        return self.fields.get("previous_response_id")

    @property
    def is_stored(self) -> bool:
        return bool(self.fields.get("store", True))

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in self.fields.get("include", ()) or "top_logprobs" in self.fields


def parse_asked(body: Mapping[str, Any], *, drop_unknown: bool = False) -> Asked:
    """Return the request of a body. Raises InvalidRequest, which names the field and never repeats a value."""
    reading = Reading(drop_unknown)
    given = {**body, "input": with_types(body["input"])} if "input" in body else body
    fields = read_fields(given, RESPONSES_TABLE, "", reading)
    items = as_items(fields.get("input", []))
    if not items and "previous_response_id" not in fields:
        raise missing("input")
    return Asked(fields, items, tuple(reading.dropped))


def chat_of(asked: Asked, earlier: Sequence[Item], items: Sequence[Item], places: Places) -> dict[str, Any]:
    """Return the body of the chat.

    earlier: the items of earlier responses. items: those of `input`, each reference replaced by its item. `places` gets
    the places of the chat's fields in the request.
    """
    fields = asked.fields
    chat = {name: value for name, value in fields.items() if name not in _TRANSLATED}
    chat["messages"] = _messages_of(fields.get("instructions"), earlier, items, places)
    if "max_output_tokens" in fields:
        chat["max_completion_tokens"] = fields["max_output_tokens"]
    if asked.wants_logprobs:
        chat["logprobs"] = True
        chat["top_logprobs"] = fields.get("top_logprobs", 0)
    if (effort := fields.get("reasoning", {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    return chat | _tools(fields) | _format(fields.get("text", {}).get("format"))


def _tools(fields: Mapping[str, Any]) -> dict[str, Any]:
    choice = fields.get("tool_choice")
    tools = fields.get("tools", [])
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        allowed = {each["name"] for each in choice["tools"]}
        tools, choice = [tool for tool in tools if tool["name"] in allowed], choice["mode"]
    elif isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    named = {"tools": [_tool(tool) for tool in tools], "tool_choice": choice}
    parallel = fields.get("parallel_tool_calls")
    return named | ({} if parallel is None else {"parallel_tool_calls": parallel})


def _tool(tool: Item) -> Item:
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _format(form: Mapping[str, Any] | None) -> dict[str, Any]:
    if form is None or form["type"] == "text":
        return {}
    if form["type"] == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
