"""The models of one worker: one is loaded, the others sleep or are stopped, and a swap loads another.

Source: QLM (SoCC 2024), section 5: an instance swaps its model when the head of its queue needs another one. Here the
gate orders a swap, and the worker measures what it costs.

    swap    put the loaded engine away ──▶ wake or start the other ──▶ canary: the tokens of a fixed prompt, as at first

Every model is loaded once when the worker starts, so that its facts, its canary's tokens and the seconds of a load are
known before the gate counts on it. A model that sleeps then is woken once too. Seconds of a wake-up and of a start are
kept apart, and the gate gets those of the state in which the model is.

If a wake-up fails, or the canary after it gives other tokens, the engine is stopped and started. If a start fails, all
sleeping engines are stopped, and it is started once more. If this fails too, the former model is loaded again, and the
model is not offered for a time that doubles with each failure. An engine without a former model to return to ends the
worker (supervised.py, `hopeless`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from statistics import median
from typing import NamedTuple

from dispatcher.model.fleet import Capability, LoadableModel
from dispatcher.model.requests import Endpoint
from dispatcher.ports import Clock
from gpu_worker.engines.interface import Engine, EngineError, EngineFacts, Token, own_order
from gpu_worker.engines.registry import EngineUnavailable
from gpu_worker.engines.sleeping_engines import FreeBytes, SleepingEngines, unmeasured
from gpu_worker.engines.supervised import MakeEngine, PutAway, SupervisedEngine
from gpu_worker.policies.swap_seconds import Slowness, SwapSeconds

logger = logging.getLogger("headgate.engine")

REST_S = 60.0
_REST_MAX_S = 3600.0
_CANARY_TENANT = "headgate-canary"
_CANARY_PROMPT = "The headgate is opened field by field, so that"
_CANARY_TOKENS = 8
CANARY_S = 60.0
"""The longest wait for the canary's tokens."""


class _Canary(NamedTuple):
    """`text`: empty if the model's endpoint is not completions. `step_s`: the median time between two of its tokens; 0
    if there are too few."""

    text: str
    step_s: float


class SwapFailed(Exception):
    """The model could not be loaded. The former one is loaded again."""


@dataclass(eq=False)
class _Model:
    make: MakeEngine
    facts: EngineFacts
    canary: _Canary
    """The canary of its first load."""
    start_s: SwapSeconds
    """Seconds of the last swaps to it while it was stopped."""
    wake_s: SwapSeconds
    """Seconds of the last swaps to it while it slept, also those in which its wake-up failed."""
    failures: int = 0
    """Failed swaps in a row."""
    rests_until_s: float = 0.0


class ModelSwaps:
    """The models that `engine` can serve. Made by `prepared`."""

    def __init__(self, engine: SupervisedEngine, clock: Clock, sleeping: SleepingEngines) -> None:
        self.engine = engine
        self.sleeping = sleeping
        self._clock = clock
        self._models: dict[str, _Model] = {}
        self._slow_starts, self._slow_wakes = Slowness(), Slowness()
        self._canaries = count(1)

    @classmethod
    async def prepared(
        cls,
        engine: SupervisedEngine,
        others: list[MakeEngine],
        clock: Clock,
        sleep_memory_bytes: int = 0,
        free_bytes: FreeBytes = unmeasured,
    ) -> ModelSwaps:
        """Load every model once, the engine's own at last, and wake those that sleep then once. `engine` is started.

        `sleep_memory_bytes`: host memory for sleeping engines; 0: none sleeps. `free_bytes`: see SleepingEngines.

        Raises EngineUnavailable if two models have the same name, and what a start of an engine raises.
        """
        sleeping = SleepingEngines(engine, clock, sleep_memory_bytes, free_bytes)
        swaps, first, put_away = cls(engine, clock, sleeping), engine.make, sleeping.stop
        for make in [*others, first] if others else []:
            begun_s = clock.monotonic()
            await swaps._first_load(make, put_away)
            took_s, facts = clock.monotonic() - begun_s, engine.facts
            if facts.model in swaps._models:
                raise EngineUnavailable(f"two models of this worker have the name {facts.model!r}: give each its own")
            start_s, wake_s = SwapSeconds(took_s, swaps._slow_starts), SwapSeconds(None, swaps._slow_wakes)
            swaps._models[facts.model] = _Model(make, facts, await swaps._canary(engine), start_s, wake_s)
            put_away = sleeping.put_away
        own = engine.facts.model
        for name in list(engine.asleep):
            if name in engine.asleep:  # else it was stopped to make room
                await swaps._timed_load(swaps._models[name])
        if engine.facts.model != own:
            await swaps._timed_load(swaps._models[own])
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
                name, 0.0 if name == loaded else self._costs(model).expected_s, model.facts.context_tokens,
                model.facts.bytes_per_token, service_per_s(name), tuple(sorted(model.facts.capabilities)),
            )
            for name, model in sorted(self._models.items())
            if name == loaded or model.rests_until_s <= now_s
        )  # fmt: skip

    def step_s(self, name: str) -> float:
        """Return the time of a decode step with one request, as at the model's first load; 0 if unknown."""
        model = self._models.get(name)
        return model.canary.step_s if model is not None else 0.0

    def can_load(self, name: str) -> bool:
        model = self._models.get(name)
        return model is not None and model.rests_until_s <= self._clock.monotonic()

    async def load(self, name: str) -> None:
        """Swap to the model. No request may run. Raises SwapFailed."""
        model, former = self._models[name], self._models[self.engine.facts.model]
        try:
            took_s = await self._timed_load(model)
        except Exception as error:
            self.engine.swaps.failed += 1
            model.failures += 1
            rest_s = min(_REST_MAX_S, REST_S * 2 ** (model.failures - 1))
            model.rests_until_s = self._clock.monotonic() + rest_s
            logger.error("the model %s cannot be loaded: %s; next try in %g s", name, _reason(error), rest_s)
            await self._return_to(former)
            raise SwapFailed(name) from error
        model.failures = 0
        self.engine.swaps.done += 1
        self.engine.swaps.last_s = took_s
        logger.info("the model %s is loaded after %.1f s", name, took_s)

    def _costs(self, model: _Model) -> SwapSeconds:
        """Return what swaps to the model take from its state now."""
        sleeps = model.facts.model in self.engine.asleep
        return model.wake_s if sleeps and model.wake_s.is_known else model.start_s

    async def _timed_load(self, model: _Model) -> float:
        """Load the model, and return the seconds that it took."""
        sleeps = model.facts.model in self.engine.asleep
        begun_s, wakes = self._clock.monotonic(), self.engine.swaps.wakes
        await self._load(model)
        took_s = self._clock.monotonic() - begun_s
        (model.wake_s if sleeps else model.start_s).observe(took_s)
        if self.engine.swaps.wakes > wakes:
            self.engine.swaps.wake_s = took_s
        return took_s

    async def _first_load(self, make: MakeEngine, put_away: PutAway) -> None:
        """Start an engine. If that fails, stop the sleeping ones, and start it once more. Raises what that raises."""
        try:
            await self.engine.load(make, put_away=put_away)
        except Exception as error:
            if not self.engine.asleep:
                raise
            logger.error("the engine does not start while others sleep: %s", _reason(error))
            await self.sleeping.stop_all()
            await self.engine.load(make, put_away=self.sleeping.stop)
        await self.sleeping.note_loaded()

    async def _load(self, model: _Model) -> None:
        """Wake the model's engine, or start it, at most twice, until its canary is right. Raises what that raises."""
        put_away: PutAway = partial(self.sleeping.put_away, wanted=model.facts.model)
        if model.facts.model in self.engine.asleep:
            if await self._wake(model, put_away):
                return
            put_away = self.sleeping.stop
        for again in (False, True):
            try:
                await self.engine.load(model.make, put_away=put_away, check=partial(self._check, model))
                await self.sleeping.note_loaded()
                return
            except Exception as error:
                if again:
                    raise
                logger.error("the engine of %s does not start: %s", model.facts.model, _reason(error))
                put_away = self.sleeping.stop
                await self.sleeping.stop_all()

    async def _wake(self, model: _Model, put_away: PutAway) -> bool:
        """Wake the model's engine. Return False if it fails; then the engine must be stopped."""
        name = model.facts.model
        woken = self.engine.asleep[name]
        try:
            await self.engine.load(model.make, put_away=put_away, woken=woken, check=partial(self._check, model))
        except Exception as error:
            logger.error("the engine of %s does not wake up: %s", name, _reason(error))
            self.sleeping.note_wake(name, failed=True)
            if name in self.engine.asleep:  # the former engine could not be put away
                await self.sleeping.evict(name)
            return False
        self.sleeping.note_wake(name, failed=False)
        await self.sleeping.note_loaded()
        return True

    async def _return_to(self, former: _Model) -> None:
        """Load the former model. The worker ends if this fails too."""
        try:
            if former.facts.model in self.engine.asleep and await self._wake(former, self.sleeping.stop):
                return
            await self.engine.load(former.make, put_away=self.sleeping.stop)
            await self.sleeping.note_loaded()
        except Exception as error:
            logger.error("the former model %s cannot be loaded either: %s", former.facts.model, error)
            self.engine.hopeless.set()

    async def _check(self, model: _Model, engine: Engine) -> None:
        """Raises EngineError if the canary's tokens are not those of the model's first load, and TimeoutError."""
        async with asyncio.timeout(CANARY_S):
            if (await self._canary(engine)).text != model.canary.text:
                raise EngineError("canary_failed", "the canary gave other tokens than at the first load")

    async def _canary(self, engine: Engine) -> _Canary:
        """Return the canary, from greedy decoding."""
        if Capability.COMPLETION not in engine.facts.capabilities:
            return _Canary("", 0.0)
        request = own_order(
            f"canary-{next(self._canaries)}",
            _CANARY_TENANT,
            {"prompt": _CANARY_PROMPT, "temperature": 0.0},
            _CANARY_TOKENS,
            Endpoint.COMPLETION,
        )
        async with aclosing(engine.generate(request)) as events:
            tokens = [(event.text, self._clock.monotonic()) async for event in events if isinstance(event, Token)]
        steps_s = [after - before for (_, before), (_, after) in pairwise(tokens)]
        return _Canary("".join(text for text, _ in tokens), median(steps_s) if steps_s else 0.0)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
