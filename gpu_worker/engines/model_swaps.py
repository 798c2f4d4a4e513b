"""The models of one worker: one is loaded, the others are stopped, and a swap loads another.

Source: QLM (SoCC 2024), section 5: an instance swaps its model when the head of its queue needs another one. Here the
gate orders a swap, and the worker measures what it costs.

    swap    stop the loaded engine ──▶ start the other ──▶ canary: the tokens of a fixed prompt, as at its first load

Every model is loaded once when the worker starts, so that its facts, its canary's tokens and the seconds of a load are
known before the gate counts on it. If a swap fails, or its canary gives other tokens, the engine is started once more.
If this fails too, the former model is loaded again, and the model is not offered for a time that doubles with each
failure. An engine without a former model to return to ends the worker (supervised.py, `hopeless`).

An engine is stopped, not put to sleep: nothing of a model stays in the memory of GPU or host. Not here yet: vLLM's
sleep at level 1, which keeps the weights in host memory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from dispatcher.model.capabilities import Capability
from dispatcher.model.loadable import LoadableModel
from dispatcher.model.requests import Endpoint
from dispatcher.ports import Clock
from gpu_worker.engines.interface import Engine, EngineError, EngineFacts, EngineRequest, Token
from gpu_worker.engines.registry import EngineUnavailable
from gpu_worker.engines.supervised import SupervisedEngine

logger = logging.getLogger("headgate.engine")

MakeEngine = Callable[[], Engine]
COSTS_KEPT = 9
"""The seconds of a load are the median of so many last ones."""
REST_S = 60.0
REST_MAX_S = 3600.0
CANARY_TENANT = "headgate-canary"
CANARY_PROMPT = "The headgate is opened field by field, so that"
CANARY_TOKENS = 8


class SwapFailed(Exception):
    """The model could not be loaded. The former one is loaded again."""


@dataclass(eq=False)
class _Model:
    make: MakeEngine
    facts: EngineFacts
    canary: str
    """The text of its canary at its first load; empty if its endpoint is not completions."""
    costs_s: deque[float] = field(default_factory=lambda: deque(maxlen=COSTS_KEPT))
    failures: int = 0
    """Failed swaps in a row."""
    rests_until_s: float = 0.0


class ModelSwaps:
    """The models that `engine` can serve. Made by `prepared`."""

    def __init__(self, engine: SupervisedEngine, clock: Clock) -> None:
        self.engine = engine
        self._clock = clock
        self._models: dict[str, _Model] = {}
        self._canaries = count(1)

    @classmethod
    async def prepared(cls, engine: SupervisedEngine, others: list[MakeEngine], clock: Clock) -> ModelSwaps:
        """Load every model once, the engine's own at last. `engine` is started.

        Raises EngineUnavailable if two models have the same name, and what a start of an engine raises.
        """
        swaps, first = cls(engine, clock), engine.make
        for make in [*others, first] if others else []:
            begun_s = clock.monotonic()
            await engine.load(make)
            took_s, facts = clock.monotonic() - begun_s, engine.facts
            if facts.model in swaps._models:
                raise EngineUnavailable(f"two models of this worker have the name {facts.model!r}: give each its own")
            model = swaps._models[facts.model] = _Model(make, facts, await swaps._canary())
            model.costs_s.append(took_s)
        return swaps

    def loadable(self, loaded: str, service_per_s: Callable[[str], float]) -> tuple[LoadableModel, ...]:
        """Return the models for the gate, sorted by name, without those that rest after failures. Empty if the worker
        has one model only.

        `loaded`: the model to which the others are swapped. `service_per_s`: the measured capacity with a model, 0 if
        unknown.
        """
        now_s = self._clock.monotonic()
        return tuple(
            LoadableModel(
                name, 0.0 if name == loaded else median(model.costs_s), model.facts.context_tokens,
                model.facts.bytes_per_token, service_per_s(name), tuple(sorted(model.facts.capabilities)),
            )
            for name, model in sorted(self._models.items())
            if name == loaded or model.rests_until_s <= now_s
        )  # fmt: skip

    def can_load(self, name: str) -> bool:
        model = self._models.get(name)
        return model is not None and model.rests_until_s <= self._clock.monotonic()

    async def load(self, name: str) -> None:
        """Swap to the model. No request may run. Raises SwapFailed."""
        model, former = self._models[name], self._models[self.engine.facts.model]
        begun_s = self._clock.monotonic()
        try:
            await self._loaded(model)
        except Exception as error:
            self.engine.swaps.failed += 1
            model.failures += 1
            rest_s = min(REST_MAX_S, REST_S * 2 ** (model.failures - 1))
            model.rests_until_s = self._clock.monotonic() + rest_s
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            logger.error("the model %s cannot be loaded: %s; next try in %g s", name, reason, rest_s)
            await self._return_to(former)
            raise SwapFailed(name) from error
        model.failures = 0
        counts = self.engine.swaps
        counts.done += 1
        counts.last_s = self._clock.monotonic() - begun_s
        model.costs_s.append(counts.last_s)
        logger.info("the model %s is loaded after %.1f s", name, counts.last_s)

    async def _return_to(self, former: _Model) -> None:
        """Load the former model. The worker ends if this fails too."""
        try:
            await self.engine.load(former.make)
        except Exception as error:
            logger.error("the former model %s cannot be loaded either: %s", former.facts.model, error)
            self.engine.hopeless.set()

    async def _loaded(self, model: _Model) -> None:
        """Start the model's engine, at most twice, until its canary is right. Raises EngineError."""
        for again in (False, True):
            try:
                await self.engine.load(model.make)
                if await self._canary() == model.canary:
                    return
                logger.error("the canary of %s gave other tokens than at its first load", model.facts.model)
            except Exception as error:
                if again:
                    raise
                logger.error("the engine of %s does not start: %s", model.facts.model, error)
        raise EngineError("canary_failed", "the canary gave other tokens than at the first load")

    async def _canary(self) -> str:
        """Return the text of the canary, from greedy decoding; empty for a model without completions."""
        if Capability.COMPLETION not in self.engine.facts.capabilities:
            return ""
        request = EngineRequest(
            f"canary-{next(self._canaries)}",
            CANARY_TENANT,
            {"prompt": CANARY_PROMPT, "temperature": 0.0},
            CANARY_TOKENS,
            Endpoint.COMPLETION,
        )
        async with aclosing(self.engine.generate(request)) as events:
            return "".join([event.text async for event in events if isinstance(event, Token)])
