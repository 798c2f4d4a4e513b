"""The workers as the planner sees them, and how fast each kind serves each model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class FleetWorker:
    """A worker that can load several models, one at a time.

    `kind`: workers of one kind serve equally fast. `loaded`: its model, "" for none. `loaded_at`: since when, in Unix
    seconds. A worker that swaps has its new model, since the expected end of the swap. `free_s`: until the swap and the
    requests that run now have ended. `slots`: requests that run at once.

    `swap_s`: seconds to make each model the loaded one, 0 for the loaded one; a model that is absent, or has an
    infinite time, does not fit. `service_per_s`: service units per second by model; unknown if absent or not a positive
    finite number.

    Raises ValueError for an impossible number.
    """

    name: str
    kind: str
    loaded: str
    loaded_at: float
    swap_s: Mapping[str, float]
    free_s: float
    service_per_s: Mapping[str, float]
    slots: int

    def __post_init__(self) -> None:
        if not isfinite(self.loaded_at):
            raise ValueError(f"worker {self.name!r} is loaded since {self.loaded_at!r}; a finite time is needed")
        if not 0 <= self.free_s < inf:
            raise ValueError(f"worker {self.name!r}: free_s must be finite and not negative, not {self.free_s!r}")
        if not all(each >= 0 for each in self.swap_s.values()):
            raise ValueError(f"worker {self.name!r} has a swap time that is negative or no number")
        if self.slots < 1:
            raise ValueError(f"worker {self.name!r} has {self.slots} slots; it needs at least one")

    def fits(self, model: str) -> bool:
        """Return whether the model is loaded or can be loaded."""
        return self.swap_to_s(model) < inf

    def swap_to_s(self, model: str) -> float:
        """Return the seconds of a swap to the model: 0 if it is loaded, infinite if it does not fit."""
        return 0.0 if model == self.loaded else self.swap_s.get(model, inf)


class ServiceRates:
    """Service units per second, by kind of worker and model: the mean of what is measured on the kind's workers.

    Without a measurement it is the mean of the model's on other kinds; without that, of all measurements.
    """

    def __init__(self, workers: Sequence[FleetWorker], models: Iterable[str]) -> None:
        measured = [
            (worker.kind, model, rate)
            for model in sorted(set(models))
            for worker in workers
            if 0 < (rate := worker.service_per_s.get(model, 0.0)) < inf
        ]
        self._of_kind = _means(((kind, model), rate) for kind, model, rate in measured)
        self._of_model = _means((model, rate) for _, model, rate in measured)
        self._of_all = _means(("", rate) for _, _, rate in measured).get("", 0.0)

    @property
    def are_known(self) -> bool:
        """Whether there is any measurement. Without one, no time can be planned."""
        return self._of_all > 0

    def per_s(self, kind: str, model: str) -> float:
        return self._of_kind.get((kind, model)) or self._of_model.get(model) or self._of_all


Key = TypeVar("Key")


def _means(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    found: dict[Key, list[float]] = {}
    for key, rate in pairs:
        found.setdefault(key, []).append(rate)
    return {key: sum(rates) / len(rates) for key, rates in found.items()}
