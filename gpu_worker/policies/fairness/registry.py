"""Queue policies by the names of the command line: `fcfs`, `rpm:60`, `drr:512`, …

A policy's file enters it here; what stands after the colon is the policy's own to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, cast

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction

if TYPE_CHECKING:
    from gpu_worker.policies.fairness.interface import QueuePolicy
    from gpu_worker.policies.tiers.settings import TierSettings

MODULES = (
    *(f"fairness.{name}" for name in ("drr", "fcfs", "lcf", "rpm", "vtc", "vtc_capped", "vtc_predicted", "wsc")),
    "tiers.tiered",
)
"""Modules of gpu_worker.policies that register policies; imported when the first policy is requested."""

COUNT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What a policy is made of. `parameter`: what stands after the colon, "" for nothing. `tiers`: for those that have
    tiers; None leaves them as they are by default."""

    name: str
    service: ServiceFunction
    parameter: str
    random: Random
    tiers: TierSettings | None = None

    def number(self, *, above: float = 0.0, most: float = math.inf) -> float:
        """The parameter as a number, above < number <= most. Raises ValueError."""
        try:
            number = float(self.parameter)
        except ValueError:
            number = math.nan
        if above < number <= most and number < math.inf:
            return number
        limits = f"a number above {above:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise ValueError(f"queue policy {self.name!r} needs {limits} after the colon, not {self.parameter!r}")

    def count(self) -> int:
        """The parameter as a whole number, at least 1. Raises ValueError."""
        if (
            self.parameter.isascii()
            and self.parameter.isdigit()
            and 0 < len(self.parameter.lstrip("0")) <= COUNT_DIGITS
        ):
            return int(self.parameter)
        wanted = f"a whole number of 1 to {COUNT_DIGITS} digits, at least 1,"
        raise ValueError(f"queue policy {self.name!r} needs {wanted} after the colon, not {self.parameter[:40]!r}")

    def numbers(self, how_many: int) -> list[float]:
        """The parameter as numbers with commas between, none negative and not all 0. Raises ValueError."""
        try:
            numbers = [float(part) for part in self.parameter.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) == how_many and all(0 <= number < math.inf for number in numbers) and any(numbers):
            return numbers
        wanted = f"{how_many} numbers with commas between, none negative and not all 0,"
        raise ValueError(f"queue policy {self.name!r} needs {wanted} after the colon, not {self.parameter!r}")


@dataclass(frozen=True, slots=True)
class Registered:
    """`usage`: how it is named, with its parameter (`rpm:N`). `example`: a name that makes a usual one."""

    policy: type[QueuePolicy]
    make: Callable[[PolicySpec], QueuePolicy]
    usage: str
    example: str
    takes_parameter: bool


POLICIES: dict[str, Registered] = {}
"""By the name before the colon."""


def register(
    policy: type[QueuePolicy],
    usage: str,
    *,
    make: Callable[[PolicySpec], QueuePolicy] | None = None,
    example: str | None = None,
) -> None:
    """`make` is needed where there is a parameter, or another thing than the service function to hand in."""
    name, colon, _ = usage.replace("[", "").partition(":")
    of_service = cast("Callable[[ServiceFunction], QueuePolicy]", policy)
    maker = make if make is not None else lambda spec: of_service(spec.service)
    POLICIES[name] = Registered(policy, maker, usage, example or name, bool(colon))


def all_policies() -> dict[str, Registered]:
    for module in MODULES:
        import_module(f"gpu_worker.policies.{module}")
    return POLICIES


def make_policy(
    name: str,
    service: ServiceFunction = WEIGHTED_TOKENS,
    *,
    random: Random | None = None,
    tiers: TierSettings | None = None,
) -> QueuePolicy:
    """A policy by its name, with its parameter after a colon. `random`: for those that draw; by default seeded with 0.
    `tiers`: settings for one that has tiers, nothing to others.

    Raises ValueError, with one sentence for a person, for a name that no policy has and for a parameter that is wrong.
    """
    policies = all_policies()
    base, colon, parameter = name.partition(":")
    if base not in policies:
        usages = ", ".join(policies[known].usage for known in sorted(policies))
        raise ValueError(f"unknown queue policy {name!r}; there are {usages}")
    if name.endswith(":"):
        raise ValueError(f"nothing after the colon of queue policy {name!r}; it is written {policies[base].usage}")
    if colon and not policies[base].takes_parameter:
        raise ValueError(f"queue policy {base!r} takes nothing after its name, not {parameter!r}")
    spec = PolicySpec(base, service, parameter, random if random is not None else Random(0), tiers)
    return policies[base].make(spec)
