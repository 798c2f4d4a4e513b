"""The requests that an engine runs at its start to measure how long prompts and tokens take on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import WorkOrder, own_order

CALIBRATION_TENANT = "headgate-calibration"
OUTPUT_TOKENS = 8
TIMES = 3
"""Requests of each length. The first one is slower than the others: the median counts."""

STEPS_MAX = 4
"""Steps of the longest prompt: a prompt in pieces takes another time than a whole one."""


def calibration_lengths(context_tokens: int, step_tokens: int) -> list[int]:
    """Return the lengths of prompts, each once. One step computes the shorter ones whole."""
    longest = max(1, min(STEPS_MAX * step_tokens, context_tokens // 2))
    return sorted({max(1, longest // part) for part in (16, 8, 4, 2, 1)})


def calibration_requests(context_tokens: int, step_tokens: int) -> Iterator[tuple[WorkOrder, list[int]]]:
    """Yield requests with the tokens of their prompts, to be run one at a time. The first tokens of all prompts differ,
    so none is in a prefix cache. The longest prompts come first: a cold start adds the smallest part to them."""
    for number, tokens in enumerate(reversed(calibration_lengths(context_tokens, step_tokens))):
        for repeat in range(TIMES):
            first = 7 + TIMES * number + repeat
            request = own_order(
                f"{CALIBRATION_TENANT}-{number}-{repeat}",
                CALIBRATION_TENANT,
                {"temperature": 0.0},
                OUTPUT_TOKENS,
                tier=Tier.SYSTEM,
            )
            yield request, [first, *(7 + place % 200 for place in range(tokens - 1))]
