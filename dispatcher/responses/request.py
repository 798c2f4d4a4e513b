"""Reads the body of POST /v1/responses by the table of fields, and translates it to the body of a chat. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.fields.kinds import Reading, missing, read_fields
from dispatcher.fields.tables import RESPONSES_TABLE
from dispatcher.responses.errors import Places
from dispatcher.responses.items import Item, as_items, with_types
from dispatcher.responses.messages import messages_of

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
    chat["messages"] = messages_of(fields.get("instructions"), earlier, items, places)
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
