"""A request in the transformers engine: its choices, each a sequence in the batch, and what becomes of their tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpu_worker.engines.generation import Detokenizer, ParsedText, StopMatcher, ToolCallParser
from gpu_worker.engines.interface import (
    EventQueue,
    Finished,
    Token,
    WorkOrder,
    queue_request,
)
from gpu_worker.policies.fairness.interface import QueueRequest


@dataclass(eq=False, slots=True)
class GeneratedAnswer:
    """One request, from `generate` to its last event. `input_tokens`: of the prompt, which every choice has."""

    request: WorkOrder
    input_tokens: int
    events: EventQueue = field(default_factory=EventQueue)
    sequences: list[Sequence] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        """The tokens of all choices so far."""
        return sum(sequence.output_tokens for sequence in self.sequences)

    @property
    def ended(self) -> bool:
        return all(sequence.reason for sequence in self.sequences)

    def finished(self) -> Finished:
        """Return the last event. A request with an aborted choice is aborted."""
        reasons = tuple(sequence.reason for sequence in self.sequences)
        reason = "aborted" if "aborted" in reasons else reasons[0]
        return Finished(reason, self.input_tokens, self.output_tokens, reasons if len(reasons) > 1 else ())


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice. `tools`: finds tool calls in the text; None for plain text. `reason`: of its end, empty before."""

    answer: GeneratedAnswer
    sequence_id: str
    choice: int
    detokenizer: Detokenizer
    stops: StopMatcher
    tools: ToolCallParser | None = None
    min_tokens: int = 0
    """Stop strings are not looked for in the text of the first `min_tokens` tokens."""
    output_tokens: int = 0
    chars: int = 0
    """Characters of all tokens so far, each by itself."""
    ending: str = "aborted"
    """The reason to report if the sequence is removed from the batch before its end."""
    reason: str = ""

    @property
    def request(self) -> WorkOrder:
        return self.answer.request

    @property
    def input_tokens(self) -> int:
        return self.answer.input_tokens

    def queued(self, now_s: float) -> QueueRequest:
        return queue_request(self.request, self.input_tokens, now_s, self.sequence_id)

    def take(self, token: int, *, last: bool, ends_text: bool, logprobs: dict[str, Any] | None) -> Token:
        """Return the event of a new token. `ends_text`: the token has no text. `last`: no token follows."""
        self.output_tokens += 1
        text = "" if ends_text else self.detokenizer.feed(token)
        if last:
            text += self.detokenizer.flush()
        if self.output_tokens > self.min_tokens:
            text = self.stops.feed(text)
        if last and not self.stops.stopped:
            text += self.stops.flush()
        parsed = self._parse_text(text, last=last or self.stops.stopped)
        delta = {"tool_calls": list(parsed.calls)} if parsed.calls else None
        return Token(parsed.text, self.answer.output_tokens, self.choice, delta, logprobs)

    def stopped(self) -> str:
        """Return the reason of an end that the model or a stop string made."""
        return "tool_calls" if self.tools is not None and self.tools.calls else "stop"

    def _parse_text(self, text: str, *, last: bool) -> ParsedText:
        if self.tools is None:
            return ParsedText(text)
        found = self.tools.feed(text)
        return ParsedText(found.text + self.tools.flush().text, found.calls) if last else found
