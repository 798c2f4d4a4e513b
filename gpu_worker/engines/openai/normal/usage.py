"""The tokens of one answer: those that the server reports, if they can be true, and else a count of its pieces. Pure.

A usage is read under OpenAI's names and as whole numbers, whatever the server calls them. A piece is a chunk with new
content. Servers send a chunk for each token or for a few tokens, so a choice has at least about as many tokens as
pieces; a tool parser adds a few pieces at the end.

A report is used if it is a whole number, is at most the limit, does not fall, is not zero beside pieces, and is at most
SLACK below the pieces. Any other report is ignored, and each piece counts as one token, up to the limit; a choice that
comes whole, without a report, counts by its bytes. So a server that reports too few tokens makes no answer cheaper, no
answer with content is free, and a tenant never pays for more tokens than its request allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from gpu_worker.engines.openai.normal.kinds import (
    CACHED_NAMES,
    INPUT_DETAILS,
    INPUT_NAMES,
    OUTPUT_DETAILS,
    OUTPUT_NAMES,
    REASONING_NAMES,
)
from gpu_worker.engines.openai.sse import Nonsense


def find_usage(chunk: Mapping[str, Any], choices: list[Any]) -> dict[str, Any] | None:
    """Return the usage of a chunk: beside the choices, in `x_groq`, or in the only choice. Other fields stay."""
    usage = chunk.get("usage")
    if isinstance(usage, dict) and type(usage.get("prompt_tokens")) is type(usage.get("completion_tokens")) is int:
        return usage
    inner = chunk.get("x_groq")
    only = choices[0] if len(choices) == 1 else None
    for place in (chunk, inner, only):
        if isinstance(place, dict) and isinstance(usage := place.get("usage"), dict):
            return _normal(usage)
    return None


def _find_cached(usage: Mapping[str, Any]) -> Any:
    """Return the input tokens that the server found in its cache, as it reports them; None if it reports none."""
    return _detail(usage, INPUT_DETAILS, CACHED_NAMES)


def _find_reasoning(usage: Mapping[str, Any]) -> Any:
    """Return the output tokens that are reasoning, as the server reports them; None if it reports none."""
    return _detail(usage, OUTPUT_DETAILS, REASONING_NAMES)


def _detail(usage: Mapping[str, Any], places: tuple[str, ...], names: tuple[str, ...]) -> Any:
    inner = (usage[place] for place in places if isinstance(usage.get(place), dict))
    return next((found for each in (*inner, usage) if (found := _first(each, names)) is not None), None)


def _normal(usage: dict[str, Any]) -> dict[str, Any]:
    prompt, output = _first(usage, INPUT_NAMES), _first(usage, OUTPUT_NAMES)
    total = _whole(usage.get("total_tokens"))
    if output is None and type(total) is int and type(prompt) is int:
        output = total - prompt
    return {**usage, "prompt_tokens": prompt, "completion_tokens": output}


def _first(usage: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((_whole(usage[name]) for name in names if usage.get(name) is not None), None)


def _whole(value: Any) -> Any:
    """Return 7.0 as 7, and any other value as it is: Counts ignores what is no count."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


SLACK = 16
"""Pieces of one choice without a token of their own."""
_PIECES_PER_TOKEN = 8
"""A server may send a token in parts, such as one character in each chunk."""


@dataclass(slots=True)
class _ChoiceCount:
    """`reported`: tokens by the last report that was used. `since`: pieces since that report."""

    pieces: int = 0
    reported: int = 0
    since: int = 0
    underreported: bool = False

    @property
    def tokens(self) -> int:
        counted = self.reported + self.since
        return max(counted, self.pieces) if self.underreported else counted


@dataclass(slots=True)
class Counts:
    """`output_max`: the most output tokens of one choice. `choices`: their number. `context_tokens`: no prompt is
    longer. `input_tokens`: an estimate, until the server reports the true count."""

    output_max: int
    choices: int
    context_tokens: int
    input_tokens: int
    is_exact: bool = False
    """Whether the server has reported the tokens of the prompt."""
    cached_tokens: int = 0
    """The tokens of the prompt that the server found in its cache."""
    reasoning_tokens: int = 0
    """The output tokens that are reasoning."""
    ignored: int = 0
    """Reports that could not be true."""
    _by_choice: dict[int, _ChoiceCount] = field(default_factory=dict)
    _total: int | None = None

    @property
    def output_tokens(self) -> int:
        """The tokens of all choices so far."""
        if self._total is not None:
            return self._total
        return sum(min(each.tokens, self.output_max) for each in self._by_choice.values())

    def is_full(self, choice: int) -> bool:
        """Return whether the choice has all its tokens."""
        return self._of(choice).tokens >= self.output_max

    def piece(self, choice: int, tokens: int = 1) -> None:
        """Count a chunk with content of about `tokens` tokens. Raises Nonsense if there are more chunks than a server
        makes of `output_max` tokens."""
        counted = self._of(choice)
        counted.pieces += 1
        counted.since += tokens
        if self._total is not None:  # the report came before the end
            self._total = min(self._total + tokens, self.output_max * self.choices)
        if counted.pieces > _PIECES_PER_TOKEN * self.output_max + SLACK:
            raise Nonsense("the answer does not end at max_tokens")

    def report_choice(self, choice: int, usage: dict[str, Any]) -> None:
        """Note the usage in a chunk: the tokens of this choice so far, not those of all choices (as vLLM reports)."""
        counted, tokens = self._of(choice), usage.get("completion_tokens")
        if not is_count(tokens, self.output_max) or tokens < counted.reported:
            self.ignored += 1
        elif tokens < counted.pieces - SLACK or (not tokens and counted.pieces):
            self.ignored += 1
            counted.underreported = True
        else:
            counted.reported, counted.since = tokens, 0

    def report_total(self, usage: dict[str, Any]) -> None:
        """Note the usage of the whole answer, which comes last."""
        tokens, pieces = usage.get("completion_tokens"), sum(each.pieces for each in self._by_choice.values())
        fewest = max(min(pieces, 1), pieces - SLACK * self.choices)
        if is_count(tokens, self.output_max * self.choices) and tokens >= fewest:
            self._total = tokens
            return
        self.ignored += 1
        for each in self._by_choice.values():
            each.underreported = True

    def report_input(self, usage: dict[str, Any]) -> None:
        """Note the tokens of all prompts of the request."""
        tokens = usage.get("prompt_tokens")
        if is_count(tokens, self.context_tokens) and tokens > 0:
            self.input_tokens, self.is_exact = tokens, True
        else:
            self.ignored += 1

    def report_details(self, usage: dict[str, Any]) -> None:
        """Note the parts of the tokens. A part that is larger than its whole is ignored."""
        cached, reasoning = _find_cached(usage), _find_reasoning(usage)
        if is_count(cached, self.input_tokens) and self.is_exact:
            self.cached_tokens = cached
        if is_count(reasoning, self.output_tokens):
            self.reasoning_tokens = reasoning

    def _of(self, choice: int) -> _ChoiceCount:
        return self._by_choice.setdefault(choice, _ChoiceCount())


def is_count(value: Any, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
