"""The settings of our scheduler: the mapping "headgate" in vLLM's `additional_config`. Pure.

    vllm serve MODEL --scheduler-cls … --additional-config '{"headgate": {"policy": "tiered:vtc", "tiers": {…}}}'

They are read once, when the scheduler is made. A wrong one ends the start with one sentence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dispatcher.policies.tiers import TENANT_TIERS, TenantTier, Tier
from gpu_worker.policies.fairness.tiered import TieredQueue, make_queue
from gpu_worker.policies.plain_settings import read_settings

NAME = "headgate"
TENANTS_VARIABLE = "HEADGATE_TENANTS"
"""The path of the operator's file of tenants (tenants.py)."""
LOGGER_VARIABLE = "HEADGATE_STATS_LOGGER"
"""Set in the environment of an engine core if its reports will be taken (stats_logger.py)."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`policy`: a name of the registry. `tiers`: the fields of TierSettings.

    `applications`: the application of each tenant that has one, for a policy `wsc`.

    `locality`: within the tenant that is next, the request with the longest cached prefix goes first
    (policies/fairness/locality.py). `loaded_first`: within that tenant, a request with a loaded LoRA adapter goes
    first (policies/fairness/loaded_first.py). Both are also fields of `tiers`, where a worker sets them.

    `send_stats`: whether the scheduler reports to the server. None: if the server has loaded headgate's stat logger. A
    server that has not loaded it would fail on the reports.

    `trust_client_fields`: whether the `headgate_…` fields of a request are believed. Where clients reach the server
    themselves, one could name any tenant, weight and tier in them, so they are ignored. A headgate worker sets this to
    true: only the worker reaches its server, and its fields come from the gate, in a signed order. `LLM()` has no
    clients.

    `priority_tiers`: the tier of a request by its `priority` (vLLM's: lower is more urgent): for premium and standard
    the highest priority that has the tier; everything above is background. It needs `--scheduling-policy priority`. A
    client chooses its own priority, as in vLLM itself.

    Raises ValueError for settings that contradict each other.
    """

    policy: str = "tiered:vtc"
    tiers: Mapping[str, Any] = field(default_factory=dict)
    applications: Mapping[str, str] = field(default_factory=dict)
    send_stats: bool | None = None
    trust_client_fields: bool = False
    priority_tiers: Mapping[TenantTier, int] | None = None
    locality: bool = False
    loaded_first: bool = False

    def __post_init__(self) -> None:
        if (tiers := self.priority_tiers) is None:
            return
        if not self.has_tiers:
            raise ValueError(f"priority_tiers needs a policy with tiers, such as tiered:{self.policy}")
        if not tiers or Tier.BACKGROUND in tiers:
            raise ValueError("priority_tiers should have premium or standard or both; all above them is background")
        if [tiers[tier] for tier in TENANT_TIERS if tier in tiers] != sorted(set(tiers.values())):
            raise ValueError("priority_tiers should have a lower number for premium than for standard")

    @property
    def has_tiers(self) -> bool:
        return self.policy.startswith("tiered")

    def make_queue(self) -> TieredQueue:
        """Make the queue; a policy without tiers gets one tier. Raises ValueError, with one sentence."""
        orders = {"locality": self.locality, "loaded_first": self.loaded_first}
        given = {**self.tiers, **{name: True for name, is_on in orders.items() if is_on}}
        try:
            if self.has_tiers:
                queue = make_queue(self.policy, given, self.applications)
            else:
                make_queue(self.policy, given)  # refuse settings of tiers that it lacks
                tiers = {**given, "preemption": False, "shares": {}}
                queue = make_queue(f"tiered:{self.policy}", tiers, self.applications)
        except ValueError as error:
            raise ValueError(f"{NAME}: {error}") from None
        assert isinstance(queue, TieredQueue)  # noqa: S101 (by its name)
        return queue

    def tier_of(self, priority: int) -> Tier:
        """Return the tier of a priority; standard without `priority_tiers`."""
        if self.priority_tiers is None:
            return Tier.STANDARD
        found = (tier for tier in TENANT_TIERS if priority <= self.priority_tiers.get(tier, -float("inf")))
        return next(found, Tier.BACKGROUND)

    @property
    def expects_tenants(self) -> bool:
        """Whether the operator names tenants, so that a request without one is a mistake."""
        return TENANTS_VARIABLE in os.environ

    @property
    def sends_stats(self) -> bool:
        return LOGGER_VARIABLE in os.environ if self.send_stats is None else self.send_stats


def scheduler_settings(additional_config: object, scheduling_policy: str) -> SchedulerSettings:
    """Read the settings. `scheduling_policy`: vLLM's own. Raises ValueError, with one sentence for a person."""
    config = additional_config if isinstance(additional_config, Mapping) else {}
    if NAME not in config and (close := get_close_matches(NAME, map(str, config), 1, 0.8)):
        raise ValueError(f"additional_config has {close[0]!r}, which nothing reads; did you mean {NAME!r}?")
    settings = read_settings(SchedulerSettings, config.get(NAME, {}), NAME)
    if scheduling_policy == "priority" and settings.priority_tiers is None:
        raise ValueError(
            "headgate's scheduler would ignore --scheduling-policy priority: name the priorities of its tiers, as in"
            ' --additional-config \'{"headgate": {"priority_tiers": {"premium": -1, "standard": 0}}}\''
        )
    if scheduling_policy != "priority" and settings.priority_tiers is not None:
        raise ValueError("headgate.priority_tiers needs --scheduling-policy priority: otherwise priorities are ignored")
    return settings
