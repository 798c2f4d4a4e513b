"""The gate's recent refusals. A process repeats them to the same tenant without a question to the gate.

Under overload most calls are refused. A refusal by the gate costs the front a parsed body and a task, and the leader a
decision. A repeated refusal costs neither. It is repeated only for so short a time that the tenant's full queue does
not run empty meanwhile.
"""

from __future__ import annotations

from dispatcher.model.errors import Refused


class RecentRefusals:
    """The last refusal of each tenant, kept for `within_s` seconds. Times are monotonic seconds."""

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
        """Raise the tenant's last refusal again if it is recent. Raises Refused."""
        at, refusal = self._kept.get(tenant, (now, None))
        if refusal is not None and not self._is_old(at, now):
            raise Refused(refusal.message, refusal.code, refusal.retry_after_s)

    def __len__(self) -> int:
        return len(self._kept)

    def _is_old(self, at: float, now: float) -> bool:
        return now >= at + self._within_s
