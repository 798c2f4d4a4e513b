"""A queue policy with a first-come-first-served queue for each tenant: the base of most policies.

A subclass chooses the tenant that is served next (`_next_tenant`) and overrides the hooks that it needs. This base
class keeps the queues, the waiting and running requests, and the service of each tenant. With locality, the tenant's
request with the longest cached prefix goes first (locality.py).

`decoded(k)` reports k more tokens for every running request in one call. It costs O(1), plus O(1) for each excluded
request: the output length of a request and the service of its tenant are brought up to date only when they are needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable
from copy import copy

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction, cache_discount
from gpu_worker.policies.fairness.accounting import ArrivalQueue, ServiceByTenant, TenantService
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest, RequestRecord, TenantFigures
from gpu_worker.policies.fairness.locality import PrefixLookups


class TenantQueuePolicy(QueuePolicy):
    """`service`: the function h in which `received` is counted. A subclass usually charges in it too."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        self.service = service
        self._received = ServiceByTenant()
        self._arrivals = 0
        self._steps = 0
        self._queues: dict[str, ArrivalQueue[RequestRecord]] = {}
        self._waiting: dict[str, RequestRecord] = {}
        self._aside: dict[str, RequestRecord] = {}
        """Waiting requests that are in no queue."""
        self._tenants_aside: Counter[str] = Counter()
        """How many of them each tenant has."""
        self._running: dict[str, RequestRecord] = {}
        self._lookups: PrefixLookups | None = None
        self._choice: tuple[tuple[str, int], RequestRecord] | None = None
        """The last choice by `_lookups`: its tenant and pass, and the request; None after a change of the queues."""

    def use_lookups(self, lookups: PrefixLookups) -> None:
        self._lookups = lookups

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._aside)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def received(self) -> dict[str, TenantService]:
        for record in self._running.values():
            self._update_output(record)
        return self._received.by_tenant()

    @property
    def changes(self) -> int:
        return self._received.changes

    def take_changed(self, most: int) -> list[TenantFigures]:
        found: list[TenantFigures] = []
        for tenant, received in self._received.take_changed(most):
            counter = self.counter(tenant) if self.waiting_of(tenant) else None
            found.append((tenant, received.input_tokens, received.output_tokens, received.service, counter))
        return found

    def running_requests(self) -> list[str]:
        return list(self._running)

    def update_outputs(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if (record := self._running.get(request_id)) is not None:
                self._update_output(record)

    def waiting_of(self, tenant: str) -> int:
        queue = self._queues.get(tenant)
        return (len(queue) if queue is not None else 0) + self._tenants_aside.get(tenant, 0)

    def holds(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self._running or request_id in self._aside

    def record(self, request_id: str) -> RequestRecord:
        record = self._waiting.get(request_id) or self._aside.get(request_id)
        if record is None:
            record = self._running[request_id]
            self._update_output(record)
        return record

    def enqueue(self, request: QueueRequest, now_s: float = 0.0) -> bool:
        request_id = request.request_id
        if request_id in self._waiting or request_id in self._running:
            raise ValueError(f"request {request_id!r} is here already")
        if not self._accepts(request, now_s):
            return False
        self._arrivals += 1
        self._received.add_request(request.tenant)
        self._add_to_queue(RequestRecord(request, self._arrivals), tenant_may_join=True)
        return True

    def peek(self) -> QueueRequest | None:
        tenant = self._next_tenant()
        if tenant is None:
            return None
        if self._lookups is None:
            return self._queues[tenant].head().request
        return self._next_of(tenant).request

    def set_aside(self, request_id: str) -> None:
        record = self._aside[request_id] = self._waiting.pop(request_id)
        tenant = record.request.tenant
        self._tenants_aside[tenant] += 1
        if self._tenants_aside[tenant] == 1:
            self._tenant_set_aside(tenant)
        self._remove_from_queue(record)

    def take_back(self, request_id: str) -> None:
        if (record := self._aside.pop(request_id, None)) is None:
            return
        tenant = record.request.tenant
        self._tenants_aside[tenant] -= 1
        if not self._tenants_aside[tenant]:
            del self._tenants_aside[tenant]
            self._tenant_taken_back(tenant)
        self._add_to_queue(record, tenant_may_join=False)

    def admit(self, request_id: str) -> QueueRequest:
        if self._aside:
            self.take_back(request_id)
        record = self._waiting.pop(request_id)
        self._running[request_id] = record
        self._remove_from_queue(record)
        if self._lookups is not None:
            self._count_overtaken(record, 1)
        record.since_step = self._steps
        record.resumed = record.prompt_charged
        request = record.request
        self._received.mark_changed(request.tenant)
        if not record.resumed:
            record.prompt_charged = True
            self._charge_prompt(record)
        self._entered_batch(record)
        return request

    def undo_admit(self, request_id: str) -> None:
        record = self._remove_from_batch(request_id)
        if not record.resumed:
            self._refund_admission(record)
        if self._lookups is not None:
            self._count_overtaken(record, -1)
        self._received.mark_changed(record.request.tenant)
        self._add_to_queue(record, tenant_may_join=False)

    def preempt(self, request_id: str, *, counts: bool = True) -> None:
        record = self._remove_from_batch(request_id)
        record.preemptions += counts
        self._received.mark_changed(record.request.tenant)
        self._add_to_queue(record, tenant_may_join=True)

    def on_cached(self, request_id: str, input_tokens: int) -> None:
        """See QueuePolicy. A resumed request gets no discount: the tokens that it finds in the cache are its own."""
        record = self._running[request_id]
        if record.cached_tokens or record.resumed or not input_tokens:
            return
        self._refund_cached_tokens(record, min(input_tokens, record.request.input_tokens))
        self._received.add(record.request.tenant, -self._cache_discount(record), 0, 0)

    def on_adapter_loaded(self, request_id: str) -> None:
        record = self._running[request_id]
        self._received.add(record.request.tenant, self.service(self.adapter_load_tokens, 0), 0, 0)
        self._charge_load(record)

    def on_prompt_counted(self, request_id: str, input_tokens: int) -> None:
        estimate = self._running[request_id].request
        if input_tokens == estimate.input_tokens:
            return
        record = self._remove_from_batch(request_id)
        counted = copy(estimate)  # a simulator's request is not made of its fields alone
        counted.input_tokens = max(input_tokens, estimate.system_tokens)
        self._correct_prompt_length(record, counted)
        self._return_to_batch(record)

    def on_generated(self, request_id: str, output_tokens: int) -> None:
        record = self._running[request_id]
        if record.since_step != self._steps:
            self._update_output(record)
        before = record.output_tokens
        if output_tokens > before:
            record.output_tokens = output_tokens
            self._charge_output(record, before)

    def on_decoded(self, steps: int, excluding: Collection[str] = ()) -> None:
        excluded = list(map(self._remove_from_batch, excluding)) if excluding else ()
        self._steps += steps
        self._charge_steps(steps)
        for record in excluded:
            self._return_to_batch(record)

    def finish(self, request_id: str) -> None:
        record = self._remove_from_batch(request_id)
        self._on_finish(record)
        self._remove_request(record.request)

    def cancel(self, request_id: str) -> None:
        if self._aside:
            self.take_back(request_id)
        record = self._waiting.pop(request_id)
        self._remove_from_queue(record)
        if record.prompt_charged:
            self._on_finish(record)
        self._remove_request(record.request)

    def remove(self, request_id: str) -> None:
        (self.finish if request_id in self._running else self.cancel)(request_id)

    def _next_of(self, tenant: str) -> RequestRecord:
        """Return the waiting request that is next if the tenant is."""
        queue, lookups = self._queues[tenant], self._lookups
        if lookups is None:
            return queue.head()
        asked = tenant, lookups.passes
        if self._choice is None or self._choice[0] != asked:
            self._choice = asked, lookups.choose(list(queue.first(lookups.window)))
        return self._choice[1]

    def _count_overtaken(self, admitted: RequestRecord, change: int) -> None:
        """Count an admission, or undo it, for each candidate that arrived before; the admitted request is in no
        queue."""
        assert self._lookups is not None  # noqa: S101
        queue = self._queues.get(admitted.request.tenant)
        if queue is None:
            return
        for record in queue.first(self._lookups.window):
            if record.place > admitted.place:
                break
            record.overtaken = max(0, record.overtaken + change)

    def _add_to_queue(self, record: RequestRecord, *, tenant_may_join: bool) -> None:
        """`tenant_may_join`: call `_tenant_joins` if the tenant has no waiting request yet."""
        request = record.request
        queue = self._queues.get(request.tenant)
        new_queue = queue is None
        if queue is None:
            if tenant_may_join and request.tenant not in self._tenants_aside:
                self._tenant_joins(request)
            queue = self._queues[request.tenant] = ArrivalQueue()
        queue.add(record.place, record)
        self._choice = None
        self._waiting[request.request_id] = record
        self._on_queue_entered(record, new_queue)

    def _remove_from_queue(self, record: RequestRecord) -> None:
        tenant = record.request.tenant
        queue = self._queues[tenant]
        queue.remove(record.place)
        self._choice = None
        self._left_queue(record)
        if not queue:
            del self._queues[tenant]
            self._tenant_leaves(tenant)

    def _remove_from_batch(self, request_id: str) -> RequestRecord:
        record = self._running.pop(request_id)
        self._update_output(record)
        self._left_batch(record)
        return record

    def _return_to_batch(self, record: RequestRecord) -> None:
        record.since_step = self._steps
        self._running[record.request.request_id] = record
        self._entered_batch(record)

    def _remove_request(self, request: QueueRequest) -> None:
        if not self._received.remove_request(request.tenant):
            self._tenant_absent(request.tenant)

    def _output_now(self, record: RequestRecord) -> int:
        """Return the current output length of a running request."""
        return record.output_tokens + self._steps - record.since_step

    def _update_output(self, record: RequestRecord) -> None:
        """Add the steps since the last update to a running request's output, and what it received since then to the
        service of its tenant."""
        record.output_tokens += self._steps - record.since_step
        record.since_step = self._steps
        request, output_tokens = record.request, record.output_tokens
        counted_input, counted_output, counted_service = record.counted
        input_tokens = request.input_tokens
        if output_tokens != counted_output or input_tokens != counted_input or not counted_service:
            service = self.service(input_tokens, output_tokens)
            record.counted = (input_tokens, output_tokens, service)
            self._received.add(
                request.tenant, service - counted_service, input_tokens - counted_input, output_tokens - counted_output
            )

    def _refund_admission(self, record: RequestRecord) -> None:
        tokens, output_tokens = record.request.input_tokens, record.output_tokens
        charged = self.service(tokens, output_tokens) - self._cache_discount(record)
        self._received.add(record.request.tenant, -charged, -tokens, -output_tokens)
        self._refund_charges(record)
        record.prompt_charged, record.output_tokens, record.cached_tokens = False, 0, 0
        record.counted = (0, 0, 0.0)

    def _cache_discount(self, record: RequestRecord) -> float:
        """Return the service of the prompt that is not charged because tokens came from the prefix cache."""
        return cache_discount(self.service, record.cached_tokens, self.cached_fraction)

    @abstractmethod
    def _next_tenant(self) -> str | None:
        """Return the tenant to serve next; None if no request waits or none is allowed to run now."""

    # Hooks for subclasses, in the order in which a request reaches them. By default they charge nothing.

    def _accepts(self, request: QueueRequest, now_s: float) -> bool:
        """Return whether an arriving request may enter the queue."""
        return True

    def _tenant_joins(self, request: QueueRequest) -> None:
        """The tenant has no waiting request and is about to get this one."""

    def _on_queue_entered(self, record: RequestRecord, new_queue: bool) -> None:
        """The request is in its tenant's queue. `new_queue`: it is the only one there."""

    def _left_queue(self, record: RequestRecord) -> None:
        """The request left its tenant's queue. A charge for its admission follows."""

    def _tenant_leaves(self, tenant: str) -> None:
        """The tenant's last waiting request left its queue. A charge for its admission follows."""

    def _tenant_set_aside(self, tenant: str) -> None:
        """The tenant is about to have a request that is set aside, and still waits if it has no other."""

    def _tenant_taken_back(self, tenant: str) -> None:
        """None of the tenant's requests is set aside any more. Its queue is about to get the last one."""

    def _charge_prompt(self, record: RequestRecord) -> None:
        """Charge the prompt of an admitted request."""

    def _entered_batch(self, record: RequestRecord) -> None:
        """The request runs, and its prompt is charged. `decoded` includes it from now on."""

    def _refund_cached_tokens(self, record: RequestRecord, cached_tokens: int) -> None:
        """Record that prompt tokens came from the cache, and refund the discount on them."""
        record.cached_tokens = cached_tokens

    def _charge_load(self, record: RequestRecord) -> None:
        """Charge the load of the request's adapter."""

    def _correct_prompt_length(self, record: RequestRecord, counted: QueueRequest) -> None:
        """Replace the request by `counted`, with its true prompt length, and charge or refund the difference."""
        record.request = counted

    def _charge_output(self, record: RequestRecord, before: int) -> None:
        """Charge the output of a running request beyond `before` tokens, reported by `generated`."""

    def _charge_steps(self, steps: int) -> None:
        """Charge `steps` more output tokens to every running request (`_output_now` includes them)."""

    def _left_batch(self, record: RequestRecord) -> None:
        """The request no longer runs; its output length is up to date."""

    def _refund_charges(self, record: RequestRecord) -> None:
        """Refund all charges of the request; its lengths are still those that it was charged for."""

    def _on_finish(self, record: RequestRecord) -> None:
        """A request that ran at least once was removed; its output length is final."""

    def _tenant_absent(self, tenant: str) -> None:
        """The tenant's last request was removed."""
