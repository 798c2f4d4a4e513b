"""Which simulated engine a profile describes."""

from __future__ import annotations

from collections.abc import Callable

from gpu_worker.policies.fairness.interface import QueuePolicy
from headgate.simulator.engines.chunked_prefill import ChunkedEngine
from headgate.simulator.engines.interface import Engine, Jitter, Observer
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.engines.separate_prefill import SimulatedEngine


def make_engine(
    profile: EngineProfile,
    policy: QueuePolicy,
    *,
    observer: Observer | None = None,
    jitter: Jitter | None = None,
    stopwatch: Callable[[], float] | None = None,
) -> Engine:
    """With prompts in chunks where the profile says so, else in steps of their own."""
    kind = SimulatedEngine if profile.chunk_tokens is None else ChunkedEngine
    return kind(profile, policy, observer=observer, jitter=jitter, stopwatch=stopwatch)
