"""Random sequences of calls for queue policies, applied to one policy or to two alike."""

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
"""The example of each registered policy, and some parameters that bring out what is special about a policy."""

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
    """Make a request. Weight, application and interaction follow from the tenant; some state their output length."""
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
    """Applies every call that makes sense to `policy` and to `one_by_one`. The first policy chooses the admissions.

    Steps are reported to the first policy at once (`decoded`) and to the second token by token (`generated`).
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
        """Admitted after the last step."""

    def apply(self, number: int, call: Call) -> None:
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
        self.policies[0].on_decoded(steps, excluding)
        generating = [request_id for request_id in self.running if request_id not in excluding]
        for request_id in [request_id for _ in range(steps) for request_id in generating]:
            self._tokens[request_id] = self._tokens.get(request_id, 0) + 1
            for policy in self.policies[1:]:
                policy.on_generated(request_id, self._tokens[request_id])
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
    """Return the counters of these tenants; empty for a policy without counters."""
    found = {tenant: policy.counter(tenant) for tenant in tenants}
    return {tenant: counter for tenant, counter in found.items() if counter is not None}
