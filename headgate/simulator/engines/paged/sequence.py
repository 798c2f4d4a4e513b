"""A request in a paged engine: how far it has come, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_worker.policies.preemption.victims import Resident
from headgate.simulator.requests import SimRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """`prompt`: with what the server adds; `output`: tokens after which it ends, at least one. `blocks_most`: what it
    may come to hold at most. `left`: of its tokens so far, those to be computed before it decodes. `lost`: computed
    once, and thrown away. `ready_s`: when its copy back has come. `swapped`: its KV is in host memory."""

    request: SimRequest
    prompt: int
    output: int
    blocks_most: int
    left: int
    tokens: int = 0
    blocks: int = 0
    preemptions: int = 0
    protected: bool = False
    rank: float = 0.0
    lost: int = 0
    swapped: bool = False
    ready_s: float = 0.0

    @property
    def length(self) -> int:
        """Prompt and generated."""
        return self.prompt + self.tokens

    @property
    def held(self) -> int:
        """Tokens in the KV cache. The last generated one is counted before the step that computes it, as the other
        engines do."""
        return self.prompt + self.tokens - self.left

    @property
    def ended(self) -> bool:
        return self.tokens >= self.output

    def resident(self) -> Resident:
        return Resident(
            self.request.request_id, self.request.tier, self.blocks, self.held, self.tokens, self.preemptions
        )
