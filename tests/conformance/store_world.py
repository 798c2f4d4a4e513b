"""What the stores' tests share: a clock that stands still, and records to store."""

from __future__ import annotations

from typing import Any

from dispatcher.model.batches import Batch, FileRecord
from dispatcher.model.kept import Invocation, KeptResponse, StoredAnswer
from dispatcher.model.requests import Endpoint
from dispatcher.model.usage import TenantRow, UsageRow

START = 1_000_000.0
SHARD = "pool-0"
EXPIRES_AT = START + 100.0


class FakeClock:
    def __init__(self, start: float = START) -> None:
        self.time = start

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def invocation(invocation_id: str = "p-0", tenant: str = "a", key: str = "k", **more: Any) -> Invocation:
    fields = {
        "pool": "default",
        "model": "m",
        "fingerprint": f"digest of {invocation_id}",
        "created_at": START + 0.1,
        "deadline_at": START + 100,
        "endpoint": Endpoint.CHAT,
        "body": '{"prompt": "é"}',
        **more,
    }
    return Invocation(id=invocation_id, tenant=tenant, key=key, **fields)


def answer(text: str = "answer", **more: Any) -> StoredAnswer:
    fields: dict[str, Any] = {"attempt": 1, "input_tokens": 2, "output_tokens": 3, "ended_at": START + 1 / 3, **more}
    return StoredAnswer(outcome=fields.pop("outcome", "done"), body=text, **fields)


def kept_response(response_id: str = "resp_p-0", tenant: str = "a", **more: Any) -> KeptResponse:
    fields: dict[str, Any] = {"content": b"\x00content", "expires_at": START + 100, **more}
    return KeptResponse(tenant, response_id, **fields)


def file(number: int = 0, tenant: str = "a") -> FileRecord:
    name = f"requests é {number}.jsonl"
    return FileRecord(f"file-{number}", tenant, name, "batch", 10 + number, START + 0.25, EXPIRES_AT)


def batch(number: int = 0, tenant: str = "a", pool: str = "default") -> Batch:
    window = ("24h", START + 0.1, START + 50.0, EXPIRES_AT)
    metadata = {"order": "é"}
    return Batch(f"batch_{number}", tenant, pool, "/v1/chat/completions", "file-1", *window, metadata)


def usage_row(tenant: str = "a", app: str = "", hour: int = 277, position: int = 1, **more: Any) -> UsageRow:
    fields = {"requests": 1, "input_tokens": 2, "output_tokens": 3, "service": 1e9 / 3, **more}
    return UsageRow(tenant, app, hour, position=position, **fields)


def tenant_row(tenant: str = "a", position: int = 1, **more: Any) -> TenantRow:
    fields: dict[str, Any] = {
        "version": 3,
        "tier": "premium",
        "weight": 0.1,
        "rate_per_s": 1e9 / 3,
        "burst": 12345.678901234567,
        "waiting": 4,
        "running": 5,
        "reserved": 10.0,
        "spent": 8.0,
        "clocks": (1_000_000.1, -0.0, 2 / 3),
        "credit": None,
        "at": START,
        **more,
    }
    return TenantRow(tenant, position=position, **fields)
