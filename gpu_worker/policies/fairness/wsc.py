"""WSC, the weighted service counter: VTC where the cost of a request is relative to what is usual for its application.

A request that continues an interaction is served before a request that starts one.

Source: FairServe, section 4.3, equations (2) and (3), Algorithm 1. The counter u_i of tenant i counts requests of
usual size over the tenant's weight (the paper's user priority factor is E_i = 1 / weight). For request r of tenant i,
application app, at stage j: L_I are its input tokens without the system prompt, L_S its system tokens, L_O its output
tokens, and N the expected ones (Expectations):

    w = a N_I + b N_S + c N_O                        (2), at the admission of the request
    admission          u_i += E_i (a L_I + b L_S) / w
    an output token    u_i += E_i c / w              (3) in total, when the request ends
    next               of the tenants with a waiting request that continues an interaction: arg min u_i, that request;
                       if there is none, arg min u_i, its oldest request
    lift               as in VTC (vtc.py)

The application of a request is what the operator defines (Applications), and not what its client writes. Without one, w
is that of all requests together. Then the price of a token is the same for every tenant at any time, whatever labels
its requests carry. So a tenant's own labels change the order among its own requests, and let it lead by LEAD_MAX.

a = 1, b = 2, c = 1 as printed in the paper, "following OpenAI conventions". The last two look swapped: by those
conventions, and by the paper's own reason ("processing input tokens can be parallelized and hence is much faster
compared to processing the output tokens"), output is the most expensive: 1, 1, 2. Use `wsc:1,1,2` for that.

Invariant: a tenant that is preferred for an interaction is at most LEAD_MAX above the lowest waiting counter. The
counters of waiting tenants therefore stay within VTC's bound (its U, in these units) + LEAD_MAX, and no tenant starves.
So over any time no labelling gains a tenant more than LEAD_MAX requests of usual size, over its weight, and U.

Deviations:
- The paper charges everything when a request ends, so until then its tenant looks unserved and is served again. Here
  the input is charged at admission and the output while it is generated, as in VTC; the sum is the same.
- In the paper any label of an application is believed, and an application of one's own makes each request cost 1,
  however long it is.
- Equation (3) sums the stages of an interaction when it ends; here each stage is charged when it is served, with its
  own w.
- The paper prefers the interactions of the current batch without limit, so one endless interaction starves all other
  requests. Here an interaction is in progress from its first to its _STAGES_FIRST_MAX-th admission, in the batch or
  between two stages, and is preferred only within LEAD_MAX. Beyond either limit it is served in its tenant's turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting import ArrivalQueue, LazyMinHeap
from gpu_worker.policies.fairness.interface import Applications, QueueRequest, RequestRecord
from gpu_worker.policies.fairness.registry import PolicySpec, register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter

MEMORY = 1_000
"""Requests over which a mean is taken; the influence of older requests fades."""

_STAGES_KEPT_MAX = 10_000
"""Means that are remembered. Beyond it, the mean that was updated the longest ago is dropped."""


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """Lengths of a request in tokens. `input_tokens`: the input without the system prompt."""

    input_tokens: float
    system_tokens: float
    output_tokens: float


PRIOR = RequestLengths(256, 0, 256)


@dataclass(slots=True)
class _Mean:
    lengths: RequestLengths
    seen: int = 0

    def learn(self, new: RequestLengths) -> None:
        self.seen = min(self.seen + 1, MEMORY)
        old, part = self.lengths, 1 / self.seen
        self.lengths = RequestLengths(
            old.input_tokens + part * (new.input_tokens - old.input_tokens),
            old.system_tokens + part * (new.system_tokens - old.system_tokens),
            old.output_tokens + part * (new.output_tokens - old.output_tokens),
        )


_Label = tuple[str, int | None]
"""An application and a stage."""


class Expectations:
    """The usual lengths of a request, by application and stage of an interaction, learned from requests that ended.

    Source: FairServe, section 4.3 ("the expectation of the number of input, system, and output tokens respectively for
    the app a at stage j of an interaction", "calculated based on analysis on historical data").

    Deviations: the paper has this history before it starts; here the means are learned while requests end. Until a
    stage has an ended request, the mean of its application is used; then the mean of all requests; for the very first
    request, PRIOR. After MEMORY requests a mean gives each new request the weight 1 / MEMORY, so that it follows an
    application that changes.
    """

    def __init__(self) -> None:
        self._all = _Mean(PRIOR)
        self._means: OrderedDict[_Label, _Mean] = OrderedDict()
        """The mean lengths by application and stage; the stage None stands for all stages of the application."""

    def of(self, label: _Label | None) -> RequestLengths:
        """Return the expected lengths of a request; None: a request without an application."""
        if label is None:
            return self._all.lengths
        mean = self._means.get(label) or self._means.get((label[0], None)) or self._all
        return mean.lengths

    def learn(self, label: _Label | None, lengths: RequestLengths) -> None:
        """Add the true lengths of a request that ended."""
        self._all.learn(lengths)
        if label is None:
            return
        for key in {label: None, (label[0], None): None}:
            if key not in self._means:
                self._means[key] = _Mean(lengths)
            self._means[key].learn(lengths)
            self._means.move_to_end(key)
        while len(self._means) > _STAGES_KEPT_MAX:
            self._means.popitem(last=False)


_INTERACTIONS_KEPT_MAX = 10_000
"""Interactions with an admission count. Beyond it, the interaction admitted the longest ago is forgotten, which ends
its progress."""

_Interaction = tuple[str, str]
"""A tenant and its name for the interaction, so that no tenant can affect the interactions of another."""


class InteractionsInProgress:
    """Waiting requests that continue an interaction in progress, by tenant.

    An interaction is in progress from its first admission until it has had `stages_max` admissions. A later request of
    it is treated like any other request. `counter`: returns the counter of a tenant.

    No event reports the end of an interaction. One without further requests stays until it is forgotten.
    """

    def __init__(self, counter: Callable[[str], float], stages_max: int) -> None:
        self._stages_max = stages_max
        self._admissions: OrderedDict[_Interaction, int] = OrderedDict()
        self._waiting: dict[_Interaction, dict[int, RequestRecord]] = {}
        self._in_progress: set[_Interaction] = set()
        self._queues: dict[str, ArrivalQueue[RequestRecord]] = {}
        """The waiting requests of interactions in progress, by tenant."""
        self._tenants = LazyMinHeap(counter)

    def next(self) -> tuple[float, RequestRecord] | None:
        """Return the lowest counter of a tenant in `_queues`, and the oldest request there; None if all are empty."""
        lowest = self._tenants.lowest()
        return None if lowest is None else (lowest[0], self._queues[lowest[1]].head())

    def add_waiting(self, record: RequestRecord) -> None:
        if record.request.interaction:
            interaction = _interaction(record)
            self._waiting.setdefault(interaction, {})[record.place] = record
            if interaction in self._in_progress:
                self._add_to_queue(record)

    def remove_waiting(self, record: RequestRecord) -> None:
        if record.request.interaction:
            interaction = _interaction(record)
            del self._waiting[interaction][record.place]
            if not self._waiting[interaction]:
                del self._waiting[interaction]
            if interaction in self._in_progress:
                self._remove_from_queue(record)

    def count_admission(self, record: RequestRecord) -> None:
        if record.request.interaction:
            interaction = _interaction(record)
            self._admissions[interaction] = self._admissions.get(interaction, 0) + 1
            self._admissions.move_to_end(interaction)
            self._update_progress(interaction)
            if len(self._admissions) > _INTERACTIONS_KEPT_MAX:
                self._update_progress(self._admissions.popitem(last=False)[0])

    def undo_admission(self, record: RequestRecord) -> None:
        interaction = _interaction(record)
        if interaction in self._admissions:
            self._admissions[interaction] -= 1
            if not self._admissions[interaction]:
                del self._admissions[interaction]
            self._update_progress(interaction)

    def counter_decreased(self, tenant: str) -> None:
        self._tenants.key_decreased(tenant)

    def _update_progress(self, interaction: _Interaction) -> None:
        """Decide whether the interaction is in progress; if that changed, move its waiting requests in or out of
        `_queues`."""
        in_progress = 0 < self._admissions.get(interaction, 0) < self._stages_max
        if in_progress == (interaction in self._in_progress):
            return
        (self._in_progress.add if in_progress else self._in_progress.remove)(interaction)
        for record in self._waiting.get(interaction, {}).values():
            (self._add_to_queue if in_progress else self._remove_from_queue)(record)

    def _add_to_queue(self, record: RequestRecord) -> None:
        tenant = record.request.tenant
        if tenant not in self._queues:
            self._queues[tenant] = ArrivalQueue()
            self._tenants.add(tenant)
        self._queues[tenant].add(record.place, record)

    def _remove_from_queue(self, record: RequestRecord) -> None:
        tenant = record.request.tenant
        self._queues[tenant].remove(record.place)
        if not self._queues[tenant]:
            del self._queues[tenant]
            self._tenants.remove(tenant)


def _interaction(record: RequestRecord) -> _Interaction:
    return record.request.tenant, record.request.interaction


_STAGES_FIRST_MAX = 30
"""Admissions. The longest interactions of the paper's trace have 21 to 30 calls."""

LEAD_MAX = 10.0
"""Requests of usual size over weight. Of the paper's requests 99.4 % belong to interactions of at most 10 calls."""

_TokenWeights = tuple[float, float, float]
"""a, b, c: the weights of an input, a system and an output token."""

_PAPER_WEIGHTS: _TokenWeights = (1.0, 2.0, 1.0)


class WeightedServiceCounter(VirtualTokenCounter):
    """`service`: the unit of `received`; the counters do not depend on it. `applications`: None: there are none."""

    def __init__(
        self,
        weights: _TokenWeights = _PAPER_WEIGHTS,
        service: ServiceFunction = WEIGHTED_TOKENS,
        *,
        applications: Applications | None = None,
        stages_first_max: int = _STAGES_FIRST_MAX,
        lead_max: float = LEAD_MAX,
    ) -> None:
        super().__init__(service)
        self._linear = True
        self._weights = weights
        self._lead_max = lead_max
        self._applications = applications or Applications()
        self._expectations = Expectations()
        self._interactions = InteractionsInProgress(self._counters.value, stages_first_max)

    def peek(self) -> QueueRequest | None:
        preferred, lowest = self._interactions.next(), self._by_counter.lowest()
        if preferred is not None and lowest is not None and preferred[0] - lowest[0] <= self._lead_max:
            return preferred[1].request
        return super().peek()

    def steps_of_head(self) -> float:
        return 0

    def ignores_arrival_of(self, tenant: str) -> bool:
        """Return False: the request may continue an interaction, and then its place is another."""
        return False

    def _weighted_sum(self, lengths: RequestLengths) -> float:
        a, b, c = self._weights
        return a * lengths.input_tokens + b * lengths.system_tokens + c * lengths.output_tokens

    def _price(self, record: RequestRecord, output_tokens: int) -> float:
        saved = (1.0 - self.cached_fraction) * self._weights[0] * record.cached_tokens
        weighed = self._weighted_sum(_lengths(record.request, output_tokens)) - saved
        return weighed / record.expected / record.request.weight

    def _price_per_token(self, record: RequestRecord) -> float:
        return self._weights[2] / record.expected / record.request.weight

    def _on_queue_entered(self, record: RequestRecord, new_queue: bool) -> None:
        super()._on_queue_entered(record, new_queue)
        self._interactions.add_waiting(record)

    def _left_queue(self, record: RequestRecord) -> None:
        super()._left_queue(record)
        self._interactions.remove_waiting(record)

    def _charge_prompt(self, record: RequestRecord) -> None:
        expected = self._expectations.of(self._applications.label(record.request))
        record.expected = max(self._weighted_sum(expected), 1.0)
        super()._charge_prompt(record)
        self._interactions.count_admission(record)

    def _charge_load(self, record: RequestRecord) -> None:
        load = self._weights[0] * self.adapter_load_tokens
        self._counters.add(record.request.tenant, load / record.expected / record.request.weight)

    def _refund_charges(self, record: RequestRecord) -> None:
        super()._refund_charges(record)
        self._interactions.undo_admission(record)

    def _refund(self, tenant: str, amount: float) -> None:
        super()._refund(tenant, amount)
        self._interactions.counter_decreased(tenant)

    def _on_finish(self, record: RequestRecord) -> None:
        request = record.request
        self._expectations.learn(self._applications.label(request), _lengths(request, record.output_tokens))


def _lengths(request: QueueRequest, output_tokens: int) -> RequestLengths:
    return RequestLengths(request.input_tokens - request.system_tokens, request.system_tokens, output_tokens)


def _make(spec: PolicySpec) -> WeightedServiceCounter:
    weights = spec.numbers(3) if spec.parameter else _PAPER_WEIGHTS
    return WeightedServiceCounter((weights[0], weights[1], weights[2]), spec.service, applications=spec.applications)


register(WeightedServiceCounter, "wsc[:A,B,C]", make=_make)
