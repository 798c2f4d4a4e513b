"""What waits and how fast it is served: the figures that a Retry-After is made of."""

from __future__ import annotations

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.service.slo_watch import WINDOW_S, Backlog

P, B = Tier.PREMIUM, Tier.BACKGROUND


def arrived(backlog: Backlog, name: str, tier: Tier = B, *, prompt: int = 100, most: int = 50) -> None:
    backlog.on_arrived(name, tier, most)
    backlog.on_started(name, prompt)


def test_what_has_no_token_yet_waits() -> None:
    backlog = Backlog()
    arrived(backlog, "r")
    arrived(backlog, "s", P)
    assert (backlog.waiting()[B], backlog.waiting()[P]) == (200.0, 200.0)
    backlog.on_generated("r", 1, 0.0)
    assert (backlog.waiting()[B], backlog.waiting()[P]) == (0.0, 200.0)
    backlog.on_left("s", whole=False)
    assert sum(backlog.waiting().values()) == 0.0


def test_a_request_without_output_is_its_prompt() -> None:
    backlog = Backlog()
    arrived(backlog, "embeddings", most=0)
    assert backlog.waiting()[B] == 100.0
    backlog.on_generated("embeddings", 0, 0.0)
    backlog.on_left("embeddings", whole=True)
    assert (backlog.used, backlog.service_per_s(0.5)) == (Backlog().used, 100.0)


def test_it_learns_how_much_of_max_tokens_is_used() -> None:
    backlog = Backlog()
    for number in range(10):
        arrived(backlog, f"{number}")
        backlog.on_generated(f"{number}", 10, 0.0)
        backlog.on_left(f"{number}", whole=True)
    arrived(backlog, "gone")
    backlog.on_generated("gone", 50, 0.0)
    backlog.on_left("gone", whole=False)
    arrived(backlog, "r")
    assert backlog.waiting()[B] == pytest.approx(100 + 2 * 10)


def test_the_rate_is_of_the_window() -> None:
    backlog = Backlog()
    assert backlog.service_per_s(0.0) == 0.0
    for second in range(100):
        arrived(backlog, f"{second}")
        backlog.on_generated(f"{second}", 50, float(second))
    assert backlog.service_per_s(99.0) == pytest.approx(200.0, rel=0.05)
    assert backlog.service_per_s(99.0 + 2 * WINDOW_S) == 0.0


def test_a_lull_does_not_make_it_slow() -> None:
    backlog = Backlog()
    for second in (0, 1, 2, 20, 21):
        arrived(backlog, f"{second}")
        backlog.on_generated(f"{second}", 50, float(second))
    assert backlog.service_per_s(22.0) == 200.0


def test_a_token_is_served_once() -> None:
    backlog = Backlog()
    arrived(backlog, "r")
    for tokens in (1, 2, 2, 1, 5):
        backlog.on_generated("r", tokens, 0.5)
    assert backlog.service_per_s(0.5) == 100 + 2 * 5


def test_a_request_without_output_teaches_nothing() -> None:
    """An embeddings request has no output tokens, and may have none."""
    backlog = Backlog()
    arrived(backlog, "embeddings", most=0)
    backlog.on_left("embeddings", whole=True)
    assert backlog.used == 1.0
