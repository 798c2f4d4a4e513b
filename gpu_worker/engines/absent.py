"""The engine of a worker that has none for a moment."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from gpu_worker.engines.interface import EngineError, EngineEvent, EngineFacts, EngineRequest, EngineStats


def restarted() -> EngineError:
    return EngineError("engine_restarted", "the engine was restarted while it worked on this request; send it again")


class AbsentEngine:
    """Stands in between two engines: it serves nothing."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        raise restarted()
        yield

    async def abort(self, request_id: str) -> None:
        """Do nothing: no request runs."""

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0.0, {})

    async def start(self) -> None:
        raise restarted()

    async def stop(self) -> None:
        """Do nothing."""
