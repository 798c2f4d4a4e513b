"""The engine on transformers' continuous batching: a paged cache on any device that torch supports, CPUs included.

For laptops, CI and rented GPUs with only torch and transformers. The queue policy orders admissions (scheduler.py);
each request has its own temperature and seed (sampling_fields.py); batch.py handles the tokens between two steps. Block
sharing is off: otherwise the timing of one tenant's request could reveal another tenant's prompt.

The model decides whether it calls a tool. This engine cannot force a call, so it refuses `tool_choice` required and
names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.utils import logging as transformers_logging

from dispatcher.model.fleet import TEXT, Capability
from gpu_worker.engines.calibration import CALIBRATION_TENANT, calibration_requests
from gpu_worker.engines.generation import Generation, StopMatcher, Tokenizing, ToolCallParser, generation_of
from gpu_worker.engines.interface import (
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineStats,
    RefusedByPolicy,
    Started,
    WorkOrder,
    fit_order,
    name_sequence,
)
from gpu_worker.engines.random_llama import BUILT_MODEL_NAME, model_folder
from gpu_worker.engines.transformers.batch import GeneratedAnswer, LogprobForms, PolicyRouter, Sequence
from gpu_worker.engines.transformers.manager import (
    AUTO,
    choose_dtype,
    describe_sizes,
    make_manager,
    make_ready,
    run_engine_thread,
)
from gpu_worker.engines.transformers.manager import TransformersShape as TransformersShape
from gpu_worker.engines.transformers.processors import LogprobRecorder
from gpu_worker.engines.transformers.sampling_fields import Sampling, min_tokens_of, sampling_of
from gpu_worker.engines.transformers.scheduler import PolicyScheduler
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.scheduling_stats import SchedulingGauges, scheduling_gauges

logger = logging.getLogger("headgate.engine")

_ALWAYS = frozenset(
    {Capability.SAMPLING, Capability.CHOICES, Capability.LOGPROBS, Capability.LENGTH, Capability.TOKEN_IDS}
)


class TransformersEngine:
    """One model in this process, with one engine thread. Call `start` in the event loop that calls `generate`."""

    def __init__(self, policy: QueuePolicy, model: Any, tokenizer: Any, name: str, shape: TransformersShape) -> None:
        self._policy = policy
        self._admission = Admission(policy)
        self._model = model
        self._text = Tokenizing(tokenizer)
        self._shape = shape = shape.fit_to(model.device.type)
        config = model.config.get_text_config()
        self._context_max: int = getattr(config, "max_position_embeddings", None) or 0
        context = self._context_tokens(shape.kv_tokens)
        self._facts = replace(self._text.facts(name, context), capabilities=_capabilities(self._text))
        self._vocabulary = int(config.vocab_size)
        self._end_tokens = _end_tokens(model, tokenizer)
        self._answers: dict[str, GeneratedAnswer] = {}
        """The requests that `generate` serves, by their ids."""
        self._router: PolicyRouter | None = None
        self._manager: ContinuousBatchingManager | None = None
        self._scheduler: PolicyScheduler | None = None

    @classmethod
    def load(
        cls,
        policy: QueuePolicy,
        *,
        model: str | None,
        home: Path,
        shape: TransformersShape | None = None,
        weights_seed: int = 0,
        device: str | None = None,
        dtype: str = AUTO,
    ) -> TransformersEngine:
        """Load `model`, as random_llama.py's `model_folder` finds it. Raises what that raises.

        `dtype`: as sizes.py's `choose_dtype` takes it.
        """
        shape = shape or TransformersShape()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        folder, name = model_folder(model, home, weights_seed=weights_seed)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device == "cpu":
            torch.set_num_threads(shape.threads)
        loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=choose_dtype(dtype, device, is_built=name == BUILT_MODEL_NAME),
            attn_implementation="sdpa",
            local_files_only=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return cls(policy, loaded.to(device).eval(), tokenizer, name, shape)

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        generation = generation_of(request)
        tools = _offered_tools(generation.body, parses=self._text.has_tools)
        tokens = self._checked_ids(generation) or await self._text.tokens(self._text.prompt(generation, tools))
        with self._enter_request(self._fit_request(request, len(tokens)), tokens, generation) as answer:
            yield Started(len(tokens))
            async for event in answer.events:
                yield event

    async def abort(self, request_id: str) -> None:
        if (answer := self._answers.get(request_id)) is not None:
            self._abort(answer)

    def stats(self) -> EngineStats:
        if self._router is None or self._scheduler is None:
            return EngineStats(0, 0, 0.0, {})
        with self._router.lock:
            running = self._policy.running
            tenants = {name: service for name, service in self._policy.received.items() if name != CALIBRATION_TENANT}
            counts, gauges = deepcopy(self._router.counts), self._gauges(self._scheduler)
        waiting = max(0, len(self._router.live) - running)
        return EngineStats(waiting, running, self._scheduler.kv_use, tenants, counts, gauges)

    async def start(self) -> None:
        logprobs = LogprobForms(LogprobRecorder(), self._text.decode_token)
        self._router = PolicyRouter(self._admission, self._end_tokens, asyncio.get_running_loop(), logprobs)
        self._manager = manager = make_manager(self._model, self._end_tokens, self._shape, self._router)
        await asyncio.to_thread(make_ready, manager, self._shape, self._router)
        self._scheduler = scheduler = manager.batch_processor.scheduler
        self._facts = self._measure_facts(scheduler)
        manager.background_thread_status.clear()
        # Not manager.start(): its thread is not a daemon, and a worker that fails must not wait for it.
        thread = threading.Thread(
            target=run_engine_thread, args=(manager, self._router), name="headgate-engine", daemon=True
        )
        manager._generation_thread = thread
        thread.start()
        if self._shape.calibrate:
            await self._calibrate(scheduler)

    async def stop(self) -> None:
        """Stop the engine; requests that are left end as aborted."""
        if self._manager is None or self._router is None:
            return
        if self._router.stopping:
            return
        self._router.stopping = True
        self._manager._wake_up_loop.set()
        await asyncio.to_thread(self._manager.stop, block=True, timeout=10.0, hard_stop=True)

    def _context_tokens(self, kv_tokens: int) -> int:
        """Return what model and cache can take; 0 while neither is known."""
        return min((limit for limit in (self._context_max, kv_tokens) if limit), default=0)

    def _measure_facts(self, scheduler: PolicyScheduler) -> EngineFacts:
        """Return the facts with the cache's true size, which is known once it is allocated."""
        kv_tokens = self._shape.kv_tokens or scheduler.blocks_total * scheduler.tokens_per_block
        step_tokens = self._shape.step_tokens
        sizes = describe_sizes(self._model, scheduler.cache, kv_tokens=kv_tokens, step_tokens=step_tokens)
        return replace(self._facts, context_tokens=self._context_tokens(kv_tokens), description=sizes)

    def _gauges(self, scheduler: PolicyScheduler) -> SchedulingGauges:
        held, swap = scheduler.held(), scheduler.swap
        return scheduling_gauges(
            self._admission,
            running={tier: requests for tier, (requests, _) in held.items()},
            blocks={tier: blocks for tier, (_, blocks) in held.items()},
            blocks_total=scheduler.blocks_total,
            pool_tokens=scheduler.blocks_total * scheduler.tokens_per_block,
            context_tokens=self._facts.context_tokens,
            swap_bytes_total=0.0 if swap is None else swap.total_bytes,
            swap_bytes_used=0.0 if swap is None else swap.used_bytes,
        )

    async def _calibrate(self, scheduler: PolicyScheduler) -> None:
        """Run prompts of several lengths, one at a time, and measure the copies."""
        calibration = Generation("", None, 0.0, None, (), {})
        for request, tokens in calibration_requests(self._facts.context_tokens, self._shape.step_tokens):
            with self._enter_request(request, tokens, calibration) as answer, contextlib.suppress(RefusedByPolicy):
                async for _ in answer.events:
                    pass
        await asyncio.to_thread(scheduler.calibrate, str(self._model.device.type))
        logger.info("calibrated", extra={"calibration": asdict(self._admission.calibration)})

    def _checked_ids(self, generation: Generation) -> list[int]:
        """Return the prompt's token ids; empty if the prompt is text. Raises EngineError for an unknown id."""
        ids = list(generation.prompt_ids or ())
        if not all(0 <= token < self._vocabulary for token in ids):
            raise EngineError("invalid_request", f"the model's token ids are from 0 to {self._vocabulary - 1}")
        return ids

    def _fit_request(self, request: WorkOrder, input_tokens: int) -> WorkOrder:
        """Return the request with a limit that fits into the context and the cache. Raises PromptTooLong."""
        limit = self._facts.context_tokens
        if self._scheduler is not None:
            blocks = self._admission.blocks_max(request.tier, self._scheduler.blocks_total)
            limit = min(limit, blocks * self._scheduler.tokens_per_block)
        return fit_order(request, input_tokens, limit)

    @contextmanager
    def _enter_request(
        self, request: WorkOrder, tokens: list[int], generation: Generation
    ) -> Iterator[GeneratedAnswer]:
        """Give the request's sequences to the engine thread, one for each choice; abort what is left of them."""
        if self._manager is None or self._router is None:
            raise EngineError("engine_stopped", "the engine is not running")
        numbers = range(request.choices)
        sampling = [self._sampling(request, generation, number) for number in numbers]
        answer = GeneratedAnswer(request, len(tokens))
        answer.sequences = [self._sequence(answer, generation, number) for number in numbers]
        new = {sequence.sequence_id: sequence for sequence in answer.sequences}
        if request.execution in self._answers or new.keys() & self._router.live.keys():
            raise EngineError("duplicate_request", f"request {request.execution} is here already")
        self._answers[request.execution] = answer
        self._router.live.update(new)
        try:
            for sequence_id, each in zip(new, sampling, strict=True):
                self._add(sequence_id, tokens, request.max_tokens, each)
            yield answer
        finally:
            del self._answers[request.execution]
            self._abort(answer)

    def _add(self, sequence_id: str, tokens: list[int], max_tokens: int, sampling: Sampling) -> None:
        if self._manager is None or self._router is None:
            raise EngineError("engine_stopped", "the engine is not running")
        accepted = self._manager.add_request(
            tokens, request_id=sequence_id, max_new_tokens=max_tokens, streaming=True, sampling=sampling
        )
        if accepted is None:
            del self._router.live[sequence_id]
            raise EngineError("engine_stopped", "the engine takes no more requests")

    def _abort(self, answer: GeneratedAnswer) -> None:
        """Abort the sequences that have not ended."""
        for sequence in answer.sequences:
            if self._router is not None and self._router.live.get(sequence.sequence_id) is sequence:
                self._manager.cancel_request(sequence.sequence_id)  # type: ignore[union-attr]

    def _sequence(self, answer: GeneratedAnswer, generation: Generation, choice: int) -> Sequence:
        sequence_id = name_sequence(answer.request, choice, answer.request.choices)
        has_tools = _offered_tools(generation.body, parses=self._text.has_tools)
        tools = ToolCallParser(blake2b(sequence_id.encode(), digest_size=12).hexdigest()) if has_tools else None
        stops = StopMatcher(generation.stop)
        return Sequence(
            answer,
            sequence_id,
            choice,
            self._text.detokenizer(),
            stops,
            tools,
            min_tokens=min_tokens_of(generation.body),
        )

    def _sampling(self, request: WorkOrder, generation: Generation, choice: int) -> Sampling:
        return sampling_of(
            generation.body,
            temperature=generation.temperature,
            seed=generation.seed,
            sequence_id=name_sequence(request, choice, request.choices),
            choice=choice,
            vocabulary=self._vocabulary,
        )


def _offered_tools(body: Mapping[str, Any], *, parses: bool) -> list[dict[str, Any]]:
    """Return the tools for the chat template, none for plain text. `parses`: the template knows tools.

    Raises EngineError for what this engine cannot do.
    """
    choice = body.get("tool_choice") or "auto"
    tools = body.get("tools") or []
    if not tools or choice == "none":
        return []
    if choice != "auto":
        raise EngineError("invalid_request", "this engine cannot force a call: `tool_choice` must be auto or none")
    if not parses:
        raise EngineError("invalid_request", "the chat template of this model knows no tools")
    return [*tools]


def _capabilities(text: Tokenizing) -> frozenset[str]:
    """Return what works with the model. Tools need a chat template that writes and reads calls."""
    tools = {Capability.TOOLS} if text.has_tools else set()
    return TEXT | _ALWAYS | tools


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    many = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in (*many, tokenizer.eos_token_id) if token is not None)
