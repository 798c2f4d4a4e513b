"""A line for each tenant, first come, first served within it: what most queue policies are made of.

A policy says whose line is next (`_next_tenant`) and is told of all that moves; the lines, who waits and who runs, and
what each tenant received are kept here.

`decoded(k)` says in one call what `generated` says of each running request: k tokens more. It is O(1), and O(1) for
each that it is not about: a request's count and its tenant's figures are brought up to date when somebody asks for
them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction, service_delta
from gpu_worker.policies.fairness.accounting.arrival_queue import ArrivalQueue
from gpu_worker.policies.fairness.accounting.tenant_service import ServiceByTenant, TenantService
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.request import QueueRequest, RequestRecord


class TenantQueuePolicy(QueuePolicy):
    """Policies override `_next_tenant`, and what of the hooks below it they need."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        self.service = service
        self._received = ServiceByTenant()
        self._arrivals = 0
        self._steps = 0
        self._queues: dict[str, ArrivalQueue[RequestRecord]] = {}
        self._waiting: dict[str, RequestRecord] = {}
        self._running: dict[str, RequestRecord] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def received(self) -> dict[str, TenantService]:
        for record in self._running.values():
            self._catch_up(record)
        return self._received.by_tenant()

    def waiting_of(self, tenant: str) -> int:
        queue = self._queues.get(tenant)
        return len(queue) if queue is not None else 0

    def holds(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self._running

    def enqueue(self, request: QueueRequest, now_s: float = 0.0) -> bool:
        if self.holds(request.request_id):
            raise ValueError(f"request {request.request_id!r} is here already")
        if not self._accepts(request, now_s):
            return False
        self._arrivals += 1
        self._received.arrived(request.tenant)
        self._stand_in_line(RequestRecord(request, self._arrivals), lifted=True)
        return True

    def peek(self) -> QueueRequest | None:
        tenant = self._next_tenant()
        return None if tenant is None else self._queues[tenant].head().request

    def admit(self, request_id: str) -> QueueRequest:
        record = self._waiting.pop(request_id)
        self._running[request_id] = record
        self._take_out(record)
        record.since_step = self._steps
        record.resumed = record.prompt_charged
        request = record.request
        if not record.resumed:
            record.prompt_charged = True
            tokens = request.input_tokens
            self._received.add(request.tenant, self.service(tokens, 0), tokens, 0)
            self._admitted(record)
        self._entered_batch(record)
        return request

    def undo_admit(self, request_id: str) -> None:
        record = self._out_of_batch(request_id)
        if not record.resumed:
            self._return_charges(record)
        self._stand_in_line(record, lifted=False)

    def preempt(self, request_id: str) -> None:
        self._stand_in_line(self._out_of_batch(request_id), lifted=True)

    def cached(self, request_id: str, input_tokens: int) -> None:
        """A request that was resumed finds its own tokens there: its prompt was paid when they were computed."""
        record = self._running[request_id]
        if record.cached_tokens or record.resumed or not input_tokens:
            return
        self._discounted(record, min(input_tokens, record.request.input_tokens))
        self._received.add(record.request.tenant, -self._saved(record), 0, 0)

    def generated(self, request_id: str, output_tokens: int) -> None:
        record = self._running[request_id]
        self._catch_up(record)
        before = record.output_tokens
        if output_tokens > before:
            record.output_tokens = output_tokens
            self._received_output(record, before)
            self._generated(record, before)

    def decoded(self, steps: int, excluding: Collection[str] = ()) -> None:
        stalled = {request_id: self._out_of_batch(request_id) for request_id in excluding}
        self._steps += steps
        self._decoded(steps)
        for request_id, record in stalled.items():
            record.since_step = self._steps
            self._running[request_id] = record
            self._entered_batch(record)

    def finish(self, request_id: str) -> None:
        record = self._out_of_batch(request_id)
        self._finished(record)
        self._gone(record.request)

    def cancel(self, request_id: str) -> None:
        record = self._waiting.pop(request_id)
        self._take_out(record)
        if record.prompt_charged:
            self._finished(record)
        self._gone(record.request)

    def remove(self, request_id: str) -> None:
        (self.cancel if request_id in self._waiting else self.finish)(request_id)

    def _stand_in_line(self, record: RequestRecord, *, lifted: bool) -> None:
        request = record.request
        queue = self._queues.get(request.tenant)
        new_in_queue = queue is None
        if queue is None:
            if lifted:
                self._joins(request)
            queue = self._queues[request.tenant] = ArrivalQueue()
        queue.add(record.place, record)
        self._waiting[request.request_id] = record
        self._enqueued(record, new_in_queue)

    def _take_out(self, record: RequestRecord) -> None:
        tenant = record.request.tenant
        queue = self._queues[tenant]
        queue.remove(record.place)
        self._left_queue(record)
        if not queue:
            del self._queues[tenant]
            self._leaves(tenant)

    def _out_of_batch(self, request_id: str) -> RequestRecord:
        record = self._running.pop(request_id)
        self._catch_up(record)
        self._left_batch(record)
        return record

    def _output_now(self, record: RequestRecord) -> int:
        """Output tokens of a running request."""
        return record.output_tokens + self._steps - record.since_step

    def _catch_up(self, record: RequestRecord) -> None:
        """Enter the steps since it was last looked at into its count and its tenant's figures."""
        new = self._steps - record.since_step
        if new:
            record.since_step = self._steps
            record.output_tokens += new
            self._received_output(record, record.output_tokens - new)

    def _received_output(self, record: RequestRecord, before: int) -> None:
        request, after = record.request, record.output_tokens
        service = service_delta(self.service, request.input_tokens, before, after)
        self._received.add(request.tenant, service, 0, after - before)

    def _return_charges(self, record: RequestRecord) -> None:
        tokens, output_tokens = record.request.input_tokens, record.output_tokens
        charged = self.service(tokens, output_tokens) - self._saved(record)
        self._received.add(record.request.tenant, -charged, -tokens, -output_tokens)
        self._returned(record)
        record.prompt_charged, record.output_tokens, record.cached_tokens = False, 0, 0

    def _saved(self, record: RequestRecord) -> float:
        """What of its prompt's service was not charged, for it came out of a cache."""
        whole = self.service(record.cached_tokens, 0) - self.service(0, 0)
        return (1.0 - self.cached_fraction) * whole if record.cached_tokens else 0.0

    def _gone(self, request: QueueRequest) -> None:
        if not self._received.gone(request.tenant):
            self._tenant_gone(request.tenant)

    @abstractmethod
    def _next_tenant(self) -> str | None:
        """Whose line is served next; None where nobody waits, or nobody may."""

    def _accepts(self, request: QueueRequest, now_s: float) -> bool:
        """Whether an arrival is let in (RPM)."""
        return True

    def _joins(self, request: QueueRequest) -> None:
        """Its tenant has nothing waiting and is about to (VTC's counter lift)."""

    def _enqueued(self, record: RequestRecord, new_in_queue: bool) -> None:
        """The request stands in its line now; `new_in_queue`: as its tenant's only one."""

    def _left_queue(self, record: RequestRecord) -> None:
        """The request stands in its line no more; its charge, if any, comes after."""

    def _leaves(self, tenant: str) -> None:
        """The tenant's last waiting request left the queue; its charge, if any, comes after."""

    def _admitted(self, record: RequestRecord) -> None:
        """The time to charge its prompt."""

    def _discounted(self, record: RequestRecord, cached_tokens: int) -> None:
        """So many tokens of its prompt were not computed: the time to return what was charged too much."""
        record.cached_tokens = cached_tokens

    def _entered_batch(self, record: RequestRecord) -> None:
        """It runs, its prompt charged: from now on `decoded` is about it too."""

    def _generated(self, record: RequestRecord, before: int) -> None:
        """A running request was reported to have more than `before` output tokens, beside `decoded`."""

    def _decoded(self, steps: int) -> None:
        """Every running request has `steps` output tokens more; `_output_now` knows."""

    def _left_batch(self, record: RequestRecord) -> None:
        """It runs no more; its count is up to date."""

    def _returned(self, record: RequestRecord) -> None:
        """The time to return all that it was charged; its count is still what it was charged for."""

    def _finished(self, record: RequestRecord) -> None:
        """It was admitted once, and is gone: its count is final."""

    def _tenant_gone(self, tenant: str) -> None:
        """The tenant has nothing here any more."""
