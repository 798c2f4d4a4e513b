"""A modelled engine: the queue policy and the batching are real, the GPU is a time model, the tokens are placeholders.

It needs no torch. It runs the paged model (paged/model.py) on a real clock: it plans a step, sleeps for the seconds
that the model gives, and hands out one placeholder token for each sequence that the step computed. By default prompts
are computed whole, in the same step as the decodes. A request takes the KV blocks of its longest possible output when
it enters, so that a running request never lacks a block; nothing is swapped. A KV block holds one token. A placeholder
token is a word or a piece of JSON (answers.py); a prompt has one token for every BYTES_PER_TOKEN of its bytes.

Each choice of a request, and each input of an embeddings request, is a sequence.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace

from dispatcher.model.fleet import Capability
from dispatcher.model.requests import Endpoint
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.generation import StopMatcher, generation_of
from gpu_worker.engines.interface import (
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineStats,
    Evicted,
    Finished,
    RefusedByPolicy,
    Started,
    Token,
    WorkOrder,
    fit_order,
    name_sequence,
    queue_request,
)
from gpu_worker.engines.modelled.answers import (
    BYTES_PER_TOKEN,
    ModelledAnswer,
    chat_answers,
    check_dimensions,
    embedding,
    inputs_of,
    words,
)
from gpu_worker.engines.modelled.paged.kv_budget import PagedSequence
from gpu_worker.engines.modelled.paged.model import PagedModel, Step
from gpu_worker.engines.modelled.paged.profile import PagedProfile
from gpu_worker.engines.modelled.streams import Choice, ModelledStream, input_tokens_of, prompt_of
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.scheduling_stats import scheduling_gauges

_PROMPTS_WHOLE = 1_000_000_000
"""Prompt tokens of a step: more than ever wait."""
INSTANT = PagedProfile(16_384, batch_max=8, chunk_tokens=_PROMPTS_WHOLE, reserve_outputs=True)
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


_CAPABILITIES = frozenset(
    {
        Capability.CHAT,
        Capability.COMPLETION,
        Capability.EMBEDDINGS,
        Capability.SAMPLING,
        Capability.CHOICES,
        Capability.LOGPROBS,
        Capability.TOOLS,
        Capability.STRUCTURED,
        Capability.LENGTH,
        Capability.TOKEN_IDS,
    }
)
"""Sampling fields are accepted: a placeholder is the only token that could be drawn. Words go on until `max_tokens`, so
that `ignore_eos` and `min_tokens` hold for them; a tool call and JSON end when they are complete."""


@dataclass(eq=False)
class ModelledEngine:
    """`context_tokens`: the most of one request. `load_s`: the seconds that a start takes. `sleep_bytes`, `wake_s`: the
    host memory of a sleeping engine, and the seconds until it is awake. `sleep`, and `monotonic_s` for policies that
    need a clock: parameters, so that tests run in virtual time."""

    policy: QueuePolicy
    model: str = "headgate-modelled"
    profile: PagedProfile = PROFILE
    context_tokens: int = 4096
    load_s: float = 0.0
    sleep_bytes: int = 0
    wake_s: float = 0.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.facts = EngineFacts(self.model, self.context_tokens, BYTES_PER_TOKEN, _CAPABILITIES)
        self._admission = Admission(self.policy, self.profile.calibration())
        self._model = PagedModel(self.profile, self._admission)
        self._batch = self._model.batch
        self._streams: dict[str, ModelledStream] = {}
        self._choices: dict[str, tuple[ModelledStream, Choice]] = {}
        """The choices that have not ended, by the id of their sequence."""
        self._step: Step | None = None
        self._arrived = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        stream = await asyncio.to_thread(_new_stream, request) if _has_schema(request) else _new_stream(request)
        stream.request = self._fit_request(stream)
        self._enqueue(stream)
        try:
            yield Started(stream.input_tokens)
            async for event in stream.events:
                yield event
        finally:
            if self._streams.get(request.execution) is stream:
                await self.abort(request.execution)

    def _fit_request(self, stream: ModelledStream) -> WorkOrder:
        """Return the request with a limit that fits. Raises PromptTooLong."""
        limit = min(self.context_tokens, self._admission.blocks_max(stream.request.tier, self.profile.pool_tokens))
        return fit_order(stream.request, max(choice.input_tokens for choice in stream.choices), limit)

    def _enqueue(self, stream: ModelledStream) -> None:
        request, count = stream.request, len(stream.choices)
        if self._loop is not None and self._loop.done():
            raise EngineError("engine_stopped", "the engine is not running")
        if request.execution in self._streams:
            raise EngineError("duplicate_request", f"request {request.execution} is here already")
        now_s = self.monotonic_s()
        for choice in stream.choices:
            sequence_id = name_sequence(request, choice.number, count)
            queued = queue_request(request, choice.input_tokens, now_s, sequence_id)
            if request.endpoint is Endpoint.EMBEDDINGS:
                queued = replace(queued, output_tokens_max=1, output_tokens=0)
            else:
                queued = replace(queued, output_tokens_max=choice.answer.tokens_max(request.max_tokens))
            choice.sequence = self._batch.enqueue(queued, now_s)
            if choice.sequence is None:
                self._leave(stream)
                raise RefusedByPolicy
            self._choices[sequence_id] = stream, choice
        self._streams[request.execution] = stream
        self._arrived.set()

    async def abort(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            self._finish(stream, stream.finished("aborted"))

    def _leave(self, stream: ModelledStream) -> None:
        """Take the choices that have not ended out of the batch and the queue."""
        for choice in stream.choices:
            sequence = choice.sequence
            if sequence is None or self._choices.pop(sequence.request.request_id, None) is None:
                continue
            if self._step is not None:
                self._step.remove(sequence)
            if sequence in self._batch.running:
                self._batch.end(sequence)
            else:
                self._batch.cancel(sequence)

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
        if self.load_s:
            await self.sleep(self.load_s)
        self._begin()

    def _begin(self) -> None:
        self._loop = asyncio.create_task(self._run())
        self._loop.add_done_callback(self._fail_streams)

    async def fall_asleep(self) -> None:
        """Take no request until `wake`."""
        await self.stop()

    async def wake(self) -> None:
        if self.wake_s:
            await self.sleep(self.wake_s)
        self._begin()

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        for request_id in list(self._streams):
            await self.abort(request_id)

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
        for sequence_id in self._batch.expired(now_s):
            if sequence_id in self._choices:
                await self.abort(self._choices[sequence_id][0].request.execution)
        self._step = self._model.plan(now_s)
        for sequence in self._batch.take_dropped():
            self._drop(sequence)
        await self.sleep(self._model.end_s(self._step, now_s) - now_s)
        step, self._step = self._step, None
        for sequence in self._model.compute(step):
            if sequence.request.request_id in self._choices:
                self._send(*self._choices[sequence.request.request_id])

    def _drop(self, sequence: PagedSequence) -> None:
        """End the request of a sequence that was evicted for good."""
        found = self._choices.pop(sequence.request.request_id, None)
        if found is not None:
            self._finish(found[0], Evicted(exhausted=sequence.exhausted))

    def _send(self, stream: ModelledStream, choice: Choice) -> None:
        """Send the new token of a choice, and end what is complete."""
        sequence = choice.sequence
        if sequence is None:
            raise ValueError("the choice has no sequence")
        stream.events.put_nowait(self._event(stream, choice))
        if choice.reason:
            self._batch.end(sequence)
            del self._choices[sequence.request.request_id]
        if stream.ended:
            self._finish(stream, stream.finished())

    def _event(self, stream: ModelledStream, choice: Choice) -> Token:
        if stream.request.endpoint is not Endpoint.EMBEDDINGS:
            return stream.token(choice)
        choice.reason = "stop"
        vector = embedding(self.model, choice.content, stream.request.body)
        return Token("", 0, choice.number, {"embedding": vector})

    def _finish(self, stream: ModelledStream, last: Finished | EngineError) -> None:
        self._leave(stream)
        del self._streams[stream.request.execution]
        stream.events.put_nowait(last)


def _has_schema(request: WorkOrder) -> bool:
    """Return whether the answer is an instance of a schema of the client: finding one can take a while."""
    return bool(request.body.get("tools") or request.body.get("response_format"))


def _new_stream(request: WorkOrder) -> ModelledStream:
    """Return the request's stream, not in the queue yet. Raises EngineError for a request that cannot be answered."""
    if request.endpoint is Endpoint.EMBEDDINGS:
        return _embeddings(request)
    generation = generation_of(request)
    input_tokens = len(generation.prompt_ids or ()) or input_tokens_of(prompt_of(generation).encode("utf-8", "replace"))
    if request.endpoint is Endpoint.CHAT:
        answers = chat_answers(request.body, request.execution, request.choices, is_open=request.is_open)
    else:
        answers = words(request.choices)
    choices = [Choice(at, input_tokens, each, StopMatcher(generation.stop)) for at, each in enumerate(answers)]
    return ModelledStream(request, input_tokens, choices)


def _embeddings(request: WorkOrder) -> ModelledStream:
    check_dimensions(request.body)
    inputs = inputs_of(request.body)
    choices = [
        Choice(at, input_tokens_of(each), ModelledAnswer(), StopMatcher(()), each) for at, each in enumerate(inputs)
    ]
    return ModelledStream(request, sum(choice.input_tokens for choice in choices), choices)
