"""A logits processor that makes each step of vLLM take 20 ms more, in which the model's process uses no CPU time.

The tiny model does 300 steps a second. On a busy machine vLLM's server then falls behind its own engine: a client sees
the first token, and the engine sees the next request, when all tokens are generated already. A real model leaves the
server its time between two steps; so does this.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor

STEP_S = 0.02
ARGUMENTS = ("--logits-processors", f"{__name__}:SlowSteps")


class SlowSteps(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, *_configuration: Any) -> None:
        """vLLM gives its configuration, the device, and whether memory is pinned."""

    def apply(self, logits: Any) -> Any:
        time.sleep(STEP_S)
        return logits

    def is_argmax_invariant(self) -> bool:
        """False: vLLM leaves out the others if all requests are greedy."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Nothing depends on the batch."""
