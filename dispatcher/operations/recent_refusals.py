"""The gate's recent refusals, which a process repeats without asking the gate again.

Under overload most calls are refused. Each refusal by the gate costs the front a parsed body and a task, and the leader
a decision; a repeated one costs neither. Only the tenant that was refused is refused again, and only for a time in
which its queue, which was full, does not run empty.
"""

from __future__ import annotations

from dispatcher.model.errors import Refused


class RecentRefusals:
    """The last refusal of each tenant that is younger than `within_s`. Times are monotonic seconds."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._kept: dict[str, tuple[float, Refused]] = {}
        """Oldest first."""

    def note(self, tenant: str, refusal: Refused, now: float) -> None:
        """Remember that the gate refused the tenant."""
        self._kept.pop(tenant, None)
        self._kept[tenant] = now, refusal
        while self._is_old(next(iter(self._kept.values()))[0], now):
            del self._kept[next(iter(self._kept))]

    def check(self, tenant: str, now: float) -> None:
        """Raise the tenant's refusal again, if it is recent. Raises Refused."""
        at, refusal = self._kept.get(tenant, (now, None))
        if refusal is not None and not self._is_old(at, now):
            raise Refused(refusal.message, refusal.code, refusal.retry_after_s)

    def __len__(self) -> int:
        return len(self._kept)

    def _is_old(self, at: float, now: float) -> bool:
        return now >= at + self._within_s
