"""Bar 3: each process dies before and after each of its requests to the store, and everything comes to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.world.storm.simulation import run
from tests.support.world.storm.weather import Weather, draw

STEPS_MAX = 60
EVERY = 3
"""One in so many steps, with another seed each: all steps together are run by more seeds."""


def calm(seed: int) -> Weather:
    """Return a weather in which nothing goes wrong but what the test does."""
    return replace(
        draw(seed), mild=True, fronts=2, gates=2, workers=2, calls=8, trouble_s=8.0, durable=0.5, kills=0.0,
        store_fails=0.0, store_pause=0.0, store_gone=0.0, crash=0.0, pauses=0.0, cuts=0.0, jumps=0.0, skew_s=0.0,
        tears=0.0, expiry=False, engine_fails=0.0, duplicates=0.0, leaderless=False,
    )  # fmt: skip


@pytest.mark.parametrize("host", ["g0", "f0", "w0"])
def test_a_process_dies_at_each_request(host: str) -> None:
    for step in range(1, STEPS_MAX, EVERY):
        outcome = run(calm(step), crash_at={host: step})
        assert not outcome.violations, f"{host} dies at step {step}: {outcome.violations[0]}"
