"""Which simulated engine a profile describes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from dispatcher.policies.service import ServiceFunction
from gpu_worker.policies.queue_policy import QueuePolicy, make_policy
from gpu_worker.policies.tier_settings import TierSettings
from gpu_worker.policies.tiered import TieredQueue
from headgate.simulator.chunked import ChunkedEngine
from headgate.simulator.engine import SimulatedEngine
from headgate.simulator.engine_base import Engine, Jitter, Observer
from headgate.simulator.profile import EngineProfile


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


def make_tiered(name: str, settings: TierSettings, service: ServiceFunction, random: Random) -> QueuePolicy:
    """As make_policy(), with these settings where the policy has tiers. Raises ValueError."""
    policy = make_policy(name, service, random=random)
    if not isinstance(policy, TieredQueue):
        return policy
    inner = name.partition(":")[2] or "vtc"
    return TieredQueue(partial(make_policy, inner, service, random=random), settings, service)
