"""vLLM as a worker's engine: a process of its own for the model, with our scheduler in it (vllm/scheduler.py).

The core has its own process, so that the event loop here never waits for a step. The core writes its stats to a file
(vllm/reports.py). If the core dies, every request fails with `engine_failed`, and engines/supervised.py starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.generation import Generation, generation_of
from gpu_worker.engines.interface import (
    Dropped,
    EngineError,
    EngineEvent,
    EngineRequest,
    EngineStats,
    Finished,
    PromptTooLong,
    RefusedByPolicy,
    Started,
    Token,
)
from gpu_worker.engines.measured.calibration_requests import CALIBRATION_TENANT, calibration_requests
from gpu_worker.engines.models.tiny import model_folder
from gpu_worker.engines.models.tokenizing import Tokenizing, check_length
from gpu_worker.engines.stats_json import stats_from_json
from gpu_worker.engines.vllm.waiting_queue import ARGUMENT_PREFIX

logger = logging.getLogger("headgate.engine")

ENDED_PREFIX = "headgate:"
"""As in vllm/scheduler.py, which is imported in the core's process only."""
GIB = 1 << 30
CPU_BLOCK_TOKENS = 32
CPU_CACHE_GIB = "1"
NOTHING = EngineStats(0, 0, 0.0, {})


@dataclass(frozen=True, slots=True)
class VllmShape:
    """`batch`: sequences in a batch at most. `step_tokens`, `context_tokens`, `kv_tokens`: None leaves them to vLLM.
    `swap_bytes`: host memory for swapped KV. `calibrate`: measure the machine at the start."""

    batch: int = 64
    step_tokens: int | None = None
    context_tokens: int | None = None
    kv_tokens: int | None = None
    swap_bytes: int = 0
    gpu_memory: float = 0.9
    calibrate: bool = True


@dataclass(eq=False)
class VllmEngine:
    """`policy`, `tiers`: for the scheduler in the core's process, so the name and plain values."""

    folder: Path
    name: str
    policy: str = "tiered:vtc"
    tiers: Mapping[str, Any] = field(default_factory=dict)
    shape: VllmShape = field(default_factory=VllmShape)
    _llm: AsyncLLM | None = None
    _stats_file: Path | None = None

    @classmethod
    def load(
        cls, *, model: str | None, home: Path, policy: str, tiers: Mapping[str, Any], shape: VllmShape | None = None
    ) -> VllmEngine:
        """Find `model` as models/tiny.py's `model_folder` does. Raises what that raises."""
        folder, name = model_folder(model, home)
        return cls(folder, name, policy, tiers, shape or VllmShape())

    def __post_init__(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        self._text = Tokenizing(tokenizer)
        config = self._args().create_model_config()
        self.facts = self._text.facts(self.name, int(config.max_model_len))

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        generation = generation_of(request)
        tokens = await self._text.tokens(self._text.prompt(generation))
        check_length(len(tokens), request.max_tokens, self._tokens_max(request.tier))
        async for event in self._generate(request, tokens, generation):
            yield event

    async def abort(self, request_id: str) -> None:
        if self._llm is not None:
            with contextlib.suppress(EngineDeadError):
                await self._llm.abort(request_id)

    def stats(self) -> EngineStats:
        """Return the stats of at most a quarter of a second ago."""
        if self._stats_file is None:
            return NOTHING
        try:
            stats = stats_from_json(self._stats_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return NOTHING
        stats.tenants.pop(CALIBRATION_TENANT, None)
        return stats

    async def start(self) -> None:
        """Start. Raises RuntimeError if vLLM does not start."""
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        folder = Path(tempfile.mkdtemp(prefix="headgate-vllm-"))  # only this user can read it
        self._stats_file = folder / "stats.json"
        if current_platform.is_cpu():
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_CACHE_GIB)  # else it takes most of the memory
        # In a thread: a model takes minutes to load, and the worker must send heartbeats meanwhile.
        self._llm = await asyncio.to_thread(AsyncLLM.from_engine_args, self._args())
        if self.shape.calibrate:
            calibration = Generation("", None, 0.0, None, (), {})
            for request, tokens in calibration_requests(self.facts.context_tokens, self._step_tokens()):
                with contextlib.suppress(RefusedByPolicy):  # by a policy that limits requests
                    async for _ in self._generate(request, tokens, calibration):
                        pass

    async def stop(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown, 5.0)
        if self._stats_file is not None:
            shutil.rmtree(self._stats_file.parent, ignore_errors=True)

    async def _generate(
        self, request: EngineRequest, tokens: list[int], generation: Generation
    ) -> AsyncGenerator[EngineEvent, None]:
        if self._llm is None:
            raise EngineError("engine_stopped", "the engine is not running")
        prompt = TokensPrompt(
            prompt_token_ids=tokens, **({"cache_salt": request.cache_salt} if request.cache_salt else {})
        )
        yield Started(len(tokens))
        generated = 0
        try:
            async for output in self._llm.generate(prompt, _sampling(request, generation), request.request_id):
                (part,) = output.outputs
                generated += len(part.token_ids)
                if part.token_ids or part.text:
                    yield Token(part.text, generated)
                if output.finished:
                    yield Finished(_ended(part.finish_reason, part.stop_reason), len(tokens), generated)
                    return
        except EngineDeadError:
            raise EngineError("engine_failed", "the engine failed while it worked on this request") from None
        except EngineError:
            raise
        except Exception as error:  # vLLM's own, of this request alone; its text may hold the prompt
            logger.error("a request failed: %s", type(error).__name__, extra={"execution": request.request_id})
            raise EngineError("generation_failed", "the engine failed to generate for this request") from None

    def _args(self) -> AsyncEngineArgs:
        shape, on_cpu = self.shape, current_platform.is_cpu()
        block_tokens = CPU_BLOCK_TOKENS if on_cpu else 16
        transfer = KVTransferConfig(
            kv_connector="SwapConnector",
            kv_connector_module_path="gpu_worker.engines.vllm.swap",
            kv_role="kv_producer",
            kv_connector_extra_config={"swap_gib": shape.swap_bytes / GIB},
        )
        scheduler = "TierScheduler" if on_cpu else "AsyncTierScheduler"
        return AsyncEngineArgs(
            model=str(self.folder),
            served_model_name=self.name,
            dtype="float32" if on_cpu else "auto",
            enforce_eager=on_cpu,
            max_num_seqs=shape.batch,
            max_num_batched_tokens=shape.step_tokens,
            max_model_len=shape.context_tokens,
            block_size=block_tokens,
            num_gpu_blocks_override=None if shape.kv_tokens is None else -(-shape.kv_tokens // block_tokens) + 1,
            gpu_memory_utilization=shape.gpu_memory,
            enable_prefix_caching=True,
            disable_log_stats=True,
            trust_remote_code=False,
            scheduler_cls=f"gpu_worker.engines.vllm.scheduler.{scheduler}",
            kv_transfer_config=transfer if shape.swap_bytes else None,
            additional_config={
                "headgate": {
                    "policy": self.policy,
                    "tiers": dict(self.tiers),
                    "figures_file": None if self._stats_file is None else str(self._stats_file),
                }
            },
        )

    def _tokens_max(self, tier: Tier) -> int:
        """Return the most tokens of one request: the context, or the cache without its reserve."""
        reserve = float(self.tiers.get("premium_reserve", 0.0))
        if self.shape.kv_tokens is None or tier in (Tier.PREMIUM, Tier.SYSTEM):
            return self.facts.context_tokens
        return min(self.facts.context_tokens, math.floor((1 - reserve) * self.shape.kv_tokens))

    def _step_tokens(self) -> int:
        return self.shape.step_tokens or self.facts.context_tokens


def _sampling(request: EngineRequest, generation: Generation) -> SamplingParams:
    """Return vLLM's parameters, with the dispatcher's fields for the scheduler in the core's process."""
    fields: dict[str, Any] = {
        "tenant": request.tenant,
        "weight": request.weight,
        "tier": request.tier.value,
        "app": request.app,
        "stage": request.stage,
        "interaction": request.interaction,
    }
    if request.timeout_s < math.inf:
        fields["timeout_s"] = request.timeout_s
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=generation.temperature,
        seed=generation.seed,
        stop=list(generation.stop),
        output_kind=RequestOutputKind.DELTA,
        extra_args={ARGUMENT_PREFIX + name: value for name, value in fields.items()},
    )


def _ended(reason: str | None, stop_reason: object) -> str:
    """Return the reason. Raises Dropped, RefusedByPolicy or PromptTooLong if our scheduler ended the request for that.
    A tenant's own stop string can be any text."""
    by_scheduler = reason == "abort" and isinstance(stop_reason, str) and stop_reason.startswith(ENDED_PREFIX)
    why = str(stop_reason).removeprefix(ENDED_PREFIX) if by_scheduler else ""
    if why.startswith("preempted"):
        raise Dropped(exhausted=why == "preempted_too_often")
    if why == "refused":
        raise RefusedByPolicy
    if why == "too_large":
        raise PromptTooLong("the prompt and max_tokens need more of the cache than this tier can have")
    return "aborted" if reason not in ("stop", "length") else ("stop" if reason == "stop" else "length")
