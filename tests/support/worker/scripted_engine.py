"""A scripted engine: a token each `token_s`, until max_tokens or an abort. It keeps what was asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_worker.engines.generation import generation_of
from gpu_worker.engines.interface import (
    EngineEvent,
    EngineFacts,
    EngineStats,
    Finished,
    PromptTooLong,
    Started,
    Token,
    WorkOrder,
)
from gpu_worker.policies.fairness.accounting import TenantService

MODEL = "scripted"


def prompt_of(request: WorkOrder) -> str:
    """Return the text that the engine was given: the messages' contents, or the prompt."""
    generation = generation_of(request)
    return generation.prompt or "|".join(each["content"] for each in generation.messages or ())


@dataclass
class ScriptedEngine:
    token_s: float = 0.1
    facts: EngineFacts = field(default_factory=lambda: EngineFacts(MODEL, 1000, 1.0))
    running: dict[str, asyncio.Event] = field(default_factory=dict)
    requests: list[WorkOrder] = field(default_factory=list)
    served: float = 0.0
    waiting: int = 0

    @property
    def generated(self) -> int:
        """Tokens so far."""
        return round(self.served / 2)

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        prompt = prompt_of(request)
        if len(prompt) > self.facts.context_tokens:
            raise PromptTooLong("too long")
        self.requests.append(request)
        aborted = self.running[request.execution] = asyncio.Event()
        input_tokens, done = len(prompt), 0
        yield Started(input_tokens)
        while done < request.max_tokens and not aborted.is_set():
            await asyncio.sleep(self.token_s)
            done += 1
            self.served += 2
            yield Token("x", done)
        del self.running[request.execution]
        yield Finished("aborted" if aborted.is_set() else "length", input_tokens, done)

    async def abort(self, request_id: str) -> None:
        if request_id in self.running:
            self.running[request_id].set()

    def stats(self) -> EngineStats:
        return EngineStats(self.waiting, len(self.running), 0.5, {"a": TenantService(0, 0, self.served)})

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None


class FailingEngine(ScriptedEngine):
    """Ends every request with an error after `after` tokens."""

    def __init__(self, error: Exception, after: int) -> None:
        super().__init__()
        self.error = error
        self.after = after

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        async for event in super().generate(request):
            yield event
            if self.generated >= self.after:
                raise self.error


class ChangedEngine(ScriptedEngine):
    """Its events of one kind have other fields."""

    def __init__(self, kind: type[Token | Finished], **fields: Any) -> None:
        super().__init__()
        self.kind = kind
        self.fields = fields

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        async for event in super().generate(request):
            yield replace(event, **self.fields) if isinstance(event, self.kind) else event


class TokenizingEngine(ScriptedEngine):
    """Takes one second to tokenize each prompt."""

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        await asyncio.sleep(1)
        async for event in super().generate(request):
            yield event
