"""Turns the normal chunks of a chat or a completion (normal/answer.py) into engine events. Pure.

An answer is complete when each choice has a finish reason. A server that sends none has ended a choice if it says so
otherwise: by `[DONE]`, by the usage of the whole answer after the last piece, or by the end of a body of known
length
knows. Any other end of the body is an error, and so is one within the arguments of a call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpu_worker.engines.interface import EngineEvent, Finished, Started, Token
from gpu_worker.engines.openai.counts import Counts
from gpu_worker.engines.openai.errors import failed
from gpu_worker.engines.openai.normal.answer import AnswerPiece, Normal
from gpu_worker.engines.openai.normal.long_pieces import is_long, parts_of
from gpu_worker.engines.openai.sse import ServerEvent


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
            pieces = [part for piece in pieces for part in parts_of(piece)]
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
