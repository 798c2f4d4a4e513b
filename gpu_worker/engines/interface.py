"""The interface of every engine: orders, events, errors, facts, stats, and sleep.

An engine that can sleep frees the device's memory and keeps its weights in host memory; its server lives on. Waking it
copies the weights back, which takes seconds where a start takes a minute. An engine that cannot sleep is stopped
instead (sleeping_engines.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol, cast

from dispatcher.model.call import CallTerms
from dispatcher.model.fleet import ADAPTER_PREFIX, TEXT
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished as Finished
from dispatcher.model.worker_protocol import Started as Started
from dispatcher.model.worker_protocol import Token as Token
from dispatcher.model.worker_protocol import WorkOrder as WorkOrder
from gpu_worker.policies.fairness.accounting import TenantService
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.scheduling_stats import SchedulingGauges, SchedulingStats


def own_order(
    name: str,
    tenant: str,
    body: Mapping[str, Any],
    max_tokens: int,
    endpoint: Endpoint = Endpoint.COMPLETION,
    choices: int = 1,
    *,
    app: str = "",
    interaction: str = "",
    **fields: Any,
) -> WorkOrder:
    """Return an order of a worker to its own engine, which no gate sent: a probe, a calibration, a test."""
    terms = CallTerms(tenant, "", 0.0, inf, False, app, interaction)
    return WorkOrder(terms, name, 0, body, max_tokens, endpoint, choices, **fields)


def probe_order(name: str, tenant: str, facts: EngineFacts) -> WorkOrder:
    """Return an order of a worker to its own engine for one token, for the first endpoint that the engine supports."""
    fields: dict[Endpoint, Any] = {
        Endpoint.CHAT: [{"role": "user", "content": "1"}],
        Endpoint.COMPLETION: "1",
        Endpoint.EMBEDDINGS: "1",
    }
    endpoint = next((each for each in fields if each.value in facts.capabilities), Endpoint.CHAT)
    return own_order(name, tenant, {endpoint.prompt_field: fields[endpoint]}, 1, endpoint)


def fit_order(order: WorkOrder, input_tokens: int, limit: int) -> WorkOrder:
    """Return the order, with `max_tokens` shortened to what fits beside the prompt if the client set no limit.

    `input_tokens`: of the longest prompt. `limit`: tokens of prompt and output together. Raises PromptTooLong.
    """
    left = limit - input_tokens
    if order.is_open and left > 0:
        return replace(order, max_tokens=min(order.max_tokens, left))
    if order.max_tokens > left:
        if order.is_open:
            raise PromptTooLong(f"the prompt has {input_tokens} tokens; {limit} fit with the answer")
        sizes = f"the prompt has {input_tokens} tokens and max_tokens is {order.max_tokens}"
        raise PromptTooLong(f"{sizes}: together more than the {limit} that fit")
    return order


def name_sequence(order: WorkOrder, number: int, of: int) -> str:
    """Return the name of sequence `number` of the order in an engine's queue; the order's own if `of` is 1."""
    return order.execution if of == 1 else f"{order.execution}/{number}"


def queue_request(order: WorkOrder, input_tokens: int, now_s: float, sequence_id: str = "") -> QueueRequest:
    """Return one sequence of the order as a queue policy sees it. `now_s`: by the policy's clock.

    An engine has a sequence for each choice. Each computes the prompt by itself, so a policy charges the prompt to the
    tenant once for each. The gate charges it once.
    """
    return QueueRequest(
        sequence_id or order.execution,
        order.terms.tenant,
        input_tokens,
        order.weight,
        app=order.terms.app,
        stage=order.stage,
        interaction=order.terms.interaction,
        output_tokens_max=order.likely_tokens,
        tier=order.tier,
        deadline_s=now_s + order.timeout_s,
    )


EngineEvent = Started | Token | Finished


class EngineError(Exception):
    """The engine cannot serve this request. `code` is stable, `message` is for the tenant.

    `status`: the HTTP status of a server's error, `retry_after_s`: its Retry-After; None if it sent none.
    """

    def __init__(
        self, code: str, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


class PromptTooLong(EngineError):
    """Prompt and max_tokens do not fit the model's context or the engine's cache."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__("context_length_exceeded", message, status=status)


class Evicted(EngineError):
    """The request ran, and was evicted for good. `exhausted`: because it was preempted as often as the settings
    allow."""

    def __init__(self, *, exhausted: bool = False) -> None:
        code, times = ("preempted_too_often", "too often ") if exhausted else ("preempted", "")
        super().__init__(code, f"this request was evicted {times}for more urgent requests; send it again later")


class RefusedByPolicy(EngineError):
    """The queue policy accepts no more requests of this tenant for now (RPM)."""

    def __init__(self) -> None:
        super().__init__("rate_limit_exceeded", "too many requests of this tenant in the last minute")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts of a model for the fleet. `model`: its name for tenants. `bytes_per_token`: mean over English text.
    `capabilities`: what the engine supports, and its adapters (dispatcher/model/fleet.py). `description`: for people,
    the device and the sizes that the engine chose at its start; empty if it chose none. `max_loras`: the adapters that
    it holds at once; None: unknown, or it has none."""

    model: str
    context_tokens: int
    bytes_per_token: float
    capabilities: frozenset[str] = TEXT
    description: str = ""
    max_loras: int | None = None

    def has_adapter(self, name: str) -> bool:
        return ADAPTER_PREFIX + name in self.capabilities


@dataclass(frozen=True, slots=True)
class EngineStats:
    """`waiting`, `running`: requests. `counts`: since the engine started. `gauges`: as of now."""

    waiting: int
    running: int
    kv_use: float
    """Share of the KV cache in use, 0 to 1."""
    tenants: dict[str, TenantService]
    counts: SchedulingStats = field(default_factory=SchedulingStats)
    gauges: SchedulingGauges = field(default_factory=SchedulingGauges)

    def plus(self, other: EngineStats) -> EngineStats:
        """Return these stats with the counts of another engine, and what its tenants received, added."""
        tenants = dict(other.tenants)
        for name, service in self.tenants.items():
            tenants[name] = tenants.get(name, TenantService()) + service
        return replace(self, tenants=tenants, counts=other.counts + self.counts)


class Engine(Protocol):
    """Generates for many requests at once. Its queue policy decides which requests enter the batch."""

    @property
    def facts(self) -> EngineFacts: ...

    def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        """Yield Started, then Tokens, then Finished. Closing the iterator early aborts the work at the next step.

        Raises PromptTooLong before Started, RefusedByPolicy before a token, Evicted after tokens if the request is
        evicted for good, EngineError if the engine fails.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request: its iterator yields Finished("aborted", …) with the counts so far."""
        ...

    def stats(self) -> EngineStats: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class SleepFailed(Exception):
    """The engine did not fall asleep, or did not wake up. It can only be stopped."""


class SleepableEngine(Engine, Protocol):
    """An engine that may be able to sleep. Neither method is called while a request runs."""

    @property
    def sleep_bytes(self) -> int | None:
        """Bytes of host memory that the engine takes while it sleeps; None if it cannot sleep."""

    async def fall_asleep(self) -> None:
        """Free the device's memory, and keep the weights in host memory. Raises SleepFailed."""

    async def wake(self) -> None:
        """Serve again, with the same weights. Raises SleepFailed."""


def sleepable(engine: Engine) -> SleepableEngine | None:
    """Return the engine if it can sleep, otherwise None."""
    if getattr(engine, "sleep_bytes", None) is None:
        return None
    return cast("SleepableEngine", engine)


class EventQueue(asyncio.Queue[EngineEvent | EngineError]):
    """The events of one request, on their way from an engine to the caller of `generate`.

    Iteration waits for each event, ends after Finished, and raises an EngineError that is in the queue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    def __aiter__(self) -> EventQueue:
        return self

    async def __anext__(self) -> EngineEvent:
        if self._ended:
            raise StopAsyncIteration
        event = await self.get()
        if isinstance(event, EngineError):
            raise event
        self._ended = isinstance(event, Finished)
        return event
