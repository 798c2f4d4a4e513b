"""What really happened, beside the log: executions in the engines, and what the callers got."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Execution:
    """One execution in an engine. `incarnation`: of the worker's process."""

    __slots__ = ("ended", "incarnation", "input_tokens", "name", "output_tokens", "reason", "worker")

    def __init__(self, name: str, worker: str, incarnation: int, input_tokens: int) -> None:
        self.name, self.worker, self.incarnation = name, worker, incarnation
        self.input_tokens, self.output_tokens = input_tokens, 0
        self.ended = False
        self.reason = ""

    def text(self) -> str:
        """Return what it generated so far."""
        return text_of(self.name, self.output_tokens)


def text_of(name: str, tokens: int) -> str:
    """Return the text of an execution: two executions differ in every token."""
    return "".join(token_of(name, number) for number in range(1, tokens + 1))


def token_of(name: str, number: int) -> str:
    return f"{name}:{number} "


class Answered(NamedTuple):
    """What one request got. `code`: "done", an error's code, "left" or "front died"."""

    caller: int
    front: str
    id: str
    key: str
    tenant: str
    code: str
    text: str
    input_tokens: int
    output_tokens: int
    """As the last event says; of an error the tokens that came."""
    streamed: bool
    """It read the events of the execution; else it waited for the answer of a durable call."""
    at: float
    began: float
    interaction: str


@dataclass
class Books:
    executions: dict[str, Execution] = field(default_factory=dict)
    """By the execution's name."""
    twice: list[str] = field(default_factory=list)
    """Executions that began again in one process. A worker's next process may begin what died with the last one."""
    streams: set[str] = field(default_factory=set)
    """Calls of which a caller gets each token at once."""
    refused: set[str] = field(default_factory=set)
    """Executions that an engine refused to begin."""
    answers: list[Answered] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    """The code with which the gate refused a call without a key, by id."""
    trace: list[str] = field(default_factory=list)
    """What happened, line by line: equal in each run of a seed."""

    def note(self, at: float, text: str) -> None:
        self.trace.append(f"{at - 1_000_000:9.4f}  {text}")
