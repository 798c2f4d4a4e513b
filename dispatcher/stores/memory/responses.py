"""Kept responses in memory."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from dispatcher.model.kept_response import KeptResponse
from dispatcher.model.usage import HOUR_S
from dispatcher.stores.limits import counted_until

FORGOTTEN_AT_ONCE_MAX = 20
"""Each kept response deletes at most this many expired ones."""


class MemoryResponses:
    def __init__(self) -> None:
        self._by_id: dict[tuple[str, str], KeptResponse] = {}
        """The oldest first."""
        self._bytes: dict[str, Counter[int]] = {}
        """Maps a tenant and an hour to the bytes that count until this hour."""

    def keep(self, new: KeptResponse, bytes_max: int, now: float) -> bool:
        self._forget(now)
        counted = self._bytes.get(new.tenant, Counter())
        hours = Counter({hour: size for hour, size in counted.items() if now < hour * HOUR_S})
        if hours.total() + len(new.content) > bytes_max:
            return False
        self._bytes[new.tenant] = hours
        self._drop(new.tenant, new.id)
        self._by_id[new.tenant, new.id] = new
        hours[counted_until(new)] += len(new.content)
        return True

    def get(self, tenant: str, response_id: str, now: float) -> KeptResponse | None:
        found = self._by_id.get((tenant, response_id))
        return None if found is None or now >= found.expires_at else found

    def delete(self, tenant: str, response_id: str, now: float) -> bool:
        found = self.get(tenant, response_id, now)
        if found is not None:
            self._drop(tenant, response_id)
        return found is not None

    def erase(self, tenant: str) -> None:
        self._bytes.pop(tenant, None)
        for named in [named for named in self._by_id if named[0] == tenant]:
            del self._by_id[named]

    def _drop(self, tenant: str, response_id: str) -> None:
        """Delete the response, if there is one, and give its bytes back."""
        old = self._by_id.pop((tenant, response_id), None)
        if old is not None:
            self._bytes[tenant][counted_until(old)] -= len(old.content)

    def _forget(self, now: float) -> None:
        """Delete some expired responses. Their bytes count until the end of their hour."""
        oldest = list(islice(self._by_id, FORGOTTEN_AT_ONCE_MAX))
        for named in [named for named in oldest if now >= self._by_id[named].expires_at]:
            del self._by_id[named]
