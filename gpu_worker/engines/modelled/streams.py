"""A request in the modelled engine: its choices or inputs, each a sequence in the batch, and its events.

The log probabilities of its tokens are placeholders: the generated token has the probability 1/2, the next alternative
1/4, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.generation import Generation, StopMatcher, chat_form, completion_form
from gpu_worker.engines.interface import EventQueue, Finished, Token, WorkOrder
from gpu_worker.engines.modelled.answers import BYTES_PER_TOKEN, WORDS, ModelledAnswer
from gpu_worker.engines.modelled.paged.kv_budget import PagedSequence


@dataclass(eq=False)
class Choice:
    """One answer of a request, or one input (`content`) of an embeddings request. `chars`: characters of its tokens so
    far."""

    number: int
    input_tokens: int
    answer: ModelledAnswer
    stops: StopMatcher
    content: bytes = b""
    sequence: PagedSequence | None = None
    reason: str = ""
    tokens: int = 0
    """Tokens that were sent."""
    chars: int = 0


@dataclass(eq=False)
class ModelledStream:
    """`input_tokens`: what the request is charged for."""

    request: WorkOrder
    input_tokens: int
    choices: list[Choice]
    events: EventQueue = field(default_factory=EventQueue)

    @property
    def output_tokens(self) -> int:
        """The tokens of all choices so far."""
        return sum(choice.tokens for choice in self.choices)

    @property
    def ended(self) -> bool:
        return all(choice.reason for choice in self.choices)

    def finished(self, reason: str = "") -> Finished:
        """Return the last event. `reason`: of choices that have not ended by themselves."""
        reasons = tuple(choice.reason or reason for choice in self.choices)
        many = reasons if self.request.choices > 1 else ()
        return Finished(reason or reasons[0], self.input_tokens, self.output_tokens, many)

    def token(self, choice: Choice) -> Token:
        """Return the event of the choice's newest token. Sets the choice's reason if it is the last one."""
        number = choice.tokens
        choice.tokens += 1
        piece = choice.answer.piece(number)
        is_stoppable = choice.tokens > (self.request.body.get("min_tokens") or 0)
        text = choice.stops.feed(piece.text) if is_stoppable else piece.text
        if choice.stops.stopped:
            choice.reason = "stop"
        elif choice.answer.ends_with(number):
            choice.reason = choice.answer.reason
        elif choice.tokens >= self.request.max_tokens:
            choice.reason = "length"
        if choice.reason and not choice.stops.stopped:
            text += choice.stops.flush()
        logprobs = self._logprobs(piece.text, choice.chars) if piece.text else None
        choice.chars += len(piece.text)
        return Token(text, self.output_tokens, choice.number, piece.delta, logprobs)

    def _logprobs(self, text: str, offset: int) -> dict[str, Any] | None:
        """Return placeholder log probabilities of a token, if the request has the field."""
        wanted = self.request.body.get("logprobs")
        if wanted is None or wanted is False:
            return None
        if self.request.endpoint is Endpoint.CHAT:
            return chat_form(text, _logprob(), _ranked(text, int(self.request.body.get("top_logprobs") or 0)))
        return completion_form(text, _logprob(), _ranked(text, int(wanted)), offset)


def input_tokens_of(text: bytes) -> int:
    """Return the number of tokens of an input."""
    return max(1, math.ceil(len(text) / BYTES_PER_TOKEN))


def prompt_of(generation: Generation) -> str:
    """Return the text that a model would read: the messages, and before them the tools."""
    if generation.prompt is not None:
        return generation.prompt
    tools = [f"tool: {tool}" for tool in generation.body.get("tools") or ()]
    turns = [
        "".join([f"{each['role']}: {each['content']}", *(str(call) for call in each.get("tool_calls") or ())])
        for each in generation.messages or ()
    ]
    return "\n".join([*tools, *turns, "assistant:"])


def _ranked(text: str, count: int) -> list[tuple[str, float]]:
    """Return `count` tokens with their log probabilities, the generated one first."""
    others = (f" {word}" for word in WORDS)
    return [(each, _logprob(rank)) for rank, each in enumerate(list(dict.fromkeys((text, *others)))[:count])]


def _logprob(rank: int = 0) -> float:
    return -(rank + 1) * math.log(2)
