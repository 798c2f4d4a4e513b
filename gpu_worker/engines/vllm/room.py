"""Fast checks of the room in vLLM's next step, without a budget: most steps have room, or no slot."""

from __future__ import annotations

from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.request import Request


def has_slot(scheduler: Any) -> bool:
    """Return whether vLLM admits one more request: its own test."""
    taken = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
    return bool(taken < scheduler.max_num_active_reqs)


def may_lack_room(scheduler: Any, request: Request, kept_free: int = 0) -> bool:
    """Return False if a waiting request certainly has room in this step and leaves `kept_free` blocks free.

    Holds only while no running request computes its prompt: then each takes at most one block of each kind of cache,
    and one more for each block of draft tokens.
    """
    if request.has_encoder_inputs or scheduler.deferred_frees:
        return True
    manager = scheduler.kv_cache_manager
    free = manager.block_pool.get_num_free_blocks() - manager.watermark_blocks - kept_free
    for kind in manager.coordinator.single_type_managers:
        grown = len(scheduler.running) * (1 + cdiv(scheduler.num_lookahead_tokens, kind.block_size))
        free -= cdiv(request.num_tokens, kind.block_size) + grown
    return bool(free < 0)
