"""Splits what a server sends at once: an event between worker and gate has at most a million bytes of ASCII. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpu_worker.engines.interface import Token

CHARS_MAX = 50_000
"""Twelve bytes for each character, if all of them are emoji."""


def parts_of(piece: Token) -> list[Token]:
    """Return the piece, or several if its text, or a text in its delta, is long. The first has all other fields."""
    delta = piece.delta
    if not is_long(piece):
        return [piece]
    rests: list[Token] = [Token(part, 0, piece.choice) for part in _pieces(piece.text)[1:]]
    first: dict[str, Any] = {}
    for name, value in (delta or {}).items():
        first[name], later = _split(name, value)
        rests += [Token("", 0, piece.choice, {name: each}) for each in later]
    return [replace(piece, text=piece.text[:CHARS_MAX], delta=first or None), *rests]


def is_long(piece: Token) -> bool:
    """Return whether the piece may be too long for one event."""
    return len(piece.text) > CHARS_MAX or (piece.delta is not None and any(map(_is_long, piece.delta.items())))


def _is_long(field: tuple[str, Any]) -> bool:
    name, value = field
    if isinstance(value, str):
        return len(value) > CHARS_MAX
    return name == "tool_calls" and sum(len(_arguments(call)) for call in value) > CHARS_MAX


def _split(name: str, value: Any) -> tuple[Any, list[Any]]:
    """Return the field of the first part, and those of the parts after it."""
    if isinstance(value, str):
        parts = _pieces(value)
        return parts[0], parts[1:]
    if name == "tool_calls":
        first, *later = [item for call in value for item in _calls(call)]
        return [first], [[each] for each in later]
    return value, []


def _calls(call: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    parts = _pieces(_arguments(call))
    if len(parts) == 1:
        yield call
        return
    yield {**call, "function": {**call["function"], "arguments": parts[0]}}
    for part in parts[1:]:
        yield {"index": call["index"], "function": {"arguments": part}}


def _arguments(call: Mapping[str, Any]) -> str:
    return str(call["function"]["arguments"])


def _pieces(text: str) -> list[str]:
    return [text[at : at + CHARS_MAX] for at in range(0, len(text), CHARS_MAX)] or [""]
