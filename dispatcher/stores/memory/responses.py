"""Kept responses in memory."""

from __future__ import annotations

from dispatcher.model.kept_response import KeptResponse


class MemoryResponses:
    def __init__(self) -> None:
        self._by_id: dict[tuple[str, str], KeptResponse] = {}

    def keep(self, new: KeptResponse, bytes_max: int, now: float) -> bool:
        self._forget(now)
        others = (each for named, each in self._by_id.items() if new.tenant == each.tenant and named[1] != new.id)
        if len(new.content) + sum(len(each.content) for each in others) > bytes_max:
            return False
        self._by_id[new.tenant, new.id] = new
        return True

    def get(self, tenant: str, response_id: str, now: float) -> KeptResponse | None:
        found = self._by_id.get((tenant, response_id))
        return None if found is None or now >= found.expires_at else found

    def delete(self, tenant: str, response_id: str, now: float) -> bool:
        found = self.get(tenant, response_id, now)
        self._by_id.pop((tenant, response_id), None)
        return found is not None

    def _forget(self, now: float) -> None:
        for named in [named for named, each in self._by_id.items() if now >= each.expires_at]:
            del self._by_id[named]
