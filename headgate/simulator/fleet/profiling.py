"""What a planner knows in advance: the mean lengths of each model's requests, and the rate of each full worker.

Source: QLM (SoCC 2024), section 6: token distributions come from the history of requests, and the rate is profiled for
each model and GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.simulator.engines.interface import SimulatedEngine
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

WAVES = 4


@dataclass(slots=True)
class ModelProfile:
    """The requests of one model. Sums of tokens; `output_squares`: of the squares of the outputs."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    output_squares: int = 0

    def add(self, input_tokens: int, output_tokens: int) -> None:
        self.requests += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.output_squares += output_tokens**2

    @property
    def input_mean(self) -> float:
        return self.input_tokens / self.requests

    @property
    def output_mean(self) -> float:
        return self.output_tokens / self.requests

    @property
    def service(self) -> float:
        """Service units of all requests."""
        return WEIGHTED_TOKENS(self.input_tokens, self.output_tokens)


def profiles_of(arrivals: Iterable[Arrival], default_model: str) -> dict[str, ModelProfile]:
    """Return the profile of each model, in the order of their first requests."""
    found: dict[str, ModelProfile] = {}
    for arrival in arrivals:
        found.setdefault(arrival.model or default_model, ModelProfile()).add(
            arrival.input_tokens, arrival.output_tokens
        )
    return found


def full_rate_per_s(engine: SimulatedEngine, slots: int, profile: ModelProfile) -> float:
    """Return the service units per second of a new engine whose slots are full of requests of the mean lengths.

    Lengths of which not even two requests fit at once are cut.
    """
    most = engine.profile.pool_tokens // 4
    lengths = min(most, max(1, round(profile.input_mean))), min(most, max(1, round(profile.output_mean)))
    left, served = WAVES * slots, 0
    for number in range(slots):
        engine.submit(SimRequest(str(number), Arrival(0.0, "", *lengths), 0.0), 0.0)
    while served < left:
        for _ in engine.advance(inf):
            served += 1
            if served + slots <= left:
                engine.submit(SimRequest(f"more {served}", Arrival(0.0, "", *lengths), engine.now_s), engine.now_s)
    return served * WEIGHTED_TOKENS(*lengths) / engine.now_s
