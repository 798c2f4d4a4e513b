"""Turns normal answers (normal/answer.py) into engine events: of a chat, a completion or embeddings. Pure.

An answer is complete when each choice has a finish reason. A server that sends none has ended a choice if it says so
otherwise: by `[DONE]`, by the usage of the whole answer after the last piece, or by the end of a body of known
length. Any other end of the body is an error, and so is one within the arguments of a call.

An event between worker and gate has at most a million bytes of ASCII, so what a server sends at once may be split. An
embeddings request has one Token for each input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from gpu_worker.engines.interface import EngineEvent, Finished, Started, Token
from gpu_worker.engines.openai.normal.answer import AnswerPiece, Normal
from gpu_worker.engines.openai.normal.faults import error_of_fault, failed, fault_in_chunk
from gpu_worker.engines.openai.normal.usage import Counts, find_usage, is_count
from gpu_worker.engines.openai.normal.values import parse_json, refuse_constant
from gpu_worker.engines.openai.sse import Nonsense, ServerEvent

_CHARS_MAX = 50_000
"""Twelve bytes for each character, if all of them are emoji."""


def _parts_of(piece: Token) -> list[Token]:
    """Return the piece, or several if its text, or a text in its delta, is long. The first has all other fields."""
    delta = piece.delta
    if not is_long(piece):
        return [piece]
    rests: list[Token] = [Token(part, 0, piece.choice) for part in _pieces(piece.text)[1:]]
    first: dict[str, Any] = {}
    for name, value in (delta or {}).items():
        first[name], later = _split(name, value)
        rests += [Token("", 0, piece.choice, {name: each}) for each in later]
    return [replace(piece, text=piece.text[:_CHARS_MAX], delta=first or None), *rests]


def is_long(piece: Token) -> bool:
    """Return whether the piece may be too long for one event."""
    return len(piece.text) > _CHARS_MAX or (piece.delta is not None and any(map(_is_long, piece.delta.items())))


def _is_long(field: tuple[str, Any]) -> bool:
    name, value = field
    if isinstance(value, str):
        return len(value) > _CHARS_MAX
    return name == "tool_calls" and sum(len(_arguments(call)) for call in value) > _CHARS_MAX


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
    return [text[at : at + _CHARS_MAX] for at in range(0, len(text), _CHARS_MAX)] or [""]


def embedding_events(data: bytes, counts: Counts) -> Iterator[EngineEvent]:
    """Yield the events of the whole answer. Raises EngineError, or Nonsense if an embedding is missing or malformed."""
    answer = parse_json(data, refuse_constant)  # no number stands for one that an embedding lacks
    if not answer.get("data") and (fault := fault_in_chunk(answer)) is not None:
        raise error_of_fault(fault)
    found = _by_input(answer.get("data"), counts.choices)
    if (usage := find_usage(answer, [])) is not None:
        counts.report_input(usage)
    yield Started(counts.input_tokens)
    for index in range(counts.choices):
        yield Token("", 0, index, {"embedding": found[index]})
    yield Finished("stop", counts.input_tokens, 0)


def _by_input(items: Any, inputs: int) -> dict[int, Any]:
    if not isinstance(items, list) or len(items) != inputs or not all(isinstance(each, dict) for each in items):
        raise Nonsense(f"there is not one embedding for each of {inputs} inputs")
    indices = [each.get("index", position) for position, each in enumerate(items)]
    if not all(is_count(index, inputs - 1) for index in indices) or len(set(indices)) != inputs:
        raise Nonsense("the embeddings are not numbered as their inputs")
    found = {index: each.get("embedding") for index, each in zip(indices, items, strict=True)}
    if not all(map(_is_embedding, found.values())):
        raise Nonsense("an embedding is malformed")
    return found


def _is_embedding(value: Any) -> bool:
    """Return whether the value is a base64 text, or a list of finite numbers."""
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and isfinite(value))


@dataclass(eq=False)
class ArrivingAnswer:
    """One answer as it arrives.

    `feed` takes one event after the other; `end` ends the answer. Both raise EngineError, or Nonsense for what is no
    answer.
    """

    counts: Counts
    normal: Normal
    one_prompt: bool = True
    """False if `prompt` is a list of prompts: then a chunk's usage has the tokens of one of them."""
    cuts: bool = False
    """Whether to end each choice at `counts.output_max`: the server got no limit."""
    bytes_per_token: float = 4.0
    """For a choice that comes whole."""
    reasons: dict[int, str] = field(default_factory=dict)
    _cut: set[int] = field(default_factory=set)
    """The choices that were ended here."""
    _has_started: bool = False
    """Whether a token was sent. After it, no other count of the prompt is announced."""
    _has_end: bool = False
    """Whether the server has said that no piece follows."""

    @property
    def is_complete(self) -> bool:
        return len(self.reasons) == self.counts.choices

    @property
    def is_cut(self) -> bool:
        """Whether the answer is complete and the server may still generate."""
        return bool(self._cut) and self.is_complete

    def feed(self, event: ServerEvent) -> Iterator[EngineEvent]:
        """Yield the events of a chunk: new pieces, and Started again if the prompt's true count arrives before them."""
        if event.is_done:
            self._has_end = True
            return
        chunk = self.normal.read(event)
        before = self.counts.output_tokens
        pieces = [piece for each in chunk.pieces if (piece := self._token(each)) is not None]
        if any(map(is_long, pieces)):
            pieces = [part for piece in pieces for part in _parts_of(piece)]
        if chunk.usage is not None:
            yield from self._read_usage(chunk.usage, chunk.pieces)
        if self.cuts:
            self._end_full_choices()
        self._has_end = self._has_end and not pieces
        yield from self._tokens(pieces, before)

    def end(self, *, is_framed: bool = False) -> Iterator[EngineEvent]:
        """Yield the last pieces and the end. Raises EngineError if a choice has not ended. `is_framed`: HTTP shows that
        the body is whole."""
        for index in set(range(self.counts.choices)) - self.reasons.keys():
            if self.normal.has_begun(index) and (self._has_end or (is_framed and self.normal.has_whole_calls(index))):
                self.reasons[index] = self.normal.reason_at_end(index)
        if not self.is_complete:
            raise failed("its answer ended too early")
        held = [
            Token(each.text, 0, each.choice, each.delta) for each in self.normal.end() if each.choice not in self._cut
        ]
        yield from self._tokens(held, self.counts.output_tokens)
        yield self._final_event()

    def _final_event(self) -> Finished:
        reasons = tuple(self.reasons[index] for index in range(self.counts.choices))
        counts = self.counts
        several = reasons if len(reasons) > 1 else ()
        parts = (counts.cached_tokens, counts.reasoning_tokens)
        return Finished(reasons[0], counts.input_tokens, counts.output_tokens, several, *parts)

    def _read_usage(self, usage: dict[str, Any], pieces: list[AnswerPiece]) -> Iterator[EngineEvent]:
        if len(pieces) == 1:
            self.counts.report_choice(pieces[0].choice, usage)
        else:
            self.counts.report_total(usage)
            self._has_end = self._has_end or (not pieces and self._has_started)
        if (self.one_prompt or not pieces) and not (self.counts.is_exact and pieces):
            before = self.counts.input_tokens
            self.counts.report_input(usage)
            if self.counts.input_tokens != before and not self._has_started:
                yield Started(self.counts.input_tokens)
        self.counts.report_details(usage)

    def _token(self, piece: AnswerPiece) -> Token | None:
        """Return the new content of a choice, without its count; None if there is none. Note its finish reason."""
        if piece.choice in self._cut:
            return None
        if piece.has_content:
            self.counts.piece(piece.choice, self._tokens_of(piece))
        if piece.reason is not None:
            self.reasons.setdefault(piece.choice, piece.reason)
        if not (piece.text or piece.delta or piece.logprobs):
            return None
        return Token(piece.text, 0, piece.choice, piece.delta, piece.logprobs)

    def _tokens_of(self, piece: AnswerPiece) -> int:
        """Return about how many tokens a piece has: one, but a whole choice has those of its texts."""
        if not piece.is_whole:
            return 1
        delta = piece.delta or {}
        texts = [piece.text, *(each for each in delta.values() if isinstance(each, str))]
        texts += [call["function"]["arguments"] for call in delta.get("tool_calls", ())]
        return max(1, math.ceil(sum(len(each.encode()) for each in texts) / self.bytes_per_token))

    def _end_full_choices(self) -> None:
        full = {index for index in range(self.counts.choices) if self.counts.is_full(index)} - self.reasons.keys()
        self._cut |= full
        self.reasons.update(dict.fromkeys(full, "length"))

    def _tokens(self, pieces: list[Token], before: int) -> Iterator[Token]:
        """Yield the pieces with their counts; an empty piece if there are tokens without text yet."""
        count = max(before, self.counts.output_tokens)
        if not pieces and count > before and not self.is_complete:
            pieces = [Token("", 0)]
        for number, piece in enumerate(pieces, 1):
            self._has_started = True
            left = len(pieces) - number
            yield Token(piece.text, max(before, count - left), piece.choice, piece.delta, piece.logprobs)
