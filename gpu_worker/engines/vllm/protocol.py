"""What the worker and our scheduler inside vLLM tell each other of a request: the dispatcher's fields on its way in,
the reason of its end on the way out. Pure.

Fields: vLLM's core gets them as `headgate_…` in the request's `extra_args`. The worker sets them; with the scheduler
alone, in vLLM's own server, a client can send anything, and it is ignored unless the operator trusts it (settings.py).
There the tenant, its weight and its tier come from the operator's middleware (identity.py, tenants.py).
An exception here would end vLLM's core, and with it all requests. So one function reads all fields, and it never
raises: a field that is missing or wrong has its default, and `wrong` names it. The scheduler then ends this request
(waiting_queue.py). A number beyond its bounds becomes the nearest bound: a weight near 0 would lift all counters of a
fair queue for good.

Ends: the scheduler ends a request with vLLM's reason `abort` and a stop reason of its own (scheduler.py). The server
passes both on with the last chunk of a choice. A tenant's own stop string can be any text, but its reason is `stop`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineError, Evicted, PromptTooLong, RefusedByPolicy
from gpu_worker.engines.openai.normal.faults import failed
from gpu_worker.engines.vllm.arguments import ARGUMENT_PREFIX
from gpu_worker.engines.vllm.identity import read_entry, read_identity
from gpu_worker.engines.vllm.settings import SchedulerSettings

_TENANT_UNKNOWN = "unknown"
_TIER = ARGUMENT_PREFIX + "tier"
IDENTITY_ARGUMENT = ARGUMENT_PREFIX + "identity"
"""An entry of identity.py, which Python code in vLLM's process writes (in_process.py)."""
GROUP_ARGUMENT = ARGUMENT_PREFIX + "prefix_group"
"""The group of tenants that share cached prefixes with that of IDENTITY_ARGUMENT; empty: it shares none."""
_TEXT_CHARS_MAX = 256
TOKENS_MAX = 1_000_000_000
_STAGE_MAX = 1_000_000
_TIMEOUT_MAX_S = 1e12
"""From here on, a request has no deadline."""
WEIGHT_MIN, WEIGHT_MAX = 1e-6, 1e12


@dataclass(slots=True)
class RequestFields:
    """The fields, with their defaults. `output_max`: the output tokens up to which a request without a limit of its
    client may run; None: its own limit. `output_expected`: its usual output tokens; None: unknown. `timeout_s`: the
    seconds until its deadline. `wrong`: the names of the fields that could not be read. `ignored`: whether there were
    fields that are not trusted. `is_named`: whether anything that is believed names the tenant."""

    tenant: str = _TENANT_UNKNOWN
    weight: float = 1.0
    tier: Tier = Tier.STANDARD
    app: str = ""
    stage: int = 0
    interaction: str = ""
    system_tokens: int = 0
    output_max: int | None = None
    output_expected: int | None = None
    timeout_s: float = math.inf
    wrong: tuple[str, ...] = ()
    ignored: bool = False
    is_named: bool = False


def read_fields(extra_args: object) -> RequestFields:
    """Return the fields. Never raises. Fields with other prefixes are vLLM's own, and names without a meaning here are
    ignored."""
    fields, wrong = RequestFields(), []
    if not isinstance(extra_args, Mapping):
        return fields
    for name, read in _READERS.items():
        value = extra_args.get(ARGUMENT_PREFIX + name)
        if value is None:
            continue
        found = read(value)
        if found is None:
            wrong.append(name)
        else:
            setattr(fields, name, found)
    fields.wrong = tuple(wrong)
    return fields


def request_fields(request: Any, settings: SchedulerSettings) -> RequestFields:
    """Return the fields of one of vLLM's requests, as far as the settings believe them. An identity that the operator's
    middleware added comes before all others, and any identity before other fields and the request's priority. Never
    raises."""
    given = extra_args(request)
    fields = read_fields(given) if settings.trust_client_fields else RequestFields()
    identity = read_identity(request.trace_headers)
    if not settings.trust_client_fields:
        fields.ignored = any(str(name).startswith(ARGUMENT_PREFIX) for name in given)
    elif identity is None and IDENTITY_ARGUMENT in given:
        identity = read_entry(given[IDENTITY_ARGUMENT])
        if identity is None:
            fields.wrong = (*fields.wrong, "identity")
    if identity is not None:
        fields.tenant, fields.weight = identity.tenant, identity.weight
    fields.is_named = fields.tenant != _TENANT_UNKNOWN
    if not settings.has_tiers:
        fields.tier = Tier.STANDARD
    elif identity is not None and identity.tier is not None:
        fields.tier = identity.tier
    elif settings.priority_tiers is not None and (identity is not None or fields.ignored or _TIER not in given):
        fields.tier = settings.tier_of(request.priority)
    elif identity is not None:
        fields.tier = Tier.STANDARD
    return fields


def extra_args(request: Any) -> Mapping[str, Any]:
    """Return the arguments of a generating or a pooling request that vLLM does not know."""
    if request.sampling_params is None:
        found = getattr(request.pooling_params, "extra_kwargs", None)
    else:
        found = getattr(request.sampling_params, "extra_args", None)
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str | None:
    """Return a text that the statistics can contain; None for anything else."""
    if not isinstance(value, str) or len(value) > _TEXT_CHARS_MAX:
        return None
    return None if any("\ud800" <= each <= "\udfff" for each in value) else value


def _tenant(value: Any) -> str | None:
    return _text(value) or None


def _tier(value: Any) -> Tier | None:
    return next((tier for tier in Tier if isinstance(value, str) and tier.value == value), None)


def _number(value: Any, low: float, high: float) -> float | None:
    """Return a number of at least 0, within its bounds; None for anything else, NaN included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return float(min(max(value, low), high))


def _whole(value: Any, most: int) -> int | None:
    if isinstance(value, float) and not value.is_integer():
        return None
    found = _number(value, 0, most)
    return None if found is None else int(found)


def _weight(value: Any) -> float | None:
    is_endless = isinstance(value, float) and not math.isfinite(value)
    return None if is_endless or value == 0 else _number(value, WEIGHT_MIN, WEIGHT_MAX)


def _timeout_s(value: Any) -> float | None:
    found = _number(value, 0, _TIMEOUT_MAX_S)
    return math.inf if found == _TIMEOUT_MAX_S else found


def _tokens(value: Any) -> int | None:
    return _whole(value, TOKENS_MAX)


_READERS = {
    "tenant": _tenant,
    "weight": _weight,
    "tier": _tier,
    "app": _text,
    "stage": lambda value: _whole(value, _STAGE_MAX),
    "interaction": _text,
    "system_tokens": _tokens,
    "output_max": _tokens,
    "output_expected": _tokens,
    "timeout_s": _timeout_s,
}


ENDED_PREFIX = "headgate:"
"""The beginning of the stop reason of a request that the scheduler ended; the reason follows."""


class Expired(EngineError):
    """The request's deadline has passed."""

    def __init__(self) -> None:
        super().__init__("expired", "the request's deadline has passed")


def check_end(choice: Mapping[str, Any]) -> None:
    """Raise the error of a choice that our scheduler ended."""
    stop_reason = choice.get("stop_reason")
    if choice.get("finish_reason") != "abort" or not isinstance(stop_reason, str):
        return
    if not stop_reason.startswith(ENDED_PREFIX):
        return
    reason = stop_reason.removeprefix(ENDED_PREFIX)
    if reason.startswith("preempted"):
        raise Evicted(exhausted=reason == "preempted_too_often")
    if reason == "refused":
        raise RefusedByPolicy
    if reason == "too_large":
        raise PromptTooLong("the prompt and max_tokens need more of the cache than this tier can have")
    if reason == "expired":
        raise Expired
    raise failed(f"its scheduler ended it: {reason}")
