"""Hours as seconds: some constants of production are made smaller, in the same ratio, so that a run of seconds sees
snapshots, cuts and expired positions. Heirs ask for receipts and read the log less often: a run spends most of its time
on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from dispatcher.policies.planning import residency
from dispatcher.service import follower, gate_process, planning, replica, snapshots
from dispatcher.shard import workers
from dispatcher.stores.memory import log as memory_log

SCALED = [
    (snapshots, "INTERVAL_S", 1.5),
    (snapshots, "ENTRIES", 5),
    (gate_process, "SHADOW_S", 2.0),
    (gate_process, "HEIR_ALIVE_S", 0.5),
    (gate_process, "FOLD_S", 1.0),
    (replica, "POSITION_MAX_AGE_S", 3.0),
    (follower, "POSITION_MAX_AGE_S", 3.0),
    (memory_log, "CUT_AFTER_S", 10.0),
    (residency, "RESIDENCY_S", 1.0),
    (planning, "SWEEP_S", 3.0),
    (workers, "RETIRE_S", 5.0),
]


@contextmanager
def scaled() -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in SCALED:
            stack.enter_context(patch.object(module, name, value))
        yield
