"""Values that servers send: JSON that JSON does not have (NaN, infinite numbers, bytes that are no UTF-8), halves of
surrogate pairs, characters that arrive in two halves, and content in parts. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from math import isfinite, isnan
from typing import Any, NamedTuple

from gpu_worker.engines.openai.normal.kinds import REASONING_PARTS, TEXT_PARTS
from gpu_worker.engines.openai.sse import BOM, Nonsense

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


_DEPTH_MAX = 32
"""Levels of a field that are passed on. A request may have 64, and the answer's message is four levels down in it."""
_UNLIKELY = -9999.0
"""OpenAI's value of a log probability that is too small for a number."""


class TooDeep(Nonsense):
    """A value has more levels than are passed on."""

    def __init__(self) -> None:
        super().__init__(f"a value has more than {_DEPTH_MAX} levels")


def parse_json(data: bytes, constant: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """Return the JSON object in `data`, or the only one in a list. Raises Nonsense. `constant`: makes the value of NaN,
    Infinity and -Infinity."""
    try:
        text = _decode(data)
        value = _DECODER.decode(text) if constant is None else json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError):
        raise Nonsense("an event is not JSON") from None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        raise Nonsense("an event is not a JSON object")
    return value


def clean(value: Any, depth: int = _DEPTH_MAX) -> Any:
    """Return the value with finite numbers and whole characters. Raises TooDeep."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, float):
        return value if isfinite(value) else _finite(value)
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise TooDeep
    if isinstance(value, list):
        return [clean(each, depth - 1) for each in value]
    return {without_surrogates(name): clean(each, depth - 1) for name, each in value.items()}


def clean_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields as `clean` does, without those that are nested too deeply."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        with suppress(TooDeep):
            found[without_surrogates(name)] = clean(value)
    return found


def clean_logprobs(value: Any, depth: int = _DEPTH_MAX) -> Any:
    """Return log probabilities as `clean` does, with a number wherever a `logprob` is null: clients need one."""
    if isinstance(value, list):
        return [clean_logprobs(each, depth - 1) for each in value] if depth else clean(value, 0)
    if not isinstance(value, dict):
        return clean(value, depth)
    found = {name: clean_logprobs(each, depth - 1) if depth else clean(each, 0) for name, each in value.items()}
    if "logprob" in found and found["logprob"] is None:
        found["logprob"] = _UNLIKELY
    return found


def refuse_constant(name: str) -> Any:
    """Refuse what JSON does not have, where no other number could stand for it."""
    raise ValueError(f"{name} is not JSON")


def _decode(data: bytes) -> str:
    data = data.removeprefix(BOM)
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    try:
        return data.decode("utf-8", "surrogatepass")  # some servers write each half of a pair as three bytes
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _finite_constant(name: str) -> float | None:
    return _UNLIKELY if name == "-Infinity" else None


_DECODER = json.JSONDecoder(parse_constant=_finite_constant)
"""Made once, because making it takes as long as reading a chunk."""


def _finite(value: float) -> float | None:
    return None if isnan(value) or value > 0 else _UNLIKELY
