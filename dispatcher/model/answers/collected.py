"""Merges the pieces of an answer into its choices: for whole answers, and for answers that are kept. Pure.

A choice is `{"text", "reason"}`, with `delta` (the other fields of OpenAI's message: tool calls, reasoning …) and
`logprobs` if there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent

Choices = Sequence[Mapping[str, Any]]
"""The choices of a whole answer."""
_WHOLE = frozenset({"id", "type", "role", "name", "index", "format", "signature"})
"""Texts that an engine sends whole and may repeat. All other texts come in pieces."""


@dataclass(slots=True)
class _Pieces:
    texts: list[str] = field(default_factory=list)
    deltas: list[Mapping[str, Any]] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Collected:
    """The choices and the counts that an execution has delivered so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    reason: str = "stop"
    reasons: tuple[str, ...] = ()
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    _pieces: dict[int, _Pieces] = field(default_factory=dict)

    def note(self, event: WorkEvent) -> None:
        if isinstance(event, Started):
            self.input_tokens = event.input_tokens
        elif isinstance(event, Token):
            self.output_tokens = event.output_tokens
            self._add(event)
        elif isinstance(event, Finished):
            self.input_tokens, self.output_tokens = event.input_tokens, event.output_tokens
            self.reason, self.reasons = event.reason, event.reasons
            self.cached_tokens, self.reasoning_tokens = event.cached_tokens, event.reasoning_tokens

    @property
    def finished(self) -> Finished:
        """The event that ends the answer."""
        counts = (self.input_tokens, self.output_tokens)
        return Finished(self.reason, *counts, self.reasons, self.cached_tokens, self.reasoning_tokens)

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return "".join(self._pieces[0].texts) if 0 in self._pieces else ""

    @property
    def is_plain(self) -> bool:
        """Whether there is only text, of one choice."""
        return all(not index and not (each.deltas or each.logprobs) for index, each in self._pieces.items())

    def choices(self) -> list[dict[str, Any]]:
        """Return the choices in order. A choice without any token is empty."""
        count = max(1, len(self.reasons), *(index + 1 for index in self._pieces))
        return [self._choice(index) for index in range(count)]

    def _add(self, token: Token) -> None:
        pieces = self._pieces.setdefault(token.choice, _Pieces())
        if token.text:
            pieces.texts.append(token.text)
        if token.delta:
            pieces.deltas.append(token.delta)
        if token.logprobs:
            pieces.logprobs.append(token.logprobs)

    def _choice(self, index: int) -> dict[str, Any]:
        pieces = self._pieces.get(index, _Pieces())
        reason = self.reasons[index] if index < len(self.reasons) else self.reason
        choice: dict[str, Any] = {"text": "".join(pieces.texts), "reason": reason}
        if pieces.deltas:
            choice["delta"] = merged(pieces.deltas)
        if pieces.logprobs:
            choice["logprobs"] = merged(pieces.logprobs)
        return choice


def merged(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the object that a client gets if it puts the pieces together.

    Texts are joined, objects are merged field by field, and lists are joined. List items with the same `index` (tool
    calls) are merged.
    """
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {
        name: _join_values(name, [piece[name] for piece in pieces if piece.get(name) is not None]) for name in names
    }


def tokens_of(choices: Iterable[Mapping[str, Any]], output_tokens: int) -> list[Token]:
    """Return whole choices as events: one Token for each choice that is not empty."""
    return [
        Token(each["text"], output_tokens, index, each.get("delta"), each.get("logprobs"))
        for index, each in enumerate(choices)
        if each["text"] or each.get("delta") or each.get("logprobs")
    ]


def _join_values(name: str, values: list[Any]) -> Any:
    if not values:
        return None
    if all(isinstance(each, str) for each in values):
        return next(filter(None, values), "") if name in _WHOLE else "".join(values)
    if all(isinstance(each, Mapping) for each in values):
        return merged(values)
    if all(isinstance(each, list) for each in values):
        return _joined_items([item for each in values for item in each])
    return values[-1]


def _joined_items(items: list[Any]) -> list[Any]:
    if not all(isinstance(item, Mapping) and isinstance(item.get("index"), int) for item in items):
        return items
    by_index: dict[int, list[Mapping[str, Any]]] = {}
    for item in items:
        by_index.setdefault(item["index"], []).append(item)
    return [merged(by_index[index]) for index in sorted(by_index)]
