"""SLO classes: how soon a request's first token is due. Pure. Times are in seconds.

Source: QLM (SoCC 2024), sections 2 and 8, where the SLO is the P99 of the time to first token: 20 s for interactive
requests, 60 s for the first and 1 h for the second batch class of its workloads. A class says when a request is due; a
tier (policies/tiers.py) says how important it is.

A tenant has a class, and so has each of its keys. A request may name a laxer class, never a stricter one. A deferred
class uses capacity that others leave: its requests are surplus until their slack is used up (planning/entitlement.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

CLASSES_MAX = 8
"""Eight classes and three length buckets make 24 groups of one model, as many as a queue has (groups.py)."""


@dataclass(frozen=True, slots=True)
class SloClass:
    """`first_token_s`: from a request's arrival to the time at which its first token is due.

    Raises ValueError for an empty name, or a time that is not a positive finite number.
    """

    name: str
    first_token_s: float
    is_deferred: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("an SLO class needs a name")
        if not 0 < self.first_token_s < inf:
            raise ValueError(f"class {self.name!r}: first_token_s must be above 0, not {self.first_token_s!r}")

    def due_at(self, arrived_at: float) -> float:
        return arrived_at + self.first_token_s


INTERACTIVE = SloClass("interactive", 20.0)
NORMAL = SloClass("normal", 60.0)
BATCH = SloClass("batch", 3600.0, is_deferred=True)
DEFAULT_CLASSES = (INTERACTIVE, NORMAL, BATCH)


class SloClasses:
    """The configured classes, the strictest first. A deferred class is laxer than every other class.

    Raises ValueError for no class, too many, two of one name, or a deferred class that is due before another class.
    """

    def __init__(self, classes: Sequence[SloClass] = DEFAULT_CLASSES) -> None:
        if not 0 < len(classes) <= CLASSES_MAX:
            raise ValueError(f"{len(classes)} SLO classes are configured; configure 1 to {CLASSES_MAX}")
        self.ordered = tuple(sorted(classes, key=lambda each: each.first_token_s))
        self._ranks = {each.name: rank for rank, each in enumerate(self.ordered)}
        if len(self._ranks) < len(classes):
            raise ValueError(f"two SLO classes have the same name: {_names(self.ordered)}")
        direct_s = max((each.first_token_s for each in classes if not each.is_deferred), default=0.0)
        early = [each for each in self.ordered if each.is_deferred and each.first_token_s <= direct_s]
        if early:
            raise ValueError(f"deferred classes must be due after all others ({direct_s:g} s): {_names(early)}")

    @property
    def usual(self) -> SloClass:
        """Return the class of a tenant that has none: `normal` if there is one, otherwise the laxest direct class."""
        direct = [each for each in self.ordered if not each.is_deferred] or list(self.ordered)
        return next((each for each in direct if each.name == NORMAL.name), direct[-1])

    def __contains__(self, name: object) -> bool:
        return name in self._ranks

    def named(self, name: str) -> SloClass:
        """Return the class of this name. Raises ValueError for an unknown name, and lists the known ones."""
        return self.ordered[self.rank(name)]

    def rank(self, name: str) -> int:
        """Return 0 for the strictest class, and more for laxer ones. Raises ValueError for an unknown name."""
        rank = self._ranks.get(name)
        if rank is None:
            raise ValueError(f"unknown SLO class {name!r}; there are {_names(self.ordered)}")
        return rank

    def allowed(self, own: str) -> tuple[SloClass, ...]:
        """Return the classes that a request may have if its tenant's or key's class is `own`, the strictest first.

        Raises ValueError if `own` is unknown.
        """
        strictest_s = self.named(own).first_token_s
        return tuple(each for each in self.ordered if each.first_token_s >= strictest_s)

    def resolve(self, own: str, requested: str | None) -> SloClass:
        """Return the class of a request: `requested`, or `own` (the tenant's or the key's class) if it is None.

        Raises ValueError if a class is unknown, or `requested` is stricter than `own`, and lists what is allowed.
        """
        found, allowed = self.named(own if requested is None else requested), self.allowed(own)
        if found not in allowed:
            raise ValueError(f"SLO class {found.name!r} is stricter than {own!r}; allowed are {_names(allowed)}")
        return found


def _names(classes: Sequence[SloClass]) -> str:
    return ", ".join(each.name for each in classes)
