"""A plan as it is in the log: the model of each worker, and its order of request groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

GROUPS_MAX = 64
"""The groups of a plan in the log."""
ORDER_MAX = 16
"""The groups in the order of one worker."""


class WorkerPlan(NamedTuple):
    """`model`: the model that the worker should have now. `order`: the numbers of its groups, first to last."""

    worker: str
    model: str
    order: tuple[int, ...]

    @classmethod
    def of(cls, fields: Iterable[Any]) -> WorkerPlan:
        """Return the plan of a list from JSON. Raises TypeError."""
        loaded = cls(*fields)
        return loaded._replace(order=tuple(loaded.order))


class GroupPlan(NamedTuple):
    """Requests that are planned together. `due_at`: of the first one; `ends_at`: when the last one is expected to be
    served; both in Unix seconds. `tenant` is empty for the groups that a plan in the log has no room for."""

    tenant: str
    model: str
    slo_class: str
    length_bucket: int
    requests: int
    due_at: float
    ends_at: float
    is_entitled: bool

    @property
    def is_late(self) -> bool:
        return self.ends_at > self.due_at

    @property
    def late_s(self) -> float:
        """The seconds from the due time of the first request to the expected end of the last, if that is later."""
        return max(0.0, self.ends_at - self.due_at)
