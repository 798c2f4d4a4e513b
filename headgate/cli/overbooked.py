"""The warning after a change of tenants: do the guarantees exceed what the workers deliver?"""

from __future__ import annotations

import sys
from pathlib import Path

from dispatcher.bootstrap import RealClock
from dispatcher.config import Config
from dispatcher.model.errors import ConfigurationError
from dispatcher.monitor.follower import open_follower
from dispatcher.operations.tenants import Booking, booking
from dispatcher.ports import Store
from headgate.cli.admins import admin_function
from headgate.cli.gate_store import with_store


def warn_if_overbooked(data: Path | None) -> None:
    """Compare the guarantees with the capacity, which is in the log; callers of headgate-admin may not read it. Call
    this after the change was made and its key was printed."""
    if admin_function(data):
        return
    try:
        booked = with_store(data, _booking)
    except ConfigurationError as error:
        sys.stderr.write(f"headgate: the change was made, but the capacity for the guarantees is unknown: {error}\n")
        return
    if booked.is_overbooked:
        sys.stderr.write(
            f"headgate: overbooked: the guarantees add up to {booked.promised_per_s:.0f} service units per second, "
            f"the workers serve {booked.capacity_per_s:.0f}; guarantees are scaled down while all tenants are active\n"
        )


async def _booking(store: Store, config: Config) -> Booking:
    """Return the sum of the pool's guarantees, and the capacity of its workers in the log."""
    follower = open_follower(store, config, RealClock())
    await follower.catch_up()
    return await booking(store, follower.workers(), config.pool)
