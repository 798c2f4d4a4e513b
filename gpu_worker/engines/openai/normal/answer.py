"""Normalises one answer, chunk by chunk or whole: OpenAI's form comes out, whatever server it came from (kinds.py).

What is guessed or left out is counted, and logged once for each kind (Oddities).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatcher.fields.chat_objects import ASSISTANT
from gpu_worker.engines.openai.normal.faults import (
    Fault,
    error_of_fault,
    failed,
    fault_in_chunk,
    fault_in_text,
    fault_of,
)
from gpu_worker.engines.openai.normal.kinds import FAILURES, LENGTH_WORDS, REASONS, UNFINISHED, word
from gpu_worker.engines.openai.normal.tool_calls import ToolCalls
from gpu_worker.engines.openai.normal.usage import find_usage
from gpu_worker.engines.openai.normal.values import (
    REPLACEMENT,
    Halves,
    TooDeep,
    clean,
    clean_logprobs,
    parse_json,
    read_content,
)
from gpu_worker.engines.openai.sse import Nonsense, ServerEvent

logger = logging.getLogger("headgate.engine")

KINDS_MAX = 100
"""A server can send any number of unknown words; more kinds are counted as one."""
_WORD_CHARS_MAX = 40


class Oddities:
    """Counts the oddities of one server. `counts`: their numbers by what was done and the server's own word for it."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, done: str, word: str) -> None:
        """Count that the layer did `done` because of the server's `word`. Log it the first time."""
        shown = word[:_WORD_CHARS_MAX]
        kind = (done, shown)
        if kind not in self.counts and len(self.counts) >= KINDS_MAX:
            kind = (done, "…")
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            logger.warning("%s: %r (logged once)", done, kind[1])


_KNOWN = frozenset(ASSISTANT.fields) - {"function_call", "audio", "tool_call_id", "name"}
"""The fields of a message that a request may have in the next turn."""
_OWN = frozenset({"role", "content", "tool_calls", "function_call"})
_THEIRS = "provider_specific_fields"
_CONTENT = "content"


@dataclass(slots=True)
class AnswerPiece:
    """What is new of one choice. `has_content`: whether the server sent any, though it may wait for its other half.
    `is_whole`: the server sent the whole choice at once."""

    choice: int
    text: str = ""
    delta: dict[str, Any] | None = None
    logprobs: dict[str, Any] | None = None
    reason: str | None = None
    has_content: bool = False
    is_whole: bool = False


@dataclass(slots=True)
class Chunk:
    """One event. `usage` has OpenAI's names."""

    pieces: list[AnswerPiece]
    usage: dict[str, Any] | None = None


@dataclass(slots=True)
class _Choice:
    """The texts and calls of one choice that later pieces continue."""

    calls: ToolCalls
    halves: Halves = field(default_factory=Halves)
    reason: str | None = None
    has_content: bool = False


@dataclass(eq=False)
class Normal:
    """One answer. `choices`: their number. `name`: for the ids of calls. `offered`: the names of the request's tools.
    `check_choice`: see ServerOptions.

    All methods raise EngineError for an error of the server, and Nonsense for what is no answer.
    """

    choices: int
    name: str = ""
    offered: Collection[str] = ()
    check_choice: Callable[[Mapping[str, Any]], None] | None = None
    oddities: Oddities = field(default_factory=Oddities)
    _by_index: dict[int, _Choice] = field(default_factory=dict)

    def read(self, event: ServerEvent) -> Chunk:
        """Return the chunk in an event of the server."""
        try:
            chunk = parse_json(event.data)
        except Nonsense:
            if (fault := fault_in_text(event.data, event.name)) is not None:
                raise error_of_fault(fault) from None
            raise
        if (fault := fault_in_chunk(chunk, event.name)) is not None:
            raise error_of_fault(fault)
        given = chunk.get("choices")
        choices = [each for each in given if each is not None] if isinstance(given, list) else []
        return Chunk([self._piece(each) for each in choices], find_usage(chunk, choices))

    def end(self) -> Iterator[AnswerPiece]:
        """Yield what waits for a continuation that does not come. Call it once, when no event follows."""
        for index, choice in sorted(self._by_index.items()):
            text = ""
            delta: dict[str, Any] = {}
            for name in choice.halves.end():
                if name == _CONTENT:
                    text = REPLACEMENT
                else:
                    delta[name] = REPLACEMENT
            if calls := choice.calls.end(is_cut=choice.reason == "length"):
                delta["tool_calls"] = calls
            if text or delta:
                yield AnswerPiece(index, text, delta or None)

    def reason_at_end(self, index: int) -> str:
        """Return the finish reason of a choice that the server ended without one."""
        reason = self._usual_reason(self._of(index))
        self.oddities.note(f"an answer without a finish reason ended as `{reason}`", "")
        return reason

    def has_begun(self, index: int) -> bool:
        """Return whether the server sent any content of the choice."""
        return index in self._by_index and self._by_index[index].has_content

    def has_whole_calls(self, index: int) -> bool:
        """Return whether no call of the choice was cut off within its arguments."""
        return self._of(index).calls.are_whole

    def _piece(self, given: Any) -> AnswerPiece:
        index = self._index(given)
        if self.check_choice is not None:
            self.check_choice(given)
        if given.get("error"):
            raise error_of_fault(fault_of({"error": given["error"]}))
        choice = self._of(index)
        delta, is_whole = given.get("delta"), False
        if not delta:
            is_whole = bool(given.get("message"))
            delta = given.get("message") or {"content": given.get("text")}
        if not isinstance(delta, dict):
            raise Nonsense("a delta is not an object")
        text, has_text, rest = self._text(choice, delta)
        rest |= self._rest(choice, delta)
        has_calls = False
        for items in (delta.get("tool_calls"), delta.get("function_call")):
            if items:
                has_calls = True
                calls = choice.calls.take(items, whole=is_whole)
                if calls:
                    rest["tool_calls"] = [*rest.get("tool_calls", ()), *calls]
        reason = self._reason(choice, given)
        logprobs = self._logprobs(given.get("logprobs"))
        has_content = has_text or has_calls or bool(rest)
        choice.has_content = choice.has_content or has_content
        return AnswerPiece(index, text, rest or None, logprobs, reason, has_content, is_whole)

    def _text(self, choice: _Choice, delta: dict[str, Any]) -> tuple[str, bool, dict[str, Any]]:
        """Return the text to send, whether there was any, and the reasoning in the content's parts."""
        content = delta.get("content")
        if not content and not isinstance(content, int | float):
            return "", False, {}
        if not isinstance(content, str):
            content, reasoning = read_content(content)
            if reasoning:
                return choice.halves.join(_CONTENT, content), True, {"reasoning_content": reasoning}
        return choice.halves.join(_CONTENT, content), bool(content), {}

    def _rest(self, choice: _Choice, delta: dict[str, Any]) -> dict[str, Any]:
        """Return the other fields of a delta. Those that a request may not have are in `provider_specific_fields`."""
        rest: dict[str, Any] = {}
        theirs: dict[str, Any] = {}
        for name, value in delta.items():
            if name in _OWN or value is None or value in ("", [], {}):
                continue
            try:
                is_piece = isinstance(value, str) and name in _KNOWN
                value = choice.halves.join(name, value) if is_piece else clean(value)
            except TooDeep:
                self.oddities.note("a field was left out because it is nested too deeply", name)
                continue
            if name in _KNOWN:
                rest[name] = value
            else:
                self.oddities.note(f"an unknown field is passed on in `{_THEIRS}`", name)
                theirs[name] = value
        if theirs:
            given = rest.get(_THEIRS)
            rest[_THEIRS] = {**(given if isinstance(given, dict) else {}), **theirs}
        return rest

    def _logprobs(self, given: Any) -> dict[str, Any] | None:
        if not given or not isinstance(given, dict):
            return None
        try:
            found: dict[str, Any] = clean_logprobs(given)
        except TooDeep:
            self.oddities.note("a field was left out because it is nested too deeply", "logprobs")
            return None
        return found

    def _reason(self, choice: _Choice, given: Mapping[str, Any]) -> str | None:
        """Return the finish reason in OpenAI's words; None if the choice goes on. Raises EngineError."""
        reason = given.get("finish_reason")
        if reason is None or reason == "":
            details = given.get("finish_details")
            reason = details.get("type") if isinstance(details, dict) else None
        if isinstance(reason, dict):
            reason = reason.get("type") or reason.get("reason")
        if reason is None or word(str(reason)) in UNFINISHED or reason == "":
            return None
        choice.reason = self._known_reason(choice, str(reason))
        return choice.reason

    def _known_reason(self, choice: _Choice, given: str) -> str:
        name = word(given)
        known = REASONS.get(name)
        if known is not None:
            return known
        if name in FAILURES:
            raise error_of_fault(Fault(FAILURES[name])) if FAILURES[name] != 500 else failed("it gave up the request")
        reason = "length" if any(each in name for each in LENGTH_WORDS) else self._usual_reason(choice)
        self.oddities.note(f"an unknown finish reason counts as `{reason}`", given)
        return reason

    def _usual_reason(self, choice: _Choice) -> str:
        return "tool_calls" if len(choice.calls) else "stop"

    def _index(self, given: Any) -> int:
        """Return the number of a choice. Raises Nonsense if it is not one of the answer's."""
        index = given.get("index") if isinstance(given, dict) else -1
        if index is None:
            index = 0
        if isinstance(index, str) and index.isdecimal():
            index = int(index[:9])
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < self.choices:
            raise Nonsense("a choice has a wrong index")
        return index

    def _of(self, index: int) -> _Choice:
        found = self._by_index.get(index)
        if found is None:
            prefix = f"{self.name}_{index}" if index else self.name
            found = self._by_index[index] = _Choice(ToolCalls(prefix, self.offered))
        return found
