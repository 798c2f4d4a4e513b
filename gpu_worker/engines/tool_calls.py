"""Finds tool calls in a model's text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Pure.

Hermes, Qwen and models trained like them write this form; their chat templates ask for it. A call is sent whole once
its end is there. Text between the marks that is not a call is sent as text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ParsedText:
    """New text, and new calls as OpenAI's delta has them."""

    text: str = ""
    calls: tuple[dict[str, Any], ...] = ()


class ToolCallParser:
    """`calls`: the number of calls so far."""

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self._held = ""
        self._inside = False
        self.calls = 0

    def feed(self, text: str) -> ParsedText:
        """Take new text. Text that may be part of a call is held back."""
        self._held += text
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        while True:
            mark = CLOSE if self._inside else OPEN
            before, found, after = self._held.partition(mark)
            if not found:
                break
            self._held = after
            if not self._inside:
                texts.append(self._visible(before))
            elif (call := self._call(before)) is not None:
                calls.append(call)
            else:
                texts.append(OPEN + before + CLOSE)
            self._inside = not self._inside
        if not self._inside:
            keep = _possible_mark(self._held)
            texts.append(self._visible(self._held[: len(self._held) - keep]))
            self._held = self._held[len(self._held) - keep :]
        return ParsedText("".join(texts), tuple(calls))

    def flush(self) -> ParsedText:
        """Return what is held back; call it when no text follows."""
        held, self._held = (OPEN if self._inside else "") + self._held, ""
        self._inside = False
        return ParsedText(self._visible(held))

    def _visible(self, text: str) -> str:
        """Return the text without the white space between two calls."""
        return text if text.strip() or not self.calls else ""

    def _call(self, text: str) -> dict[str, Any] | None:
        try:
            written = json.loads(text)
            name, arguments = written["name"], written.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        index, self.calls = self.calls, self.calls + 1
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"index": index, "id": f"call_{self._answer_id}_{index}", "type": "function", "function": function}


def _possible_mark(text: str) -> int:
    """Return the length of the longest suffix of the text that begins a mark."""
    return next((size for size in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:size])), 0)
