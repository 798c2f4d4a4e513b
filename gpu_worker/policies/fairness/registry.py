"""Queue policies by name, as the command line and the configuration write them: `fcfs`, `rpm:60`, `drr:512`, …

A policy's file registers it. The policy itself reads its parameter, the text after the colon.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from random import Random
from typing import TYPE_CHECKING, cast

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction

if TYPE_CHECKING:
    from gpu_worker.policies.fairness.interface import Applications, QueuePolicy
    from gpu_worker.policies.tiers import TierSettings

_PACKAGE = "gpu_worker.policies.fairness"
"""The folder of the policies. Its modules are imported, and so registered, when the first policy is requested."""

_COUNT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What a policy is made from.

    `parameter`: the text after the colon, "" for none. `random`: for a policy that draws numbers. `tiers`: for a policy
    with tiers; None means the default settings. `applications`: for a policy that prices by them; None: there are none.
    """

    name: str
    service: ServiceFunction
    parameter: str
    random: Random
    tiers: TierSettings | None = None
    applications: Applications | None = None

    def number(self, *, above: float = 0.0, most: float = math.inf) -> float:
        """Return the parameter as a finite number, above < number <= most. Raises ValueError."""
        try:
            number = float(self.parameter)
        except ValueError:
            number = math.nan
        if above < number <= most and number < math.inf:
            return number
        raise self._wrong_parameter(f"a number above {above:g}" + (f" and at most {most:g}" if most < math.inf else ""))

    def count(self) -> int:
        """Return the parameter as a whole number, at least 1. Raises ValueError."""
        if re.fullmatch(f"0*[1-9][0-9]{{,{_COUNT_DIGITS - 1}}}", self.parameter):
            return int(self.parameter)
        raise self._wrong_parameter(f"a whole number of 1 to {_COUNT_DIGITS} digits, at least 1,")

    def numbers(self, how_many: int) -> list[float]:
        """Return the parameter as comma-separated numbers, none negative and not all 0. Raises ValueError."""
        try:
            numbers = [float(part) for part in self.parameter.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) == how_many and all(0 <= number < math.inf for number in numbers) and any(numbers):
            return numbers
        raise self._wrong_parameter(f"{how_many} numbers with commas between, none negative and not all 0,")

    def _wrong_parameter(self, wanted: str) -> ValueError:
        return ValueError(f"queue policy {self.name!r} needs {wanted} after the colon, not {self.parameter[:40]!r}")


@dataclass(frozen=True, slots=True)
class RegisteredPolicy:
    """`usage`: how the name is written, with its parameter (`rpm:N`). `example`: a complete name with usual values."""

    policy: type[QueuePolicy]
    make: Callable[[PolicySpec], QueuePolicy]
    usage: str
    example: str


POLICIES: dict[str, RegisteredPolicy] = {}
"""The registered policies by the name before the colon."""


def register(
    policy: type[QueuePolicy],
    usage: str,
    *,
    make: Callable[[PolicySpec], QueuePolicy] | None = None,
    example: str | None = None,
) -> None:
    """Register a policy. Pass `make` unless the constructor takes only the service function."""
    name = re.split(r"[:\[]", usage)[0]
    of_service = cast("Callable[[ServiceFunction], QueuePolicy]", policy)
    POLICIES[name] = RegisteredPolicy(policy, make or (lambda spec: of_service(spec.service)), usage, example or name)


@cache
def all_policies() -> dict[str, RegisteredPolicy]:
    """Return every policy by the name before the colon."""
    for module in iter_modules(import_module(_PACKAGE).__path__, f"{_PACKAGE}."):
        import_module(module.name)
    return POLICIES


def make_policy(
    name: str,
    service: ServiceFunction = WEIGHTED_TOKENS,
    *,
    random: Random | None = None,
    tiers: TierSettings | None = None,
    applications: Applications | None = None,
) -> QueuePolicy:
    """Make a policy by its name, with its parameter after a colon.

    `random`: for policies that draw numbers; seeded with 0 by default. `tiers`: settings for a policy with tiers.
    `applications`: for `wsc`. Other policies ignore both.

    Raises ValueError, with one sentence for a person, for an unknown name and for a wrong parameter.
    """
    policies = all_policies()
    base, colon, parameter = name.partition(":")
    if base not in policies:
        usages = ", ".join(policies[known].usage for known in sorted(policies))
        raise ValueError(f"unknown queue policy {name!r}; there are {usages}")
    registered = policies[base]
    if name.endswith(":"):
        raise ValueError(f"nothing after the colon of queue policy {name!r}; it is written {registered.usage}")
    if colon and ":" not in registered.usage:
        raise ValueError(f"queue policy {base!r} takes nothing after its name, not {parameter!r}")
    return registered.make(PolicySpec(base, service, parameter, random or Random(0), tiers, applications))
