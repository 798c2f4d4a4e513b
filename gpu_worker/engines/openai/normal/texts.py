"""The text of an answer: content parts, and characters that arrive in two halves. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gpu_worker.engines.openai.normal.kinds import REASONING_PARTS, TEXT_PARTS
from gpu_worker.engines.openai.sse import Nonsense

REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Content(NamedTuple):
    text: str
    reasoning: str = ""


def read_content(content: Any) -> Content:
    """Return the text in a delta's content: a text, a part, or a list of parts. Raises Nonsense for anything else."""
    if isinstance(content, str):
        return Content(content)
    if content is None:
        return Content("")
    parts = content if isinstance(content, list) else [content]
    read = [_read_part(part) for part in parts]
    return Content("".join(each.text for each in read), "".join(each.reasoning for each in read))


def _read_part(part: Any) -> Content:
    if isinstance(part, str):
        return Content(part)
    if not isinstance(part, dict):
        raise Nonsense("a text is not a string")
    kind = part.get("type") or ""
    if kind in TEXT_PARTS and isinstance(text := part.get(TEXT_PARTS[kind]), str):
        return Content(text)
    if kind in REASONING_PARTS:
        inner = read_content(part.get(REASONING_PARTS[kind], part.get("text")))
        return Content("", inner.text + inner.reasoning)
    raise Nonsense("the content has a part that is no text")


class Halves:
    """Joins characters across the pieces of several texts, such as the content and the arguments of a call."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[Any, str] = {}

    def join(self, name: Any, text: str) -> str:
        """Return what of the text `name` can be sent now. The first half of a pair at its end waits for the second."""
        if self._held:
            text = self._held.pop(name, "") + text
        if text.isascii() or not _SURROGATE.search(text):
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self._held[name] = text[-1]
            text = text[:-1]
        return without_surrogates(text)

    def end(self) -> list[Any]:
        """Return the names of the texts that end with half a character, and forget the halves."""
        names = list(self._held)
        self._held.clear()
        return names


def without_surrogates(text: str) -> str:
    """Return the text with pairs joined and halves replaced."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
