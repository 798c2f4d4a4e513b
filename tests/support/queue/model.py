"""A minimal batch engine, and Algorithm 2 of the VTC paper written down literally, with its scan."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest


@dataclass(frozen=True)
class Job:
    tenant: str
    input_tokens: int
    output_tokens: int
    weight: float = 1.0


class BatchModel:
    """A step admits requests and then generates a token for each running one.

    `pool_tokens`: M, the most tokens of prompts and complete outputs that running requests may have together.
    """

    def __init__(self, policy: QueuePolicy, pool_tokens: int) -> None:
        self.policy = policy
        self.pool_tokens = pool_tokens
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, int] = {}
        self.admitted: list[str] = []

    def arrive(self, job: Job) -> str:
        request_id = f"r{len(self.jobs):04}"
        self.jobs[request_id] = job
        self.policy.enqueue(QueueRequest(request_id, job.tenant, job.input_tokens, job.weight, job.output_tokens))
        return request_id

    def step(self, *, undo_last_admit: bool = False) -> None:
        admitted = self.admit()
        if undo_last_admit and admitted:
            self.undo_admit(admitted[-1])
        self.decode()

    def admit(self) -> list[str]:
        admitted = []
        while (head := self.policy.peek()) is not None and self._fits(head.request_id):
            self.policy.admit(head.request_id)
            self.running[head.request_id] = 0
            admitted.append(head.request_id)
        self.admitted += admitted
        return admitted

    def undo_admit(self, request_id: str) -> None:
        self.policy.undo_admit(request_id)
        del self.running[request_id]
        self.admitted.remove(request_id)

    def decode(self) -> None:
        for request_id in list(self.running):
            self.running[request_id] += 1
            self.policy.on_generated(request_id, self.running[request_id])
            if self.running[request_id] >= self.jobs[request_id].output_tokens:
                self.policy.finish(request_id)
                del self.running[request_id]

    def service(self, tenant: str) -> float:
        got = self.policy.received.get(tenant)
        return got.service if got is not None else 0.0

    def _fits(self, request_id: str) -> bool:
        held = sum(self._size(other) for other in self.running)
        return held + self._size(request_id) <= self.pool_tokens

    def _size(self, request_id: str) -> int:
        return self.jobs[request_id].input_tokens + self.jobs[request_id].output_tokens


class LiteralVtc:
    """Lines 1 to 31 by number. Counters are kept for ever, the choice is a scan, and ties go by name."""

    W_P, W_Q = 1, 2

    def __init__(self) -> None:
        self.c: dict[str, float] = {}
        self.q: list[tuple[str, str]] = []
        self.batch: dict[str, str] = {}
        self.jobs: dict[str, Job] = {}
        self.last_left: str | None = None

    def arrive(self, r: str, job: Job) -> None:
        u = job.tenant
        self.jobs[r] = job
        self.c.setdefault(u, 0.0)  # line 2
        if not any(client == u for _, client in self.q):  # line 7
            if not self.q:  # line 8
                if self.last_left is not None:
                    self.c[u] = max(self.c[u], self.c[self.last_left])  # lines 9 and 10
            else:
                p = {client for _, client in self.q}  # line 12
                self.c[u] = max(self.c[u], min(self.c[i] for i in p))  # line 13
        self.q.append((r, u))

    def pick(self) -> str | None:
        if not self.q:
            return None
        k = min({client for _, client in self.q}, key=lambda client: (self.c[client], client))  # line 20
        return next(r for r, client in self.q if client == k)  # line 21

    def admit(self, r: str) -> None:
        k = self.jobs[r].tenant
        self.c[k] += self.W_P * self.jobs[r].input_tokens / self.jobs[r].weight  # line 24
        self.batch[r] = k
        self.remove(r)  # line 26

    def undo_admit(self, r: str) -> None:
        k = self.batch.pop(r)
        self.c[k] -= self.W_P * self.jobs[r].input_tokens / self.jobs[r].weight
        self.q.append((r, k))
        self.q.sort()

    def decode(self, r: str) -> None:
        self.c[self.batch[r]] += self.W_Q / self.jobs[r].weight  # line 30

    def finish(self, r: str) -> None:
        del self.batch[r]  # line 31

    def remove(self, r: str) -> None:
        self.last_left = self.jobs[r].tenant
        self.q = [(other, client) for other, client in self.q if other != r]
