"""What an engine measures itself with at its start: requests that show how long prompts and tokens take on this
machine, and an English text whose tokens are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import WorkOrder, own_order

CALIBRATION_TENANT = "headgate-calibration"
_OUTPUT_TOKENS = 8
_TIMES = 3
"""Requests of each length. The first one is slower than the others: the median counts."""

_STEPS_MAX = 4
"""Steps of the longest prompt: a prompt in pieces takes another time than a whole one."""


def _calibration_lengths(context_tokens: int, step_tokens: int) -> list[int]:
    """Return the lengths of prompts, each once. One step computes the shorter ones whole."""
    longest = max(1, min(_STEPS_MAX * step_tokens, context_tokens // 2))
    return sorted({max(1, longest // part) for part in (16, 8, 4, 2, 1)})


def calibration_requests(context_tokens: int, step_tokens: int) -> Iterator[tuple[WorkOrder, list[int]]]:
    """Yield requests with the tokens of their prompts, to be run one at a time. The first tokens of all prompts differ,
    so none is in a prefix cache. The longest prompts come first: a cold start adds the smallest part to them."""
    for number, tokens in enumerate(reversed(_calibration_lengths(context_tokens, step_tokens))):
        for repeat in range(_TIMES):
            first = 7 + _TIMES * number + repeat
            request = own_order(
                f"{CALIBRATION_TENANT}-{number}-{repeat}",
                CALIBRATION_TENANT,
                {"temperature": 0.0},
                _OUTPUT_TOKENS,
                tier=Tier.SYSTEM,
            )
            yield request, [first, *(7 + place % 200 for place in range(tokens - 1))]


TRAINING_TEXT = """\
A village below the dam shares one channel of water. Each field is owed a part of the flow, and the keeper of the gate
opens it field by field, so that nobody takes what another was promised. When a neighbour sleeps, the others may use
his water, for a channel that runs empty serves no one; when he wakes, his share is his again at once, and he is not
asked to pay for the hours that others enjoyed. A large farm with many hands may stand at the gate all day and ask for
more than the channel can carry. It receives its part, and it waits for the rest. The small garden that asks for a
single bucket is served almost before it has asked, because its turn is always near. This is what fairness means here:
not that everyone receives the same, but that everyone can count on what is due, whatever the others do. The keeper
writes every bucket into a book. Water that was poured is charged when it is poured, neither before nor after, and a
bucket that was spilled on the way is not charged twice. At the end of the season the book is read aloud, and the
numbers add up. The same rules hold for machines that read and write words for many people at the same time. Prompts
arrive in bursts, answers differ in length by a thousand times, and nobody knows beforehand how long an answer will
be. So the work is measured by what was really done: one unit for each word read, two units for each word written.
Those who were served least go next. Questions are answered in order, requests wait in line, tokens stream one after
another, and the service of each tenant is counted.
"""
