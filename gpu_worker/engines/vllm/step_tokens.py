"""vLLM's tokens of the next step, as the pure rule (gpu_worker/policies/step_tokens.py) counts them."""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.step_tokens import Prefill, StepTokens


def step_tokens_of(scheduler: Any, turn: Tier | None) -> StepTokens:
    """Return the tokens of the running requests, as vLLM will give them out: in their order, as far as they reach."""
    prefills: list[Prefill] = []
    fixed: dict[str, int] = {}
    for request in scheduler.running:
        tokens, name = _tokens_of(scheduler, request), request.request_id
        if not request.is_prefill_chunk or not (least_tokens(request) == 0 or may_shorten(scheduler, request)):
            fixed[name] = tokens
        else:
            fixed[name] = least_tokens(request)
            tier = scheduler.queue_policy.tier_state(name).tier
            prefills.append(Prefill(name, tier, tokens - fixed[name]))
    return StepTokens(int(scheduler.max_num_scheduled_tokens), prefills, turn, fixed)


def decoding_tiers(scheduler: Any) -> set[Tier]:
    """Return the tiers of the running requests that decode."""
    tier_state = scheduler.queue_policy.tier_state
    return {tier_state(request.request_id).tier for request in scheduler.running if not request.is_prefill_chunk}


def least_tokens(request: Request) -> int:
    """Return the tokens that a running prompt gets in any step. One with an adapter gets one: vLLM counts the adapters
    of the requests in the step, and ends if those of all running requests are ever more than it has room for."""
    return 0 if request.lora_request is None else 1


def may_shorten(scheduler: Any, request: Request) -> bool:
    """Return whether a part of this prompt may have any length: vLLM has not bound it to images or whole blocks."""
    return not (request.has_encoder_inputs or scheduler.need_mamba_block_aligned_split)


def _tokens_of(scheduler: Any, request: Request) -> int:
    """Return the tokens that a running request takes in this step if the budget allows."""
    tokens = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    most = scheduler.scheduler_config.long_prefill_token_threshold
    return int(min(tokens, most) if most else tokens)
