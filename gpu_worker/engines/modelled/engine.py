"""A modelled engine: the queue policy and the batching are real, the GPU is a time model, the tokens are placeholders.

It needs no torch. It runs the paged model (paged/model.py) on a real clock: it plans a step, sleeps for the seconds
that the model gives, and hands out one placeholder token for each sequence that the step computed. Prompts are computed
whole, in the same step as the decodes. A request takes the KV blocks of its longest possible output when it enters, so
that a running request never lacks a block; nothing is swapped. A KV block holds one token. A placeholder token is a
word; a prompt has one token for every BYTES_PER_TOKEN of its bytes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.event_queue import EventQueue
from gpu_worker.engines.generation import Generation, generation_of
from gpu_worker.engines.interface import (
    Dropped,
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineRequest,
    EngineStats,
    Finished,
    PromptTooLong,
    RefusedByPolicy,
    Started,
    Token,
)
from gpu_worker.engines.modelled.paged.model import PagedModel, Step
from gpu_worker.engines.modelled.paged.profile import PagedProfile
from gpu_worker.engines.modelled.paged.sequence import Sequence
from gpu_worker.engines.scheduling_gauges import scheduling_gauges
from gpu_worker.engines.text import StopMatcher
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.preemption.admission import Admission

BYTES_PER_TOKEN = 4.0
WORDS = ("the", "water", "is", "shared", "by", "turn", "and", "each", "field", "has", "what", "it", "is", "due")
PROMPTS_WHOLE = 1_000_000_000
"""Prompt tokens of a step: more than ever wait."""
INSTANT = PagedProfile(16_384, batch_max=8, chunk_tokens=PROMPTS_WHOLE, reserve_outputs=True)
"""Steps take no time."""
PROFILE = replace(
    INSTANT,
    prefill_base_s=0.002,
    prefill_per_token_s=0.00005,
    decode_base_s=0.012,
    decode_per_request_s=0.0018,
    decode_per_kv_token_s=0.0000005,
)
"""About 300 tokens a second in a full batch of 8."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """A request, its sequence in the model, and its events."""

    request: EngineRequest
    sequence: Sequence
    stops: StopMatcher
    events: EventQueue = field(default_factory=EventQueue)


@dataclass(eq=False)
class ModelledEngine:
    """`context_tokens`: the most of one request. `sleep`, and `monotonic_s` for policies that need a clock: parameters,
    so that tests run in virtual time."""

    policy: QueuePolicy
    model: str = "headgate-modelled"
    profile: PagedProfile = PROFILE
    context_tokens: int = 4096
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.facts = EngineFacts(self.model, self.context_tokens, BYTES_PER_TOKEN)
        self._admission = Admission(self.policy, self.profile.calibration())
        self._model = PagedModel(self.profile, self._admission)
        self._batch = self._model.batch
        self._streams: dict[str, _Stream] = {}
        self._step: Step | None = None
        self._arrived = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        generation = generation_of(request)
        input_tokens = max(1, math.ceil(len(_prompt(generation).encode()) / BYTES_PER_TOKEN))
        limit = min(self.context_tokens, self._admission.blocks_max(request.tier, self.profile.pool_tokens))
        if input_tokens + request.max_tokens > limit:
            raise PromptTooLong(f"prompt ({input_tokens}) and max_tokens ({request.max_tokens}) exceed {limit} tokens")
        stream = self._enqueue(request, input_tokens, generation.stop)
        try:
            yield Started(input_tokens)
            async for event in stream.events:
                yield event
        finally:
            if self._streams.get(request.request_id) is stream:
                await self.abort(request.request_id)

    def _enqueue(self, request: EngineRequest, input_tokens: int, stop: tuple[str, ...]) -> _Stream:
        if self._loop is not None and self._loop.done():
            raise EngineError("engine_stopped", "the engine is not running")
        if request.request_id in self._streams:
            raise EngineError("duplicate_request", f"request {request.request_id} is here already")
        now_s = self.monotonic_s()
        sequence = self._batch.enqueue(request.queued(input_tokens, now_s), now_s)
        if sequence is None:
            raise RefusedByPolicy
        stream = self._streams[request.request_id] = _Stream(request, sequence, StopMatcher(stop))
        self._arrived.set()
        return stream

    async def abort(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        if self._step is not None:
            self._step.remove(stream.sequence)
        if stream.sequence in self._batch.running:
            self._batch.end(stream.sequence)
        else:
            self._batch.cancel(stream.sequence)
        self._finish(stream, "aborted")

    def stats(self) -> EngineStats:
        running: Counter[Tier] = Counter()
        blocks: Counter[Tier] = Counter()
        for sequence in self._batch.running:
            running[sequence.request.tier] += 1
            blocks[sequence.request.tier] += sequence.blocks
        return EngineStats(
            waiting=self.policy.waiting,
            running=len(self._batch.running),
            kv_use=self._batch.kv_tokens / self.profile.pool_tokens,
            tenants=self.policy.received,
            counts=self._batch.counts,
            gauges=scheduling_gauges(
                self._admission,
                running=running,
                blocks=blocks,
                blocks_total=self.profile.pool_tokens,
                pool_tokens=self.profile.pool_tokens,
                context_tokens=self.context_tokens,
            ),
        )

    async def start(self) -> None:
        self._loop = asyncio.create_task(self._run())
        self._loop.add_done_callback(self._fail_streams)

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        for stream in list(self._streams.values()):
            self._finish(stream, "aborted")

    def _fail_streams(self, loop: asyncio.Task[None]) -> None:
        """End every request with an error if the loop failed: it would wait for ever."""
        if not loop.cancelled():
            for stream in self._streams.values():
                stream.events.put_nowait(EngineError("engine_failed", "the engine failed while it worked on this"))

    async def _run(self) -> None:
        while True:
            if not self._streams:
                self._arrived.clear()
                await self._arrived.wait()
            await self.step()

    async def step(self) -> None:
        """Abort expired requests, admit, and compute the prompts of newcomers and one token for each request."""
        now_s = self.monotonic_s()
        for request_id in self._batch.expired(now_s):
            await self.abort(request_id)
        self._step = self._model.plan(now_s)
        for sequence in self._batch.take_dropped():
            stream = self._streams.pop(sequence.request.request_id)
            stream.events.put_nowait(Dropped(exhausted=sequence.exhausted))
        await self.sleep(self._model.end_s(self._step, now_s) - now_s)
        step, self._step = self._step, None
        for sequence in self._model.compute(step):
            self._send(self._streams[sequence.request.request_id])

    def _send(self, stream: _Stream) -> None:
        """Send the text of the new token, and end the request if it is complete."""
        count = stream.sequence.tokens
        word = WORDS[count % len(WORDS)]
        text = stream.stops.feed(word if count == 1 else f" {word}")
        reason: str | None = None
        if stream.stops.stopped:
            reason = "stop"
        elif stream.sequence.ended:
            text += stream.stops.flush()
            reason = "length"
        stream.events.put_nowait(Token(text, count))
        if reason is not None:
            self._batch.end(stream.sequence)
            self._finish(stream, reason)

    def _finish(self, stream: _Stream, reason: str) -> None:
        del self._streams[stream.request.request_id]
        stream.events.put_nowait(Finished(reason, stream.sequence.prompt, stream.sequence.tokens))


def _prompt(generation: Generation) -> str:
    if generation.prompt is not None:
        return generation.prompt
    return "\n".join(f"{each['role']}: {each['content']}" for each in generation.messages or ()) + "\nassistant:"
