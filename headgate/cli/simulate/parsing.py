"""The option values of `headgate simulate` that need parsing: policy names, weights and numbers.

Every function raises ConfigurationError, with one sentence that names the option.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.service import service_function
from gpu_worker.policies.fairness.registry import make_policy
from headgate.workloads.sources import Workload

NAMED_MAX = 5
"""The most names that a message lists."""


def policy_names(text: str, wsc_weights: str, service: str) -> list[str]:
    """Split --policy into names, and check that each policy can be made."""
    names = _with_weights(_split(text), wsc_weights)
    if not names:
        raise ConfigurationError("--policy: name at least one")
    try:
        for name in names:
            make_policy(name, service_function(service))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return names


def _split(text: str) -> list[str]:
    """Split at commas, except those between a policy's own numbers: `wsc:1,1,2` is one name."""
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if names and part and not part[0].isalpha():
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return list(dict.fromkeys(names))


def _with_weights(names: list[str], text: str) -> list[str]:
    """Write --wsc-weights into the name of `wsc`."""
    if not text:
        return names
    if "wsc" not in names:
        raise ConfigurationError("--wsc-weights needs --policy wsc")
    numbers = [_number(part, "--wsc-weights") for part in text.split(",")]
    if len(numbers) != 3 or not any(numbers):
        raise ConfigurationError(f"--wsc-weights: expected three numbers, not all 0 (1,2,1), not {text[:80]!r}")
    return [f"wsc:{','.join(f'{number:g}' for number in numbers)}" if name == "wsc" else name for name in names]


def tenant_weights(text: str, workload: Workload) -> dict[str, float]:
    """Parse TENANT=1,TENANT=2. The last `=` separates: a tenant's name may contain one."""
    weights: dict[str, float] = {}
    known = frozenset(workload.tenants)
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = entry.rpartition("=")
        if not equals or not name:
            raise ConfigurationError(f"--weights: expected TENANT=NUMBER, not {entry[:80]!r}")
        if name not in known:
            raise ConfigurationError(
                f"--weights: the workload has no tenant {name[:80]!r}; it has {some(workload.tenants)}"
            )
        weights[name] = _number(value, "--weights", positive=True)
    return weights


def _number(text: str, option: str, *, positive: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 < value < math.inf or (value == 0 and not positive):
        return value
    raise ConfigurationError(f"{option}: expected {'a positive number' if positive else 'a number'}, not {text[:40]!r}")


def some(names: Sequence[str]) -> str:
    """List the first names, and say how many more there are."""
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
