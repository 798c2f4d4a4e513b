"""The cached and the reasoning tokens that servers report, under the names that they use, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_worker.engines.interface import Finished, own_order
from gpu_worker.policies.fairness.accounting import TenantService
from tests.support.worker.openai_server import DONE, FakeServer, chunk, data, engine_of, last, outcome, says
from tests.support.world.virtual_time import run

PROMPT = 100


def ended(**details: Any) -> tuple[Finished, TenantService]:
    """Return the end of an answer of 3 tokens with this in its usage, and what the engine's policy charged."""
    usage = {"prompt_tokens": PROMPT, "completion_tokens": 3, **details}
    server = FakeServer()
    server.script = says(chunk("a b c"), chunk(reason="stop"), data({"choices": [], "usage": usage}), DONE)

    async def story() -> tuple[Finished, TenantService]:
        async with engine_of(server) as engine:
            request = own_order("a", "tenant", {"messages": [{"role": "user", "content": "hello"}]}, 10)
            events, error = await outcome(engine, request)
            assert error is None
            return last(events), engine.stats().tenants["tenant"]

    return run(story())


@pytest.mark.parametrize(
    ("details", "cached", "reasoning"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 80}}, 80, 0),
        ({"prompt_tokens_details": {"cached_tokens": 80.0, "audio_tokens": 0}}, 80, 0),
        ({"input_tokens_details": {"cached_tokens": 80}, "output_tokens_details": {"reasoning_tokens": 2}}, 80, 2),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, 64, 0),
        ({"cache_read_input_tokens": 50, "cache_creation_input_tokens": 0}, 50, 0),
        ({"cached_tokens": 7, "prompt_tokens_details": None}, 7, 0),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, 0, 3),
        ({"prompt_tokens_details": {}}, 0, 0),
    ],
)
def test_each_name_is_read(details: dict[str, Any], cached: int, reasoning: int) -> None:
    finished, _ = ended(**details)
    assert finished == Finished("stop", PROMPT, 3, (), cached, reasoning)


@pytest.mark.parametrize("count", [PROMPT + 1, -1, True, "80", 80.5, [80], None])
def test_a_count_that_cannot_be_true_is_ignored(count: object) -> None:
    finished, _ = ended(
        prompt_tokens_details={"cached_tokens": count}, completion_tokens_details={"reasoning_tokens": count}
    )
    assert (finished.cached_tokens, finished.reasoning_tokens) == (0, 0)


def test_the_engines_policy_charges_a_cached_token_a_tenth() -> None:
    _, plain = ended()
    _, cached = ended(prompt_tokens_details={"cached_tokens": 80})
    assert plain.service == PROMPT + 2 * 3
    assert cached.service == pytest.approx(plain.service - 0.9 * 80)
