"""A request in the paged model: its length, its progress, and the KV blocks that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.preemption import Resident


@dataclass(slots=True, eq=False)
class PagedSequence:
    """`prompt`: prompt tokens, with those that the server adds. `output`: tokens after which the sequence ends, at
    least 1. `blocks_most`: the most blocks that it may come to hold. `left`: tokens of prompt and output so far that
    must be computed before the sequence decodes.

    `tokens`: output tokens so far. `rank`, `protected`: the policy's rank at admission, and whether it may be evicted.
    `lost`: computed tokens that its eviction threw away; `predicted_s`: what computing them again was predicted to
    take, None where the engine evicted natively. `swap_bytes`: its KV in host memory. `ready_s`: when the copy back
    ends.
    """

    request: QueueRequest
    prompt: int
    output: int
    blocks_most: int
    left: int
    tokens: int = 0
    blocks: int = 0
    preemptions: int = 0
    exhausted: bool = False
    protected: bool = False
    rank: float = 0.0
    lost: int = 0
    predicted_s: float | None = None
    swap_bytes: float = 0.0
    ready_s: float = 0.0

    @property
    def length(self) -> int:
        """Prompt and output tokens so far."""
        return self.prompt + self.tokens

    @property
    def held(self) -> int:
        """Tokens in the KV cache. The last output token counts before the step that computes it, as in the other
        engines."""
        return self.prompt + self.tokens - self.left

    @property
    def ended(self) -> bool:
        return self.tokens >= self.output

    def resident(self) -> Resident:
        return Resident(
            self.request.request_id, self.request.tier, self.blocks, self.held, self.tokens, self.preemptions
        )
