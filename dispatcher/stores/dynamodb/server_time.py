"""DynamoDB's own time, from the Date header of its replies.

Leases, deadlines and expiry compare times of different processes. If the clock of a process differs from DynamoDB's by
more than SKEW_MAX_S, the process must not append to a log, because its entries would have wrong times.

The header has whole seconds, and the reply takes time to arrive. So a clock counts as wrong only if it is wrong for
every moment at which DynamoDB may have written the reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from dispatcher.model.errors import StoreUnavailable

SKEW_MAX_S = 2.0
OBSERVED_EVERY_S = 1.0


class ServerTime:
    def __init__(self) -> None:
        self._observed_at = float("-inf")
        self._ahead_s, self._behind_s = float("-inf"), float("-inf")

    def observe(self, reply: Mapping[str, Any], began: float, ended: float) -> None:
        """Compare a reply's date with the process's times before the request and after the reply."""
        if 0 <= ended - self._observed_at < OBSERVED_EVERY_S:
            return
        date = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None:
            written = parsedate_to_datetime(date).timestamp()
            self._observed_at = ended
            self._ahead_s, self._behind_s = began - (written + 1), written - ended

    def check(self) -> None:
        """Raises StoreUnavailable if this process's clock is off."""
        off_s = max(self._ahead_s, self._behind_s)
        if off_s > SKEW_MAX_S:
            direction = "ahead of" if off_s == self._ahead_s else "behind"
            raise StoreUnavailable(f"This process's clock is {off_s:.1f} s {direction} DynamoDB's: set it right.")
