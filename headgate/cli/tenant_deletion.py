"""What `headgate tenants delete` prints: what happens to the tenant's keys, requests, data and usage, and when."""

from __future__ import annotations

from dispatcher.operations.directory import CACHE_S
from dispatcher.operations.tenants import Deleted
from dispatcher.operations.watching import WAITING_END_S
from dispatcher.stores.limits import INVOCATION_KEEP_S, USAGE_KEEP_S

HOUR_S, DAY_S = 3600.0, 86_400.0
_EXPIRES = f"responses expire after HEADGATE_RESPONSES_KEPT_S (24 h), answers after {INVOCATION_KEEP_S / HOUR_S:.0f} h"


def lines_of(deleted: Deleted, *, is_table: bool) -> list[str]:
    """Return the lines. `is_table`: the tenant was deleted in DynamoDB's table, not in a folder of `headgate serve`."""
    waits = f"end within {WAITING_END_S:.0f} s with the error tenant_deleted (403), at no cost"
    unheld = "those that no process holds (Event invokes) end unanswered, with the next sweeps or at their turn"
    return [
        f"{deleted.identity}: deleted. The name can be used again: the new tenant begins empty",
        f"  keys: refused within {CACHE_S:.0f} s everywhere, and at once where they would read kept data",
        f"  waiting requests: {waits}; {unheld}",
        "  running requests: end whole, and are charged",
        f"  kept responses, files, batches, answers under idempotency keys: {_data(deleted, is_table=is_table)}",
        f"  usage: kept for {USAGE_KEEP_S / DAY_S:.0f} days (headgate usage --tenant {deleted.identity})",
        "  audit records: never deleted",
    ]


def _data(deleted: Deleted, *, is_table: bool) -> str:
    if deleted.is_erased:
        return f"files and batches are deleted; {_EXPIRES}" if is_table else "deleted"
    stops = "an open batch stops within a minute, and the process that runs it deletes the files"
    return f"{stops}; otherwise files expire after HEADGATE_FILES_KEPT_S (30 days); {_EXPIRES}"
