"""A modelled engine: the queue policy and the batching are real, the GPU is a time model, the tokens are placeholders.

It needs no torch. Steps take the time that the model gives them:

    prefill_s = prefill_base_s + prefill_per_token_s x prompt tokens admitted in this step
    decode_s  = decode_base_s + decode_per_request_s x requests in the batch + decode_per_kv_token_s x KV tokens held

(the form in which the VTC artifact's own profile of an A10G was fitted). Who enters and who leaves for that is decided
as in the other engines (policies/admission.py, over modelled/batch.py); what is computed again counts as prefilled. A
placeholder token is a word; a prompt's tokens are its bytes over BYTES_PER_TOKEN.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from gpu_worker.engines.interface import (
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineRequest,
    EngineStats,
    Finished,
    FinishReason,
    PromptTooLong,
    RefusedByPolicy,
    Started,
    TenantService,
    Token,
)
from gpu_worker.engines.modelled.batch import Batch, Sequence
from gpu_worker.engines.modelled.batch import Shape as Shape
from gpu_worker.engines.text import StopMatcher
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.preemption.costs import Calibration

BYTES_PER_TOKEN = 4.0
WORDS = ("the", "water", "is", "shared", "by", "turn", "and", "each", "field", "has", "what", "it", "is", "due")


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Seconds; the defaults make about 300 tokens a second in a full batch of 8."""

    prefill_base_s: float = 0.002
    prefill_per_token_s: float = 0.00005
    decode_base_s: float = 0.012
    decode_per_request_s: float = 0.0018
    decode_per_kv_token_s: float = 0.0000005

    def prefill_s(self, tokens: int) -> float:
        return self.prefill_base_s + self.prefill_per_token_s * tokens if tokens else 0.0

    def decode_s(self, requests: int, kv_tokens: int) -> float:
        return self.decode_base_s + self.decode_per_request_s * requests + self.decode_per_kv_token_s * kv_tokens

    def calibration(self) -> Calibration:
        """As an engine would measure it that can copy nothing."""
        decode_s = self.decode_s(1, 0)
        return Calibration(0.0, 0.0, 0.0, 0.0, self.prefill_base_s, self.prefill_per_token_s, 0.0, decode_s)


INSTANT = TimeModel(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(eq=False)
class ModelledEngine:
    """`sleep`, and `monotonic_s` for policies that look at a clock: handed in, so that tests run in virtual time."""

    policy: QueuePolicy
    model: str = "headgate-modelled"
    time_model: TimeModel = field(default_factory=TimeModel)
    shape: Shape = field(default_factory=Shape)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.facts = EngineFacts(self.model, self.shape.context_tokens, BYTES_PER_TOKEN)
        self._sequences: dict[str, Sequence] = {}
        self._batch = Batch(self.policy, self.shape, self.time_model.calibration(), self._sequences)
        self._arrived = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def render_chat(self, messages: list[dict[str, str]]) -> str:
        return "\n".join(f"{message['role']}: {message['content']}" for message in messages) + "\nassistant:"

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        input_tokens = max(1, math.ceil(len(request.prompt.encode()) / BYTES_PER_TOKEN))
        admission = self._batch.admission
        limit = min(self.shape.context_tokens, admission.blocks_max(request.tier, self.shape.kv_tokens))
        if input_tokens + request.max_tokens > limit:
            raise PromptTooLong(f"prompt ({input_tokens}) and max_tokens ({request.max_tokens}) exceed {limit} tokens")
        sequence = self._enter(request, input_tokens)
        try:
            yield Started(input_tokens)
            while True:
                event = await sequence.events.get()
                if isinstance(event, EngineError):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            if self._sequences.get(request.request_id) is sequence:
                await self.abort(request.request_id)

    def _enter(self, request: EngineRequest, input_tokens: int) -> Sequence:
        if self._loop is not None and self._loop.done():
            raise EngineError("engine_stopped", "the engine is not running")
        if request.request_id in self._sequences:
            raise EngineError("duplicate_request", f"request {request.request_id} is here already")
        sequence = Sequence(request, input_tokens, asyncio.Queue(), StopMatcher(request.stop))
        now_s = self.monotonic_s()
        if not self._batch.admission.enqueue(request.queued(input_tokens, now_s), now_s):
            raise RefusedByPolicy
        self._sequences[request.request_id] = sequence
        self._arrived.set()
        return sequence

    async def abort(self, request_id: str) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.reason is not None:
            return
        if request_id in self._batch:
            sequence.reason = "aborted"  # leaves the batch, and frees its cache, at the end of the step under way
        else:
            self.policy.cancel(request_id)
            self._end(sequence, "aborted")

    def stats(self) -> EngineStats:
        tenants = {
            name: TenantService(got.input_tokens, got.output_tokens, got.service)
            for name, got in self.policy.received.items()
        }
        return EngineStats(
            waiting=self.policy.waiting,
            running=len(self._batch),
            kv_use=self._batch.kv_tokens / self.shape.kv_tokens,
            tenants=tenants,
            figures=self._batch.figures,
            now=self._batch.now(),
        )

    async def start(self) -> None:
        self._loop = asyncio.create_task(self._run())
        self._loop.add_done_callback(self._failed)

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        for sequence in list(self._sequences.values()):
            self._end(sequence, "aborted")

    def _failed(self, loop: asyncio.Task[None]) -> None:
        """Nobody waits for an engine that is gone."""
        if not loop.cancelled():
            for sequence in self._sequences.values():
                sequence.events.put_nowait(EngineError("engine_failed", "the engine failed while it worked on this"))

    async def _run(self) -> None:
        while True:
            if not self._sequences:
                self._arrived.clear()
                await self._arrived.wait()
            await self.step()

    async def step(self) -> None:
        """One pass: end what is late, admit, prefill, decode one token for each."""
        now_s = self.monotonic_s()
        for request_id in self._batch.expired(now_s):
            await self.abort(request_id)
        prefilled = self._batch.fill(now_s)
        requests, kv_tokens = len(self._batch), self._batch.kv_tokens
        await self.sleep(self.time_model.prefill_s(prefilled) + self.time_model.decode_s(requests, kv_tokens))
        for sequence in self._batch:
            self._decode(sequence)

    def _decode(self, sequence: Sequence) -> None:
        if sequence.reason is None:
            sequence.output_tokens += 1
            self.policy.generated(sequence.request.request_id, sequence.output_tokens)
            word = WORDS[sequence.output_tokens % len(WORDS)]
            text = sequence.stops.feed(word if sequence.output_tokens == 1 else f" {word}")
            if sequence.stops.stopped:
                sequence.reason = "stop"
            elif sequence.output_tokens >= sequence.request.max_tokens:
                text += sequence.stops.flush()
                sequence.reason = "length"
            sequence.events.put_nowait(Token(text, sequence.output_tokens))
        if sequence.reason is not None:
            self._batch.leave(sequence)
            self._end(sequence, sequence.reason)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.reason = reason
        self._sequences.pop(sequence.request.request_id, None)
        sequence.events.put_nowait(Finished(reason, sequence.input_tokens, sequence.output_tokens))
