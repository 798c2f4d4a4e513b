"""A whole vLLM in this process with our scheduler, driven one step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.vllm.lora import RANK
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown
from vllm.lora.request import LoRARequest

BLOCK_TOKENS = 32
SWAP_GIB = 0.02


@dataclass
class Seen:
    """The output of one request; steps are counted from the engine's start."""

    added_step: int
    first_step: int | None = None
    last_step: int | None = None
    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    stop_reason: str | None = None
    cached_tokens: int | None = None

    @property
    def steps_to_first_token(self) -> int:
        assert self.first_step is not None, "it got no token"
        return self.first_step - self.added_step


class VllmDriver:
    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.steps = 0
        self.seen: dict[str, Seen] = {}

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def add(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int,
        *,
        salt: str | None = None,
        adapter: LoRARequest | None = None,
        **fields: object,
    ) -> None:
        """Add a request. `fields`: the dispatcher's (tenant, tier, weight, …)."""
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args={f"headgate_{key}": value for key, value in fields.items()},
        )
        request: dict[str, Any] = {"prompt_token_ids": prompt}
        if salt is not None:
            request["cache_salt"] = salt
        self.llm.llm_engine.add_request(name, request, parameters, lora_request=adapter)
        self.seen[name] = Seen(self.steps)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.steps += 1
            for output in self.llm.llm_engine.step():
                self._note(output)

    def run(self, steps_max: int = 2000) -> None:
        while self.llm.llm_engine.has_unfinished_requests():
            self.step()
            assert self.steps < steps_max, "the requests never end"

    def abort(self, name: str) -> None:
        self.llm.llm_engine.abort_request([name])

    def tokens(self, name: str) -> list[int]:
        return self.seen[name].tokens

    def _note(self, output: Any) -> None:
        seen = self.seen[output.request_id]
        completion = output.outputs[0]
        if completion.token_ids and seen.first_step is None:
            seen.first_step = self.steps
        seen.tokens = list(completion.token_ids)
        if output.num_cached_tokens is not None:
            seen.cached_tokens = output.num_cached_tokens
        if output.finished:
            seen.last_step, seen.reason, seen.stop_reason = self.steps, completion.finish_reason, completion.stop_reason


def swap_transfer(swap_gib: float) -> dict[str, Any]:
    """Return the configuration of our connector."""
    return {
        "kv_connector": "SwapConnector",
        "kv_connector_module_path": "gpu_worker.engines.vllm.swap",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"swap_gib": swap_gib},
    }


@contextmanager
def vllm_driver(
    model: Path,
    *,
    blocks: int = 12,
    batch: int = 4,
    step_tokens: int = 512,
    prefix_caching: bool = False,
    swap_gib: float | None = None,
    transfer: KVTransferConfig | None = None,
    scheduler: str | type = "gpu_worker.engines.vllm.scheduler.TierScheduler",
    policy: str = "tiered:vtc",
    send_stats: bool = False,
    speculative: dict[str, Any] | None = None,
    ranks: int = 1,
    adapters: tuple[int, int] | None = None,
    **tiers: object,
) -> Iterator[VllmDriver]:
    """Run a vLLM. `blocks`: KV blocks of BLOCK_TOKENS; vLLM keeps one. `swap_gib`: None runs without the swap
    connector. `transfer`: other connectors. `adapters`: the most of them in a batch, and in memory."""
    if swap_gib is not None:
        transfer = KVTransferConfig(**swap_transfer(swap_gib))
    llm = LLM(
        str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=320,
        block_size=BLOCK_TOKENS,
        num_gpu_blocks_override=blocks,
        max_num_batched_tokens=step_tokens,
        max_num_seqs=batch,
        enable_prefix_caching=prefix_caching,
        tensor_parallel_size=ranks,
        distributed_executor_backend="uni" if ranks == 1 else "mp",
        scheduler_cls=scheduler,
        kv_transfer_config=transfer,
        speculative_config=speculative,
        enable_lora=adapters is not None,
        **(
            {}
            if adapters is None
            else dict(zip(("max_loras", "max_cpu_loras"), adapters, strict=True), max_lora_rank=RANK)
        ),
        additional_config={
            "headgate": {"policy": policy, "tiers": tiers, "send_stats": send_stats, "trust_client_fields": True}
        },
    )
    try:
        yield VllmDriver(llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        ensure_kv_transfer_shutdown()
        cleanup_dist_env_and_memory()
