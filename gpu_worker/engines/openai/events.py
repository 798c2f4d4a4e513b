"""Turns the chunks of a chat or a completion into engine events. Pure.

An answer is complete when each choice has a finish reason. A `[DONE]` or the end of the body before that is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from gpu_worker.engines.interface import EngineEvent, Finished, Started, Token
from gpu_worker.engines.openai.counts import Counts, is_count
from gpu_worker.engines.openai.errors import error_of_chunk, failed
from gpu_worker.engines.openai.options import accept_choice
from gpu_worker.engines.openai.sse import Nonsense

REASONS: Mapping[str, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "function_call",
    "content_filter": "content_filter",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "repetition": "stop",
}
"""OpenAI's finish reasons, and those of TGI and vLLM that mean "stop". After any other one, the answer is not whole."""
DEPTH_MAX = 16


@dataclass(eq=False)
class Answer:
    """One answer as it arrives. `check_choice`: see ServerOptions.

    `feed` takes one chunk after the other; `finished` ends the answer. Both raise EngineError, or Nonsense for what is
    no answer.
    """

    counts: Counts
    one_prompt: bool = True
    """False if `prompt` is a list of prompts: then a chunk's usage has the tokens of one of them."""
    cuts: bool = False
    """Whether to end each choice at `counts.output_max`: the server got no limit."""
    check_choice: Any = accept_choice
    reasons: dict[int, str] = field(default_factory=dict)
    _cut: set[int] = field(default_factory=set)
    """The choices that were ended here."""
    _has_started: bool = False
    """Whether a token was sent. After it, no other count of the prompt is announced."""

    @property
    def is_complete(self) -> bool:
        return len(self.reasons) == self.counts.choices

    @property
    def is_cut(self) -> bool:
        """Whether the answer is complete and the server may still generate."""
        return bool(self._cut) and self.is_complete

    def feed(self, data: bytes) -> Iterator[EngineEvent]:
        """Yield the events of a chunk: new pieces, and Started again if the prompt's true count arrives before them."""
        chunk = parse_object(data)
        if chunk.get("error"):
            raise error_of_chunk(chunk)
        choices, usage = chunk.get("choices"), chunk.get("usage")
        if not isinstance(choices, list):
            choices = []
        before = self.counts.output_tokens
        pieces = [piece for each in choices if (piece := self._piece(each)) is not None]
        if isinstance(usage, dict):
            yield from self._read_usage(usage, choices)
        if self.cuts:
            self._end_full_choices()
        yield from self._tokens(pieces, before)

    def finished(self) -> Finished:
        """Return the end. Raises EngineError if a choice has not ended."""
        if not self.is_complete:
            raise failed("its answer ended too early")
        reasons = tuple(self.reasons[index] for index in range(self.counts.choices))
        counts = self.counts
        several = reasons if len(reasons) > 1 else ()
        return Finished(reasons[0], counts.input_tokens, counts.output_tokens, several)

    def _read_usage(self, usage: dict[str, Any], choices: list[Any]) -> Iterator[EngineEvent]:
        if len(choices) == 1:
            self.counts.report_choice(_index(choices[0], self.counts.choices), usage)
        else:
            self.counts.report_total(usage)
        if (self.one_prompt or not choices) and not (self.counts.is_exact and choices):
            before = self.counts.input_tokens
            self.counts.report_input(usage)
            if self.counts.input_tokens != before and not self._has_started:
                yield Started(self.counts.input_tokens)

    def _piece(self, choice: Any) -> Token | None:
        """Return the new content of a choice, without its count; None if there is none. Note its finish reason."""
        index = _index(choice, self.counts.choices)
        self.check_choice(choice)
        if index in self._cut:
            return None
        delta = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        if not isinstance(delta, dict):
            raise Nonsense("a delta is not an object")
        text = delta.get("content") or ""
        if not isinstance(text, str):
            raise Nonsense("a text is not a string")
        rest = {name: value for name, value in delta.items() if name not in ("role", "content") and _has_content(value)}
        logprobs = choice.get("logprobs")
        _check_json([rest, logprobs], DEPTH_MAX)
        if text or rest:
            self.counts.piece(index)
        self._note_reason(index, choice.get("finish_reason"))
        if not (text or rest or logprobs):
            return None
        return Token(text, 0, index, rest or None, logprobs if isinstance(logprobs, dict) else None)

    def _note_reason(self, index: int, reason: Any) -> None:
        if reason is None or reason == "":
            return
        if not isinstance(reason, str) or reason not in REASONS:
            raise failed("it gave up the request")
        self.reasons.setdefault(index, REASONS[reason])

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


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`. Raises Nonsense. Lone surrogates, which cannot be encoded, are replaced."""
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
        if b"\\ud" in data or b"\\uD" in data:
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise Nonsense("an event is not JSON") from None
    if not isinstance(value, dict):
        raise Nonsense("an event is not a JSON object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _index(choice: Any, choices: int) -> int:
    """Return the number of a choice. Raises Nonsense if there is none, or it is not one of the answer's."""
    index = choice.get("index", 0) if isinstance(choice, dict) else None
    if not is_count(index, choices - 1):
        raise Nonsense("a choice has a wrong index")
    return index


def _has_content(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def _check_json(value: Any, depth: int) -> None:
    """Raises Nonsense for nesting that is too deep to pass on, and for numbers that JSON does not have."""
    if isinstance(value, float) and not isfinite(value):
        raise Nonsense("a number is not finite")
    if isinstance(value, dict | list):
        if not depth:
            raise Nonsense("an event is nested too deeply")
        for each in value.values() if isinstance(value, dict) else value:
            _check_json(each, depth - 1)
