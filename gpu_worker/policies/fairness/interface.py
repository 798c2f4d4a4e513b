"""The interface of queue policies: what they know of a request, and which waiting one enters the engine's batch next.

A policy is pure and knows no engine. An engine adapter reports each change to the policy and asks for the next request:

    enqueue ──▶ waiting ──admit──▶ running ──generated*, decoded*──▶ finish
       │           │  ▲               │
    (False)     cancel ├─ undo_admit ─┤   the request did not fit after all; the charge of the admission is refunded
    refused            └── preempt ───┘   the request ran and was evicted; it keeps its charges

Service is charged when it is delivered: the prompt at admission and each output token when it is generated, always as a
difference of h. The charges of a request therefore add up to h of its final lengths (VTC, section 4.2). No token is
charged twice: a request that resumes after a preemption does not pay for its prompt again, and its recomputed tokens
are free up to the largest output length that it has reported.

To add a policy, write one file in this folder with one class (most extend tenant_queues.py) and register it there.
tests/conformance then tests it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from dispatcher.policies.service import ADAPTER_LOAD_TOKENS, CACHED_FRACTION
from dispatcher.policies.share_bounds import clamp_weight
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.accounting import TenantService
from gpu_worker.policies.fairness.locality import LOOKUPS_MAX, PrefixLookups


@dataclass(slots=True, unsafe_hash=True)
class QueueRequest:
    """A request as a queue policy sees it; lengths are in tokens. Nothing changes it. It is not frozen: a frozen one
    takes six times as long to make, as long as the policy's decision.

    `weight`: the share of its tenant, a positive number. `system_tokens`: the part of `input_tokens` that is the system
    prompt. `output_tokens`: the true output length, which only a simulator knows beforehand; an engine leaves it None
    and sets `output_tokens_max`, the longest output allowed, or the expected one if the client set no limit.

    `interaction`: its tenant's name for the interaction that the request belongs to, "" for none. `app`, `stage`: its
    tenant's labels for the application and the stage of the interaction (Applications). `deadline_s`: when the answer
    becomes useless, on the clock of the policy.

    A weight outside the bounds of the gate (dispatcher/policies/share_bounds.py) is clamped: otherwise one request of a
    tiny weight would lift the counters of all later tenants beyond the precision of a float.

    Raises ValueError for a weight or a length that is impossible.
    """

    request_id: str
    tenant: str
    input_tokens: int
    weight: float = 1.0
    output_tokens: int | None = None
    app: str = ""
    stage: int = 0
    interaction: str = ""
    system_tokens: int = 0
    output_tokens_max: int | None = None
    tier: Tier = Tier.STANDARD
    deadline_s: float = inf

    def __post_init__(self) -> None:
        if self.weight != 1.0:
            if not 0 < self.weight < inf:
                raise ValueError(f"weight must be a positive number, not {self.weight!r}")
            self.weight = clamp_weight(self.weight)
        if self.input_tokens < 0:
            raise ValueError(f"input_tokens must not be negative, not {self.input_tokens!r}")
        if not 0 <= self.system_tokens <= self.input_tokens:
            raise ValueError(f"system_tokens must be a part of input_tokens, not {self.system_tokens!r}")


@dataclass(frozen=True, slots=True)
class Applications:
    """The applications that the operator defines. A policy that prices a request by its application (wsc.py) believes
    only these: a client that could choose its price by a label would take the share of others.

    `by_tenant`: the application of each tenant that has one. `as_labelled`: the labels of the requests themselves are
    the operator's, their stages included: in a workload that is simulated, or where no client reaches the engine.
    """

    by_tenant: Mapping[str, str] = field(default_factory=dict)
    as_labelled: bool = False

    def label(self, request: QueueRequest) -> tuple[str, int | None] | None:
        """Return the application and the stage of a request; the stage None stands for all; None if it has neither."""
        if self.as_labelled:
            return request.app, request.stage
        app = self.by_tenant.get(request.tenant)
        return None if app is None else (app, None)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """The state of a request in a queue policy, from `enqueue` to its end.

    `place`: its number in the order of arrival; a preempted request returns to this place. `prompt_charged`: whether
    the prompt has been charged. `resumed`: whether the request ran before its current admission.

    `preemptions`: how often the request was preempted. `output_tokens`: the largest output length reported so far.
    While the request runs, it is the length at decode step `since_step` of the policy, and each later step adds one
    token.

    `counted`: its input tokens, output tokens and service that its tenant's received service includes already.

    `per_token`: what its tenant's counter rises by with each of its tokens, since it last entered the batch (vtc.py).
    `predicted`: the predicted output length, charged in advance (vtc_predicted.py). `expected`: the usual cost of such
    a request, in weighted tokens (wsc.py). `cached_tokens`: prompt tokens found in the prefix cache and charged at the
    reduced price. `overtaken`: how many later requests of its tenant were admitted before it (locality.py).
    """

    request: QueueRequest
    place: int
    prompt_charged: bool = False
    resumed: bool = False
    preemptions: int = 0
    output_tokens: int = 0
    since_step: int = 0
    counted: tuple[int, int, float] = (0, 0, 0.0)
    predicted: int | None = None
    expected: float = 1.0
    per_token: float = 0.0
    cached_tokens: int = 0
    overtaken: int = 0

    @property
    def request_id(self) -> str:
        return self.request.request_id


Precedence = tuple[float, float]
"""How far a running request ranks behind a waiting one: tier ranks, then service over weight. The running request with
the highest precedence is evicted first."""


TenantFigures = tuple[str, int, int, float, float | None]
"""A tenant; its input tokens, output tokens and service; its counter while it has waiting requests, otherwise None."""


class QueuePolicy(ABC):
    """A method raises KeyError for an unknown request. Times are seconds on any clock that never goes back."""

    work_conserving = True
    """Whether some request is next whenever a request waits."""
    cached_fraction = CACHED_FRACTION
    """Price of a prompt token found in the prefix cache, as a fraction of the price of a computed one, 0 to 1."""
    locality = False
    """Whether requests with longer cached prefixes should go first (locality.py). An engine that can look prefixes up
    then calls `use_lookups`."""
    loaded_first = False
    """Whether requests with loaded LoRA adapters should go first (loaded_first.py). An engine with adapters then calls
    `use_lookups`."""
    lookups_max = LOOKUPS_MAX
    """The most prefixes that an engine may look up for this policy in a pass of admissions."""

    def use_lookups(self, lookups: PrefixLookups) -> None:
        """Let requests with longer cached prefixes go first from now on. The engine begins the passes of `lookups`."""

    adapter_load_tokens = ADAPTER_LOAD_TOKENS
    """Input tokens that a load of a LoRA adapter is charged as."""

    @property
    @abstractmethod
    def waiting(self) -> int: ...

    @property
    @abstractmethod
    def running(self) -> int: ...

    @property
    @abstractmethod
    def received(self) -> dict[str, TenantService]:
        """Service of each tenant so far, as a copy. Of absent tenants only the last ABSENT_KEPT_MAX are kept."""

    @abstractmethod
    def waiting_of(self, tenant: str) -> int: ...

    @abstractmethod
    def holds(self, request_id: str) -> bool:
        """Return whether the request is waiting or running."""

    @abstractmethod
    def record(self, request_id: str) -> RequestRecord:
        """Return the record of a waiting or running request, with its output length up to date."""

    @abstractmethod
    def enqueue(self, request: QueueRequest, now_s: float = 0.0) -> bool:
        """Add a request that arrived. Return False if the policy refuses it; nothing is kept of it then.

        Raises ValueError if a request of this id is waiting or running.
        """

    @abstractmethod
    def peek(self) -> QueueRequest | None:
        """Return the request to admit next; None if no request waits or none is allowed to run now."""

    @abstractmethod
    def set_aside(self, request_id: str) -> None:
        """Go on without a waiting request, which is not next until `take_back`. It keeps its place, and its tenant
        counts as waiting. `admit` and `cancel` take it back."""

    @abstractmethod
    def take_back(self, request_id: str) -> None:
        """Consider a request again. Does nothing for one that is not set aside."""

    def steps_of_head(self) -> float:
        """Return for how many decode steps `peek` surely returns the same request; 0: unknown. Meanwhile requests may
        arrive that the policy ignores; nothing else happens.

        A simulated engine leaves out the attempts to admit that would fail for the same request again.
        """
        return 0

    def ignores_arrival_of(self, tenant: str) -> bool:
        """Return whether a request of this tenant that arrives now surely does not change which request is next, and
        nothing that is noted of it depends on what running requests have generated. False while no request waits.

        A simulated engine reports decode steps before such an arrival only after it.
        """
        return False

    @abstractmethod
    def admit(self, request_id: str) -> QueueRequest:
        """Move a request from its queue to the batch, and charge its prompt unless it was charged before."""

    @abstractmethod
    def undo_admit(self, request_id: str) -> None:
        """Return a request to its old place in the queue, and refund all charges of this admission.

        Call it only within the pass that admitted the request; a request that has run is preempted instead. A resumed
        request keeps the charges from before its preemption.
        """

    @abstractmethod
    def preempt(self, request_id: str, *, counts: bool = True) -> None:
        """Return a request that ran to its old place in the queue. It keeps its charges.

        `counts`: as one of its preemptions; not where no other request took its place (a reset of the cache).
        """

    @abstractmethod
    def on_cached(self, request_id: str, input_tokens: int) -> None:
        """Report how many prompt tokens of a running request came from the prefix cache.

        The first report refunds the discount on these tokens; later reports change nothing.
        """

    @abstractmethod
    def on_adapter_loaded(self, request_id: str) -> None:
        """Charge the tenant of a running request for the load of its adapter (policies/adapters.py).

        Call it once the admission is certain: `undo_admit` does not refund it.
        """

    @abstractmethod
    def on_prompt_counted(self, request_id: str, input_tokens: int) -> None:
        """Report the true prompt length of a running request that was admitted with an estimate.

        The difference is charged or refunded, as if the length had been known at admission.
        """

    @abstractmethod
    def on_generated(self, request_id: str, output_tokens: int) -> None:
        """Report the total output length of a running request; tokens beyond the largest report so far are charged."""

    @abstractmethod
    def on_decoded(self, steps: int, excluding: Collection[str] = ()) -> None:
        """Report that every running request, except those in `excluding`, generated `steps` more tokens."""

    @abstractmethod
    def finish(self, request_id: str) -> None:
        """Remove a running request that completed or was aborted."""

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """Remove a waiting request."""

    @abstractmethod
    def remove(self, request_id: str) -> None:
        """Remove a request by `finish` or by `cancel`, as its state requires."""

    # For reports about the tenants that changed (changed_tenants.py). A policy of policies has none of its own.

    @property
    def changes(self) -> int:
        """Return for how many tenants `take_changed` has something."""
        return 0

    def take_changed(self, most: int) -> list[TenantFigures]:
        """Return the figures of up to `most` tenants whose service, counter or queue changed since they were last
        returned, the oldest change first. What running requests generated counts once it is brought up to date."""
        return []

    def running_requests(self) -> list[str]:
        """Return the ids of the running requests."""
        return []

    def update_outputs(self, request_ids: Iterable[str]) -> None:
        """Bring the outputs of those of these requests that run up to date, and the service of their tenants."""

    # The defaults below are for a policy without tiers: it never evicts a request.

    def advance_to(self, now_s: float) -> None:
        """Set the time, before a pass of admissions."""

    def heads(self) -> list[QueueRequest]:
        """Return the next request, then the alternatives in order: each is next if those before it do not fit and may
        be passed over."""
        head = self.peek()
        return [] if head is None else [head]

    def precedence(self, waiting: QueueRequest, running_id: str) -> Precedence | None:
        """Return how far a running request ranks behind a waiting one; None if it must not be evicted for it."""
        return None

    def pause_precedence(self, waiting: QueueRequest, running_id: str) -> Precedence | None:
        """Return how far a running prompt ranks behind a waiting one; None if it must not be paused for it.

        A paused prompt keeps all that it has, and its tier has its turns (step_tokens.py). So what protects a request
        from an eviction does not count here.
        """
        return None

    def counter(self, tenant: str) -> float | None:
        """Return the tenant's counter, in service units over weight; None if the policy has no counters."""
        return None

    def may_exceed(self, level: float) -> bool:
        """Return False if certainly no tenant with running requests has a counter above `level`: a fast pre-check."""
        return False

    def counters(self) -> list[dict[str, float]]:
        """Return the counters of tenants with waiting requests. The policy bounds the differences within each dict."""
        return []
