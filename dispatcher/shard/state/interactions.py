"""The interactions that are under way: only throttling needs them, and clients choose their names."""

from __future__ import annotations

from collections import Counter

from dispatcher.shard.state.grouped import GroupedDict

INTERACTIONS_MOST = 10_000
"""The most interactions of a tenant that are remembered. The calls of further ones are throttled like first calls."""

Key = tuple[str, str]
"""A tenant and an interaction."""


class Interactions(GroupedDict[Key, float]):
    """When the last call of each interaction was accepted, in Unix seconds. It counts those of each tenant."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def __setitem__(self, key: Key, at: float) -> None:
        if key not in self:
            self._counts[key[0]] += 1
        super().__setitem__(key, at)

    def __delitem__(self, key: Key) -> None:
        super().__delitem__(key)
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]

    def has_room(self, key: Key) -> bool:
        """Return whether the interaction is remembered, or may be."""
        return key in self or self._counts[key[0]] < INTERACTIONS_MOST

    def restore(self, key: Key, at: float | None) -> None:
        """Set the time of an interaction; None: forget it."""
        if at is None:
            del self[key]
        else:
            self[key] = at
