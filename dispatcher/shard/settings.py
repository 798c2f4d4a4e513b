"""The settings of a shard. All processes of a pool must use the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from dispatcher.policies.bounds import BoundedSettings, Bounds, Part, check_bounds
from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders.interface import DEFAULT_ORDER
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.service import (
    ADAPTER_LOAD_TOKENS,
    CACHED_FRACTION,
    WEIGHTED_TOKENS,
    ServiceFunction,
    cache_discount,
)
from dispatcher.policies.share_bounds import COST_MAX
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.policies.tiers import SHARES, TENANT_TIERS, TierName

SATURATED = 0.9
"""From this share of its KV blocks in use on, a worker counts as saturated. (FairServe gives no figure.)"""
SWAP_CHARGE = 1.0
SLACK = 4096.0


@dataclass(frozen=True, slots=True)
class TierFloors(BoundedSettings):
    """Tiers at the gate: premium before standard before background, each with a floor (policies/tiers.py).

    `shares`: the fraction of all dispatched service that a tier receives at least while it has waiting calls; 0
    guarantees nothing. `slack`: service units that a tier may be behind its share before it goes first.
    Raises ValueError.
    """

    shares: Mapping[TierName, Part] = field(
        default_factory=lambda: {tier.value: share for tier, share in SHARES.items()}
    )
    slack: Annotated[float, Bounds(above=0, high=COST_MAX)] = SLACK

    def __post_init__(self) -> None:
        check_bounds(self)
        if sum(self.shares.values()) > 1 + 1e-9:
            raise ValueError(f"the shares of {', '.join(TENANT_TIERS)} add up to at most 1")


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """The settings of a shard. Times are in seconds, `lead_max` in service units for a weight of 1 (clocks.py)."""

    order: str = DEFAULT_ORDER
    lead_max: float = LEAD_MAX
    service: ServiceFunction = WEIGHTED_TOKENS
    """The costs of input and output tokens (policies/service.py)."""
    cached_fraction: float = CACHED_FRACTION
    """The price of a cached input token, divided by that of a computed one."""
    adapter_load_tokens: int = ADAPTER_LOAD_TOKENS
    """Input tokens that the load of a LoRA adapter is charged as, to the tenant of the call that an engine loaded it
    for."""
    swap_charge: float = SWAP_CHARGE
    """The part of what a worker could serve during a swap which the tenants that need the swap pay in the surplus
    (swapping.py); 0: none pays."""
    tiers: TierFloors | None = None
    """None: the gate ignores tiers."""
    slack: Slack | None = None
    """How due times matter to the order (slack_index.py); None: they do not."""
    throttling: ThrottleLimits | None = None
    """FairServe's limits, in requests of a tenant and of an application (throttling.py); None: no throttling."""
    refuses_late: bool = True
    """A call is refused if nine of ten such calls would still wait at their deadline."""
    announces_waits: bool = True
    """False: nothing is learned of waiting times, so none is announced, and no call is refused for its deadline. For
    simulations that read none of them."""
    heartbeat_s: float = 1.0
    """A worker reports so often: half of this on average until it learns of an order, and until it tells of its end."""
    saturated: float = SATURATED
    rest_s: float = 5.0
    """For this time a worker gets no work after too many of its attempts failed."""
    process_kept_s: float = 600.0
    """For this time a process without calls is remembered, so that its repeated commands are recognized."""
    prefix_lead: float = 0.0
    """The part of its slots by which a worker may be fuller than the least loaded one, and still get a call because it
    had the beginning of its prompt last. 0: it gets none for that."""
    is_sharded: bool = False
    """True if the pool has other shards, with which this one shares the workers' slots (policies/slot_shares.py)."""
    interaction_kept_s: float = 600.0
    """For this time after its last call was accepted, an interaction counts as under way."""

    def charge(
        self, input_tokens: int, output_tokens: int, cached_tokens: int, *, adapter_loaded: bool = False
    ) -> float:
        """Return the service of a call that has ended, with `cached_tokens` of its input from a prefix cache.

        The worker reports with the end whether an adapter was loaded (gpu_worker/service/executions/adapter_loads.py
        says why the gate does not estimate it). The service is in the log, so the fold needs no rule for it.
        """
        service = self.service(input_tokens, output_tokens)
        if adapter_loaded:
            service += self.service(self.adapter_load_tokens, 0) - self.service(0, 0)
        return service - cache_discount(self.service, cached_tokens, self.cached_fraction) if cached_tokens else service
