"""The warning after a change of tenants: do the guarantees exceed what the workers deliver?"""

from __future__ import annotations

import sys
from pathlib import Path

from dispatcher.model.errors import ConfigurationError
from dispatcher.monitor.follower import open_follower
from dispatcher.operations.administration import Booking, booking
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock
from dispatcher.settings.config import Config
from headgate.cli.tenants.admins import admin_function
from headgate.cli.terminal.gate_store import with_store


def warn_if_overbooked(data: Path | None) -> None:
    """Compare the guarantees with the capacity, which is in the log; callers of headgate-admin may not read it. Call
    this after the change was made and its key was printed."""
    if admin_function(data):
        return
    try:
        bookings = with_store(data, _bookings)
    except ConfigurationError as error:
        sys.stderr.write(f"headgate: the change was made, but the capacity for the guarantees is unknown: {error}\n")
        return
    for pool, booked in bookings.items():
        if not booked.is_overbooked:
            continue
        place = f" in pool {pool}" if len(bookings) > 1 else ""
        sys.stderr.write(
            f"headgate: overbooked{place}: the guarantees add up to {booked.promised_per_s:.0f} service units per "
            f"second, the workers serve {booked.capacity_per_s:.0f}; guarantees are scaled down while all tenants are "
            "active\n"
        )


async def _bookings(store: Store, config: Config) -> dict[str, Booking]:
    """Return for each pool the sum of its guarantees, and the capacity of its workers in the log."""
    tenants, found = await store.list_tenants(), dict[str, Booking]()
    for each in config.each_pool():
        follower = open_follower(store, each, RealClock())
        await follower.catch_up()
        found[each.pool] = booking(tenants, follower.workers(), each.models)
    return found
