"""The tools that the model of the transformers engine may call. Pure.

The model decides whether it calls one: this engine cannot force it, so it refuses `tool_choice` required and names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_worker.engines.interface import EngineError


def offered_tools(body: Mapping[str, Any], *, parses: bool) -> list[dict[str, Any]]:
    """Return the tools for the chat template, none for plain text. `parses`: the template knows tools.

    Raises EngineError for what this engine cannot do.
    """
    choice = body.get("tool_choice") or "auto"
    tools = body.get("tools") or []
    if not tools or choice == "none":
        return []
    if choice != "auto":
        raise EngineError("invalid_request", "this engine cannot force a call: `tool_choice` must be auto or none")
    if not parses:
        raise EngineError("invalid_request", "the chat template of this model knows no tools")
    return [*tools]
