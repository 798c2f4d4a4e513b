"""What is asked of an engine at its start, so that its steps tell how long prompts and tokens take here."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineRequest

CALIBRATION_TENANT = "headgate-calibration"
OUTPUT_TOKENS = 8
TIMES = 3
"""The first of a length is slower than those after it: the median counts."""

STEPS_MAX = 4
"""Of the longest prompt: pieces cost otherwise than a whole."""


def calibration_lengths(context_tokens: int, step_tokens: int) -> list[int]:
    """Of prompts, some of which one step computes whole, none twice."""
    longest = max(1, min(STEPS_MAX * step_tokens, context_tokens // 2))
    return sorted({max(1, longest // part) for part in (16, 8, 4, 2, 1)})


def calibration_requests(context_tokens: int, step_tokens: int) -> Iterator[tuple[EngineRequest, list[int]]]:
    """To be asked one at a time: the requests, and the tokens of their prompts, no two alike in their first. The
    longest first: what a cold start adds is the least part of that."""
    for number, tokens in enumerate(reversed(calibration_lengths(context_tokens, step_tokens))):
        for again in range(TIMES):
            first = 7 + TIMES * number + again
            asked = EngineRequest(
                f"{CALIBRATION_TENANT}-{number}-{again}",
                CALIBRATION_TENANT,
                "",
                OUTPUT_TOKENS,
                temperature=0.0,
                tier=Tier.SYSTEM,
            )
            yield asked, [first, *(7 + place % 200 for place in range(tokens - 1))]
