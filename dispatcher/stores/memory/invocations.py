"""Durable invocations in memory."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.model.invocation import Invocation, StoredAnswer
from dispatcher.stores.limits import expires_at


class MemoryInvocations:
    def __init__(self) -> None:
        self._by_id: dict[str, Invocation] = {}
        self._by_key: dict[tuple[str, str], str] = {}

    def create(self, new: Invocation, now: float) -> Invocation:
        old = self.find(new.tenant, new.key, now) or self.get(new.id, now)
        if old is not None:
            return old
        self._by_id[new.id] = new
        if new.key:
            self._by_key[new.tenant, new.key] = new.id
        return new

    def get(self, invocation_id: str, now: float) -> Invocation | None:
        found = self._by_id.get(invocation_id)
        if found is not None and now >= expires_at(found):
            del self._by_id[invocation_id]
            self._by_key.pop((found.tenant, found.key), None)
            return None
        return found

    def find(self, tenant: str, key: str, now: float) -> Invocation | None:
        found = self._by_key.get((tenant, key))
        return None if found is None else self.get(found, now)

    def answer(self, invocation_id: str, answer: StoredAnswer, now: float) -> StoredAnswer | None:
        found = self.get(invocation_id, now)
        if found is None:
            return None
        if found.answer is None:
            found = self._by_id[invocation_id] = replace(found, answer=answer, body=None)
        return found.answer

    def erase(self, tenant: str) -> None:
        """Delete the answered invocations of the tenant."""
        for item in [each for each in self._by_id.values() if each.tenant == tenant and each.answer is not None]:
            del self._by_id[item.id]
            self._by_key.pop((tenant, item.key), None)

    def share(self, invocation_id: str, now: float) -> Invocation | None:
        found = self.get(invocation_id, now)
        if found is not None and found.answer is None:
            found = self._by_id[invocation_id] = replace(found, shared=True)
        return found

    def refuse(self, invocation_id: str, answer: StoredAnswer, now: float) -> StoredAnswer | None:
        found = self.get(invocation_id, now)
        if found is None or found.shared:
            return None if found is None else found.answer
        return self.answer(invocation_id, answer, now)
