"""vLLM's tokens of the next step, as the pure rule (gpu_worker/policies/step_tokens.py) counts them."""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.step_tokens import Prefill, StepTokens


def step_tokens_of(scheduler: Any, turn: Tier | None) -> StepTokens:
    """Return the tokens of the running requests, as vLLM will give them out: in their order, as far as they reach."""
    prefills: list[Prefill] = []
    decodes: dict[str, int] = {}
    for request in scheduler.running:
        tokens = _tokens_of(scheduler, request)
        if request.is_prefill_chunk:
            tier = scheduler.queue_policy.tier_state(request.request_id).tier
            prefills.append(Prefill(request.request_id, tier, tokens))
        else:
            decodes[request.request_id] = tokens
    return StepTokens(int(scheduler.max_num_scheduled_tokens), prefills, turn, decodes)


def _tokens_of(scheduler: Any, request: Request) -> int:
    """Return the tokens that a running request takes in this step if the budget allows."""
    tokens = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    most = scheduler.scheduler_config.long_prefill_token_threshold
    return int(min(tokens, most) if most else tokens)
