"""The models of a storm's workers: a swap takes a while, and may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from dispatcher.model.fleet import LoadableModel
from gpu_worker.engines.interface import EngineFacts
from gpu_worker.engines.model_swaps import SwapFailed
from tests.support.gate.storm.engine import CONTEXT_TOKENS, MODELS, StormEngine

SWAP_S = 0.3
DRAIN_S = 2.0
FAILS = 0.2
"""The part of the swaps that fail while engines fail."""


class StormSwaps:
    """gpu_worker.engines.model_swaps.ModelSwaps, as far as a worker's swapper needs it."""

    def __init__(self, engine: StormEngine, count: int, random: Random, service_per_s: float = 0.0) -> None:
        """`service_per_s`: the throughput of each model until it is measured; 0: unknown."""
        self.engine = engine
        self._models = MODELS[:count]
        self._random = random
        self._service_per_s = service_per_s

    def can_load(self, model: str) -> bool:
        return model in self._models

    def loadable(self, loaded: str, service_per_s: Callable[[str], float]) -> tuple[LoadableModel, ...]:
        return tuple(
            LoadableModel(
                model,
                0.0 if model == loaded else SWAP_S,
                CONTEXT_TOKENS,
                1.0,
                service_per_s(model) or self._service_per_s,
            )
            for model in self._models
        )

    async def load(self, model: str) -> None:
        await asyncio.sleep(SWAP_S)
        if self.engine.fails and self._random.random() < FAILS:
            raise SwapFailed("by the script")
        self.engine.facts = EngineFacts(model, CONTEXT_TOKENS, 1.0)
