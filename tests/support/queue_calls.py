"""Random lives of requests in a queue policy, played on one policy or on several alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.fairness.registry import POLICIES, all_policies

all_policies()
EVERY_NAME = sorted(
    {*(entry.example for entry in POLICIES.values()), "wsc:1,1,2", "drr:0.0078125", "vtc-cap:60", "tiered:wsc"}
)
every_policy = pytest.mark.parametrize("name", EVERY_NAME)
"""Of each registered policy its example, and the parameters with which some are most themselves."""

Call = tuple[str, int, int]
calls = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "admit", "admit", "steps", "steps", "end", "back", "evict", "cancel"]),
        st.integers(0, 4),
        st.integers(0, 40),
    ),
    max_size=60,
)


def request(number: int, tenant: int, tokens: int) -> QueueRequest:
    """Its weight, application and interaction follow from its tenant; some say their output length, some do not."""
    interaction = f"i{tokens % 3}" if tenant % 2 else ""
    output_tokens = tokens // 2 if tokens % 4 else None
    return QueueRequest(
        f"r{number:03}",
        f"t{tenant}",
        tokens,
        2.0 ** (tenant % 3),
        output_tokens,
        f"app{tenant % 2}",
        tokens % 3,
        interaction,
        tokens // 3,
    )


class Story:
    """Make the calls that are valid, on `policy` and on `one_by_one` alike; `policy` picks what is admitted.

    `policy` gets a step's tokens at once (`decoded`), `one_by_one` gets them one request at a time (`generated`).
    """

    def __init__(self, policy: QueuePolicy, one_by_one: QueuePolicy | None = None) -> None:
        self.policies = [policy] if one_by_one is None else [policy, one_by_one]
        self._tokens: dict[str, int] = {}
        self.requests: dict[str, QueueRequest] = {}
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.admitted: list[str] = []
        self.ended: list[str] = []
        self._evicted: set[str] = set()
        self._fresh: set[str] = set()
        """Admitted, and no step since."""

    def tell(self, number: int, call: Call) -> None:
        what, tenant, tokens = call
        if what == "put":
            self.put(request(number, tenant, tokens))
        elif what == "admit":
            self.admit()
        elif what == "steps":
            self.steps(tokens % 12, self.running[tokens % 3 :: 3] if tokens % 4 == 0 else [])
        elif what == "cancel" and self.waiting:
            self.end(self.waiting[tokens % len(self.waiting)])
        elif self.running:
            self._of_running(what, self.running[tokens % len(self.running)])

    def put(self, new: QueueRequest) -> None:
        if {policy.enqueue(new, float(len(self.requests))) for policy in self.policies} == {True}:
            self.waiting.append(new.request_id)
        self.requests[new.request_id] = new

    def admit(self) -> None:
        head = self.policies[0].peek()
        if head is None:
            return
        for policy in self.policies:
            policy.admit(head.request_id)
        self.waiting.remove(head.request_id)
        self.running.append(head.request_id)
        self.admitted.append(head.request_id)
        self._fresh.add(head.request_id)

    def steps(self, steps: int, excluding: Sequence[str] = ()) -> None:
        self.policies[0].decoded(steps, excluding)
        generating = [request_id for request_id in self.running if request_id not in excluding]
        for request_id in [request_id for _ in range(steps) for request_id in generating]:
            self._tokens[request_id] = self._tokens.get(request_id, 0) + 1
            for policy in self.policies[1:]:
                policy.generated(request_id, self._tokens[request_id])
        if steps:
            self._fresh.clear()

    def end(self, request_id: str) -> None:
        for policy in self.policies:
            policy.remove(request_id)
        (self.waiting if request_id in self.waiting else self.running).remove(request_id)
        self.ended.append(request_id)

    def _of_running(self, what: str, request_id: str) -> None:
        if what == "end":
            self.end(request_id)
        elif what == "evict" or (what == "back" and request_id in self._fresh):
            for policy in self.policies:
                (policy.preempt if what == "evict" else policy.undo_admit)(request_id)
            self.running.remove(request_id)
            self.waiting.append(request_id)
            if what == "evict":
                self._evicted.add(request_id)
            elif request_id not in self._evicted:
                self.admitted.remove(request_id)


def counters(policy: QueuePolicy, tenants: Sequence[str]) -> dict[str, float]:
    """Empty for a policy that has none."""
    found = {tenant: policy.counter(tenant) for tenant in tenants}
    return {tenant: counter for tenant, counter in found.items() if counter is not None}
