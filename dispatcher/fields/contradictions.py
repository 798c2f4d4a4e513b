"""Fields that contradict each other: each is valid alone, and the request is not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dispatcher.fields.reading import invalid
from dispatcher.model.errors import InvalidRequest


def check(kept: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if two fields contradict each other. `kept` has no neutral values."""
    for error in (*_lengths(kept), *_tools(kept), *_logprobs(kept), *_formats(kept)):
        raise error


def without_idle_tools(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without those that change nothing because the request has no tools."""
    if "tools" in kept:
        return kept
    idle = {"parallel_tool_calls"} | ({"tool_choice"} if kept.get("tool_choice") in ("none", "auto") else set())
    return {name: value for name, value in kept.items() if name not in idle}


def _lengths(kept: Mapping[str, Any]) -> Iterator[InvalidRequest]:
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in kept]
    if len({kept[name] for name in names}) > 1:
        yield invalid(names[-1], "it differs from `max_tokens`; send one of them")
    if names and kept.get("min_tokens", 0) > kept[names[-1]]:
        yield invalid("min_tokens", f"it is above `{names[-1]}`")


def _tools(kept: Mapping[str, Any]) -> Iterator[InvalidRequest]:
    names = [tool["function"]["name"] for tool in kept.get("tools", ())]
    if len(set(names)) < len(names):
        yield invalid("tools", "two tools have the same name")
    choice = kept.get("tool_choice")
    if choice is None:
        return
    if not names:
        yield invalid("tool_choice", "it needs `tools`")
    elif isinstance(choice, dict) and choice["function"]["name"] not in names:
        yield invalid("tool_choice.function.name", "it is no name of a tool in `tools`")


def _logprobs(kept: Mapping[str, Any]) -> Iterator[InvalidRequest]:
    for name in ("top_logprobs", "logprob_token_ids"):
        if name in kept and "logprobs" not in kept:
            yield invalid(name, "it needs `logprobs`")


def _formats(kept: Mapping[str, Any]) -> Iterator[InvalidRequest]:
    if "response_format" in kept and "structured_outputs" in kept:
        yield invalid("structured_outputs", "`response_format` asks for another form; send one of them")
    forms = [name for name in _FORMS if name in kept.get("structured_outputs", ())]
    if len(forms) > 1:
        yield invalid("structured_outputs", f"`{forms[0]}` and `{forms[1]}` ask for two forms; send one of them")


_FORMS = ("json", "regex", "choice", "grammar", "json_object")
