"""A model that a worker can load. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class LoadableModel(NamedTuple):
    """A model that a worker can load, and what is known of it. The loaded model is one of them."""

    model: str
    swap_s: float
    """Seconds to load it instead of the loaded model, from the start of the swap; 0 for the loaded model."""
    context_tokens: int
    bytes_per_token: float
    service_per_s: float
    """The worker's measured capacity with it, in service units a second; 0 while unknown."""
    capabilities: tuple[str, ...] = ()
    """What its engine supports, sorted: the names are in capabilities.py."""

    @classmethod
    def of(cls, fields: Iterable[Any]) -> LoadableModel:
        """Return the model of a list from JSON. Raises TypeError."""
        loaded = cls(*fields)
        return loaded._replace(capabilities=tuple(loaded.capabilities))
