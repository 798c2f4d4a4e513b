"""The choice of the simulated engine that runs a profile."""

from __future__ import annotations

from collections.abc import Callable

from gpu_worker.policies.fairness.interface import QueuePolicy
from headgate.simulator.engines.chunked_prefill import ChunkedPrefillEngine
from headgate.simulator.engines.interface import Jitter, Observer, SimulatedEngine
from headgate.simulator.engines.paged import PagedEngine
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine


def make_engine(
    profile: EngineProfile,
    policy: QueuePolicy,
    *,
    paged: bool = False,
    observer: Observer | None = None,
    jitter: Jitter | None = None,
    stopwatch: Callable[[], float] | None = None,
    loaded_first: bool = False,
) -> SimulatedEngine:
    """Make the paged engine, or else the engine for the profile's prefill: in chunks, or in steps of its own. A profile
    with places for adapters is always the paged engine's."""
    unpaged = SeparatePrefillEngine if profile.chunk_tokens is None else ChunkedPrefillEngine
    kind = PagedEngine if paged or profile.max_loras is not None else unpaged
    return kind(profile, policy, observer=observer, jitter=jitter, stopwatch=stopwatch, loaded_first=loaded_first)
