"""Decides which tool the modelled engine calls. Pure.

| tool_choice | the last message is the user's | the last message is another |
| --- | --- | --- |
| none, or no tools | text | text |
| auto | the first tool | text |
| required | the first tool | the first tool that is not called since the user's message, else the last |
| a function's name | this function | this function |

After a tool's result, `required` goes on to the next tool, so that an agent that must call a tool for its final answer
comes to this tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.engines.interface import EngineError

Function = Mapping[str, Any]


def tool_to_call(body: Mapping[str, Any]) -> Function | None:
    """Return the function to call: its `name` and `parameters`. None if the answer is text.

    Raises EngineError for a tool or a choice that is not understood.
    """
    mode, names = _choice(body.get("tool_choice") or "auto")
    tools = body.get("tools") or []
    if mode == "none" or (mode == "auto" and not tools):
        return None
    functions = [_function(tool) for tool in tools]
    allowed = [each for each in functions if names is None or each["name"] in names]
    if not allowed:
        raise _invalid("`tool_choice` names no function of `tools`")
    messages = body.get("messages") or []
    asked = bool(messages) and messages[-1].get("role") == "user"
    if mode == "auto" and not asked:
        return None
    if asked or len(allowed) == 1:
        return allowed[0]
    called = _called_functions(messages)
    return next((each for each in allowed if each["name"] not in called), allowed[-1])


def _choice(choice: Any) -> tuple[str, set[Any] | None]:
    """Return the mode, and the names of the allowed functions; None if all are allowed."""
    if choice in ("none", "auto", "required"):
        return str(choice), None
    try:
        if choice["type"] == "function":
            return "required", {choice["function"]["name"]}
        if choice["type"] == "allowed_tools":
            allowed = choice["allowed_tools"]
            return str(allowed["mode"]), {tool["function"]["name"] for tool in allowed["tools"]}
    except (KeyError, TypeError):
        pass
    raise _invalid("`tool_choice` is none, auto, required, or the name of a function")


def _function(tool: Any) -> Function:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _invalid("this engine calls only tools of the type function, which have a name")
    return function


def _called_functions(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of the functions that were called since the user's last message."""
    names: set[str] = set()
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        for call in message.get("tool_calls") or ():
            names.add(str((call.get("function") or {}).get("name")))
    return names


def _invalid(message: str) -> EngineError:
    return EngineError("invalid_request", message)
