"""Limits of one process, which are checked before the gate decides, and the settings of a front.

How much each tenant may hold: a process has a limited number of connections, limited memory for waiting requests, and a
limited rate of key lookups. Each of these is bounded for the process and for each tenant. After a tenant takes
something, it holds no more than was left before. So a single tenant gets at most half, and a new tenant always finds
some left. Source: dynamic queue length thresholds (Choudhury and Hahne, 1998), with a factor of 1.

How long a refusal holds: a process repeats the gate's recent refusals for the same queue without a question to the
gate. Under overload most calls are refused. A refusal by the gate costs the front a parsed body and a task, and the
leader a decision. A repeated refusal costs neither. It is repeated only for so short a time that the full queue does
not run empty meanwhile.

(The gate itself bounds each tenant's queue: Tenant.queue_items_max.)

What a front in Lambda must bound itself, because Lambda freezes it and reports no disconnect: Lambda stops a process
when the last byte of its answer has left, does not say that a caller has gone, and runs one execution for each caller
that waits. So such a front finishes its work before the last byte (functions/http_api/connections.py), generates for a
caller at most a budget of tokens and time, waits behind few requests of a tenant, and ends whole answers before the
gateway does. HEADGATE_FRONT=lambda says so; no process guesses it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Annotated, Literal

from dispatcher.model.commands import Outcome, Waiting
from dispatcher.model.errors import DeadlineExceeded, Refused
from dispatcher.model.tenants import Tenant
from dispatcher.policies.bounds import BoundedSettings, Bounds
from dispatcher.ports import Clock

RETRY_AFTER_S = 1.0
DURABLE_REFUSED_S = 0.25
"""If the gate refuses a durable call for a reason that applies to all calls of the tenant, this process refuses the
tenant's durable calls for this time, because each of them costs two writes."""
QUEUE_FULL_S = 0.05
"""If the gate refuses a call without a key for a full queue, this process refuses such calls of the tenant for this
time."""
Queue = tuple[str, str]
"""The names of its pool and its tenant. A tenant has one queue in each pool."""


@dataclass(frozen=True, slots=True)
class LimitSettings(BoundedSettings):
    """The bounds of one process. `process_…` and `unknown_keys_…` bound all tenants together, the others each tenant.

    0 allows nothing. Raises ValueError for a negative bound, and for a time of 0.
    """

    process_requests_max: int = 4096
    """Open requests in this process. Further requests get 429 before their key is looked up."""
    open_requests_max: int = 1024
    """Open requests of a tenant in this process. A request is open from its verified key to its answer's last byte."""
    process_waiting_bytes_max: int = 512_000_000
    waiting_bytes_max: int = 64_000_000
    """Bytes of text in a tenant's requests that wait for a slot."""
    process_waiting_tokens_max: int = 400_000_000
    waiting_tokens_max: int = 40_000_000
    """Estimated tokens in a tenant's requests that wait for a slot."""
    process_waiting_items_max: int = 8192
    waiting_items_max: int = 2048
    """Requests of a tenant that wait for a slot in this process."""
    process_uploads_max: int = 32
    uploads_max: int = 8
    """Files of a tenant that are being uploaded to this process. Each is on its disk until it is stored."""
    same_key_max: int = 16
    """Open requests with the same idempotency key in this process."""
    waiting_executions_max: int = 50
    """An execution in Lambda waits for a turn only at this place in its tenant's queue, or before it. A synchronous
    lambda.invoke behind it returns at once, and its request stays in the queue; a front in Lambda answers 429. With a
    front in Lambda, infra/functions.py sets less."""
    unknown_keys_per_s: float = 10.0
    """Lookups per second that find no API key, on average over a long time, of each of three budgets
    (directory.py)."""
    unknown_keys_burst: int = 200
    """The most such lookups at once. First lookups of keys count too, until they have found their key."""
    body_s: float = 10.0
    """The longest time for a request's body to arrive."""
    send_s: float = 30.0
    """A caller that reads nothing for this time is disconnected."""

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if value < 0 or (value == 0 and bound.name in ("body_s", "send_s")):
                raise ValueError(f"{bound.name} must be above 0, not {value!r}")


class Budget:
    """One bounded resource of a process, shared by its tenants."""

    def __init__(self, limit: str, what: str, tenant_max: float, process_max: float) -> None:
        self._limit = limit
        self._what = what
        self._tenant_max = tenant_max
        self._process_max = process_max
        self._held: Counter[str] = Counter()
        self._total = 0

    def take(self, tenant: str, amount: int = 1) -> None:
        """Take `amount`. Raises Refused if the tenant would hold more than its bound, or more than is left now."""
        after = self._held.get(tenant, 0) + amount
        if after > self._tenant_max or after > self._process_max - self._total:
            raise self._refusal(tenant)
        self._held[tenant] = after
        self._total += amount

    def give_back(self, tenant: str, amount: int = 1) -> None:
        self._total -= amount
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]

    def held(self, tenant: str) -> int:
        return self._held[tenant]

    @property
    def total(self) -> int:
        return self._total

    def _refusal(self, tenant: str) -> Refused:
        message = (
            f"This server holds {self._held[tenant]} {self._what} of this tenant and accepts no more of them now "
            f"(limit `{self._limit}`). Try again in about {RETRY_AFTER_S:g} s."
        )
        return Refused(message, self._limit, RETRY_AFTER_S)


class WaitingRequest:
    """The bytes, tokens and item that one waiting request holds. `release` may be called more than once."""

    def __init__(self, budgets: tuple[tuple[Budget, int], ...], tenant: str) -> None:
        self._taken: list[tuple[Budget, int]] = []
        self._tenant = tenant
        for budget, amount in budgets:
            try:
                budget.take(tenant, amount)
            except Refused:
                self.release()
                raise
            self._taken.append((budget, amount))

    def release(self) -> None:
        while self._taken:
            budget, amount = self._taken.pop()
            budget.give_back(self._tenant, amount)


class TokenBucket:
    """Allows `rate_per_s` uses a second in the long run, and `burst` at once."""

    def __init__(self, rate_per_s: float, burst: float, clock: Clock) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._at = clock.monotonic()

    def take(self) -> float:
        """Take one use and return 0. If no use is left, take none and return the seconds until the next."""
        now = self._clock.monotonic()
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._rate_per_s)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._rate_per_s if self._rate_per_s > 0 else math.inf

    def give_back(self) -> None:
        """Give back a use that was taken but does not count."""
        self._left = min(self._burst, self._left + 1)


class RecentRefusals:
    """The gate's last refusal of each queue, kept for `within_s` seconds. Times are monotonic seconds."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._kept: dict[Queue, tuple[float, Refused]] = {}
        """Oldest first."""

    def note(self, queue: Queue, refusal: Refused, now: float) -> None:
        """Remember that the gate refused a call of the queue."""
        self._kept.pop(queue, None)
        self._kept[queue] = now, refusal
        while self._is_old(next(iter(self._kept.values()))[0], now):
            del self._kept[next(iter(self._kept))]

    def check(self, queue: Queue, now: float) -> None:
        """Raise the queue's last refusal again if it is recent. Raises Refused."""
        if (refusal := self._recent(queue, now)) is not None:
            raise Refused(refusal.message, refusal.code, refusal.retry_after_s)

    def check_all(self, queues: Iterable[Queue], now: float) -> None:
        """Raise a refusal again if each of the queues has a recent one. Raises Refused."""
        queues = tuple(queues)
        if all(self._recent(queue, now) is not None for queue in queues):
            self.check(queues[0], now)

    def _recent(self, queue: Queue, now: float) -> Refused | None:
        at, refusal = self._kept.get(queue, (now, None))
        return None if self._is_old(at, now) else refusal

    def __len__(self) -> int:
        return len(self._kept)

    def _is_old(self, at: float, now: float) -> bool:
        return now >= at + self._within_s


class Limits:
    """All budgets of one process, and its recent refusals."""

    def __init__(self, settings: LimitSettings) -> None:
        self.settings = settings
        self.durable_refusals = RecentRefusals(DURABLE_REFUSED_S)
        """Refusals of durable calls."""
        self.full_queues = RecentRefusals(QUEUE_FULL_S)
        """Refusals of calls without a key, because the tenant's queue was full."""
        process, tenant = settings.process_requests_max, settings.open_requests_max
        self.requests = Budget("open_requests", "open requests", tenant, process)
        process, tenant = settings.process_waiting_items_max, settings.waiting_items_max
        self.waiting_items = Budget("waiting_items", "waiting requests", tenant, process)
        process, tenant = settings.process_waiting_bytes_max, settings.waiting_bytes_max
        self.waiting_bytes = Budget("waiting_bytes", "bytes of waiting requests", tenant, process)
        process, tenant = settings.process_waiting_tokens_max, settings.waiting_tokens_max
        self.waiting_tokens = Budget("waiting_tokens", "tokens of waiting requests", tenant, process)
        process, tenant = settings.process_uploads_max, settings.uploads_max
        self.uploads = Budget("uploads", "uploads", tenant, process)
        self.keys = Budget("same_key", "requests under this idempotency key", settings.same_key_max, math.inf)

    @contextmanager
    def open_request(self, tenant: str) -> Iterator[None]:
        """Hold one of the tenant's open requests. Raises Refused."""
        self.requests.take(tenant)
        try:
            yield
        finally:
            self.requests.give_back(tenant)

    @contextmanager
    def upload(self, tenant: str) -> Iterator[None]:
        """Hold one of the tenant's uploads. Raises Refused."""
        self.uploads.take(tenant)
        try:
            yield
        finally:
            self.uploads.give_back(tenant)

    @contextmanager
    def key_in_flight(self, tenant: str, key: str) -> Iterator[None]:
        """Hold one of the open requests with this idempotency key. Raises Refused."""
        name = f"{tenant}/{key}"
        self.keys.take(name)
        try:
            yield
        finally:
            self.keys.give_back(name)

    def waiting_request(self, tenant: str, size_bytes: int, tokens: int) -> WaitingRequest:
        """Hold the bytes, tokens and item of a waiting request. Raises Refused."""
        budgets = ((self.waiting_items, 1), (self.waiting_bytes, size_bytes), (self.waiting_tokens, tokens))
        return WaitingRequest(budgets, tenant)


DEADLINE_MAX_S = 870.0
"""The longest deadline in a front in Lambda: Lambda ends an execution after 900 s, before it could settle its call."""


@dataclass(frozen=True)
class GateSettings:
    """Settings of a front that hold for all its pools, each a variable of its process (settings/config.py).

    Times are in seconds.
    """

    front: Literal["server", "lambda"] = "server"
    """Where the HTTP front runs. "lambda": Lambda freezes it after each answer and reports no disconnect."""
    lambda_tokens_max: Annotated[int, Bounds(1, 1_000_000)] = 4096
    """The most output tokens of one request to a front in Lambda, over all its choices, since the front never learns
    that its caller left."""
    lambda_whole_s: Annotated[float, Bounds(above=0, high=295)] = 285.0
    """A front in Lambda ends an answer that is not streamed after this time. API Gateway ends a silent connection after
    300 s."""
    expected_tokens: Annotated[int, Bounds(1, 1_000_000)] = 256
    """The output tokens that the gate expects of a request without max_tokens: the estimate of its cost counts them. A
    chat may become longer; a completion without max_tokens ends after them (calls/call.py)."""
    unknown_fields: Literal["refuse", "drop"] = "refuse"
    """What the pool does with a field of an HTTP request that its table of fields does not have (docs/fields.md):
    refuse the request, or drop the field and name it in the response header `x-headgate-dropped-fields`."""
    responses_kept_s: Annotated[float, Bounds(0, 30 * 24 * 3600)] = 24 * 3600.0
    """A response of POST /v1/responses is kept for this time. 0: no response is kept."""
    responses_bytes_max: Annotated[int, Bounds(0)] = 500_000_000
    """The most bytes of kept responses of one tenant, compressed and with their inputs."""
    files_kept_s: Annotated[float, Bounds(3600, 365 * 24 * 3600)] = 30 * 24 * 3600.0
    """A file of the batch API is kept for this time, and a batch for this time after its window."""
    file_bytes_max: Annotated[int, Bounds(0)] = 200_000_000
    """The most bytes of one uploaded file."""
    files_bytes_max: Annotated[int, Bounds(0)] = 2_000_000_000
    """The most bytes of the files of one tenant. An upload that would exceed it is refused; a batch's output is not."""


def within_budget(settings: GateSettings, tenant: Tenant) -> Tenant:
    """Return the tenant with at most the tokens for one request that a front in Lambda allows."""
    if settings.front == "server" or tenant.max_tokens_max <= settings.lambda_tokens_max:
        return tenant
    return replace(tenant, max_tokens_max=settings.lambda_tokens_max)


def check_place(settings: GateSettings, outcome: Outcome, waiting_max: int) -> None:
    """Raise Refused if a front in Lambda would wait behind more than `waiting_max` requests of the tenant."""
    if settings.front == "server" or not isinstance(outcome, Waiting) or outcome.position <= waiting_max:
        return
    wait_s = RETRY_AFTER_S if outcome.wait_s is None else float(ceil(max(RETRY_AFTER_S, outcome.wait_s)))
    message = (
        f"{outcome.position - 1} requests of this tenant wait before this one. A front in Lambda waits at place "
        f"{waiting_max} at most (limit `waiting_executions`). Try again in about {wait_s:.0f} s."
    )
    raise Refused(message, "waiting_executions", wait_s)


def too_late(whole_s: float, *, durable: bool) -> DeadlineExceeded:
    """Return the error of an answer that is not whole after `whole_s`."""
    advice = (
        "The request goes on: repeat it with the same Idempotency-Key for its answer."
        if durable
        else "The request was ended. Stream it (`stream`: true), send an Idempotency-Key and repeat it, or use "
        "lambda.invoke with InvocationType Event."
    )
    return DeadlineExceeded(
        f"The answer was not complete after {whole_s:g} s, as long as a front in Lambda may "
        f"wait without streaming. {advice}"
    )
