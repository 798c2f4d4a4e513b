"""The model of a run, and engines on it: ours with a policy, and transformers' own scheduler."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from random import Random
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

from benchmarks.gpu.sizes import Range, Sizes
from gpu_worker.engines.interface import Token, WorkOrder, own_order
from gpu_worker.engines.random_llama import LlamaShape, build_llama, build_tokenizer
from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape
from gpu_worker.policies.fairness.registry import make_policy

MODEL_NAME = "random-llama"
FIRST_TOKEN = 3
"""The tokens below are special."""


@dataclass
class Bench:
    """What all parts share. `device`: cuda or cpu."""

    sizes: Sizes
    device: str
    seed: int = 0

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.on_cuda else torch.float32

    @cached_property
    def tokenizer(self) -> Any:
        return build_tokenizer()

    @cached_property
    def model(self) -> Any:
        """The model, built at its first use."""
        sizes = self.sizes
        return build_llama(
            self.tokenizer,
            LlamaShape(
                sizes.layers,
                sizes.width,
                sizes.head_width,
                sizes.heads,
                sizes.kv_heads,
                sizes.intermediate,
                sizes.context,
                sizes.vocabulary,
                self.dtype,
                self.device,
                sizes.peak,
            ),
            self.seed,
        )

    @property
    def shape(self) -> TransformersShape:
        sizes = self.sizes
        return TransformersShape(
            sizes.batch, sizes.kv_tokens, sizes.block_tokens, sizes.step_tokens, torch.get_num_threads()
        )

    def prompt(self, random: Random, length: int) -> list[int]:
        return [random.randrange(FIRST_TOKEN, len(self.tokenizer)) for _ in range(length)]

    def synchronize(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize()

    def free(self) -> None:
        """Give the memory of ended engines back to the device."""
        gc.collect()
        if self.on_cuda:
            torch.cuda.empty_cache()


@dataclass(slots=True)
class StepMeter:
    """Times an engine's steps: what `schedule_batch` takes, and the whole step. `speed`: the part of the time in which
    the engine works; after each step its thread sleeps for the rest."""

    speed: float = 1.0
    steps: int = 0
    step_s: float = 0.0
    schedule_s: float = 0.0
    _began_s: float = field(default=0.0, repr=False)

    def attach(self, manager: ContinuousBatchingManager) -> None:
        """Wrap the methods of the manager's processor that make a step. Call it while the engine is idle."""
        processor = manager.batch_processor
        processor.scheduler.schedule_batch = partial(self._schedule, processor.scheduler.schedule_batch)
        processor.prepare_next_batch = partial(self._prepare, processor.prepare_next_batch)
        processor.update_batch = partial(self._update, processor.update_batch)

    @property
    def share(self) -> float:
        """The scheduler's part of a step."""
        return self.schedule_s / self.step_s if self.step_s else 0.0

    def _schedule(self, schedule: Callable[..., Any], *budgets: int) -> Any:
        began_s = time.perf_counter()
        try:
            return schedule(*budgets)
        finally:
            self.schedule_s += time.perf_counter() - began_s

    def _prepare(self, prepare: Callable[[], bool]) -> bool:
        self._began_s = time.perf_counter()
        return prepare()

    def _update(self, update: Callable[[], None]) -> None:
        update()
        took_s = time.perf_counter() - self._began_s
        self.steps += 1
        self.step_s += took_s
        if self.speed < 1.0:
            time.sleep(took_s * (1.0 / self.speed - 1.0))


@asynccontextmanager
async def run_engine(
    bench: Bench, policy: str, shape: TransformersShape, meter: StepMeter | None = None
) -> AsyncIterator[TransformersEngine]:
    """Run an engine on the bench's model until the block ends."""
    engine = TransformersEngine(make_policy(policy), bench.model, bench.tokenizer, MODEL_NAME, shape)
    try:
        await engine.start()
        if meter is not None:
            meter.attach(engine._manager)
        yield engine
    except Exception as error:
        raise _find_cause(error, engine) from error
    finally:
        await engine.stop()
        engine._manager = engine._scheduler = engine._router = None  # the caller may keep the engine, not its cache
        bench.free()


@asynccontextmanager
async def run_stock(
    bench: Bench, config: Any, end_tokens: frozenset[int], meter: StepMeter
) -> AsyncIterator[ContinuousBatchingManager]:
    """Run transformers' manager with its own default scheduler and the other settings of `config`, an engine's."""
    greedy = GenerationConfig(do_sample=False, eos_token_id=sorted(end_tokens) or -1)
    manager = bench.model.init_continuous_batching(greedy, replace(config, scheduler_type="fifo"))
    await asyncio.to_thread(manager.warmup)
    meter.attach(manager)
    manager.background_thread_status.clear()
    # Not manager.start(): its thread is not a daemon, and a script that fails must not wait for it.
    manager._generation_thread = threading.Thread(target=manager._run_generation_loop, daemon=True)
    manager._generation_thread.start()
    try:
        yield manager
    finally:
        await asyncio.to_thread(manager.stop, block=True, timeout=10.0, hard_stop=True)
        del manager
        bench.free()


@dataclass(frozen=True, slots=True)
class Planned:
    """A request that a part will send."""

    name: str
    tokens: list[int]
    output: int

    def request(self, tenant: str, **fields: Any) -> WorkOrder:
        return own_order(self.name, tenant, {"prompt": self.tokens, "temperature": 0.0}, self.output, **fields)


def plan(bench: Bench, random: Random, name: str, prompt: Range, output: Range) -> Planned:
    return Planned(name, bench.prompt(random, random.randint(*prompt)), random.randint(*output))


async def first_token_s(engine: TransformersEngine, request: WorkOrder, clock: Callable[[], float]) -> float:
    """Generate to the end. Return when the first token came."""
    came_s: float | None = None
    async for event in engine.generate(request):
        if came_s is None and isinstance(event, Token):
            came_s = clock()
    if came_s is None:
        raise RuntimeError(f"{request.execution} ended without a token")
    return came_s


def _find_cause(error: Exception, engine: TransformersEngine) -> Exception:
    """Return the error that ended the engine's thread, or else `error`."""
    fatal = engine._manager.background_thread_status.fatal_error if engine._manager is not None else None
    return error if fatal is None else RuntimeError(f"the engine ended: {type(fatal).__name__}: {fatal}")
