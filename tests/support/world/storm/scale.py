"""Hours as seconds: some constants of production are made smaller, in the same ratio, so that a run of seconds sees
snapshots, cuts and expired positions. Heirs ask for receipts and read the log less often: a run spends most of its time
on them.

In some seeds some bounds are small too, so that a run reaches them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from dispatcher.model import usage
from dispatcher.policies.orders import queues
from dispatcher.policies.planning import fleet
from dispatcher.service import frames, kept_answers, snapshots
from dispatcher.service.gate import courier, faults, follower, group_commit, leader, planning, replica
from dispatcher.service.gate import process as gate_process
from dispatcher.shard import accept, codec, snapshot, steps, workers
from dispatcher.shard import proposals as plan_command
from dispatcher.shard.state import forgetting, indexes, records, remembered, state
from dispatcher.shard.waits import learned as wait_learned
from dispatcher.shard.waits import record as wait_record
from tests.support.world import memory_store
from tests.support.world.storm.oracles import ends
from tests.support.world.storm.weather import Weather

SCALED = [
    (snapshots, "INTERVAL_S", 1.5),
    (snapshots, "ENTRIES", 5),
    (gate_process, "SHADOW_S", 2.0),
    (gate_process, "HEIR_ALIVE_S", 0.5),
    (gate_process, "FOLD_S", 1.0),
    (replica, "POSITION_MAX_AGE_S", 3.0),
    (follower, "POSITION_MAX_AGE_S", 3.0),
    (memory_store, "CUT_AFTER_S", 10.0),
    (fleet, "RESIDENCY_S", 1.0),
    (planning, "SWEEP_S", 3.0),
    (workers, "RETIRE_S", 5.0),
]


SMALL: list[tuple[Any, str, float]] = [
    (usage, "HOUR_S", 10.0),
    (remembered, "ENDS_LEAST", 16),
    (remembered, "ENDS_MOST", 24),
    (remembered, "ENDS_KEPT_S", 2.0),
    (remembered, "INTERACTIONS_MOST", 1),
    (remembered, "FEW", 1),
    (forgetting, "CLEANED_EVERY_S", 3.0),
    (replica, "COMMANDS_MAX", 3),
    (replica, "ENTRY_FULL", 500),
    (follower, "READ_MAX", 3),
    (follower, "PAUSE_BYTES", 100),
    (records, "ACCEPTED_KEPT", 2),
    (leader, "BACKLOG_MAX", 3),
    (faults, "CREDIT_MAX", 3.0),
    (faults, "HALVED_MAX", 1),
    (faults, "SUSPECTS_MAX", 1),
    (kept_answers, "AT_ONCE", 1),
    (accept, "APPS_MAX", 1),
    (snapshots, "ROWS_PER_S", 1),
    (snapshots, "ROWS_MAX", 2),
    (courier, "UNDER_WAY_MAX", 1),
    (indexes, "SLOTS_SLACK", 1),
    (indexes, "DEADLINES_SLACK", 1),
    (queues, "SLACK", 1),
    (queues, "BLOCK_MOST", 2),
    (snapshot, "ROWS_A_LINE", 2),
    (codec, "COMPRESSED_FROM_BYTES", 64),
    (frames, "FRAME_FULL", 300),
    (wait_learned, "PACE_ENDS", 20),
    (wait_record, "FOLLOWED_MAX", 2),
    (wait_record, "COSTS_MAX", 2),
    (wait_record, "MODELS_MAX", 1),
    (plan_command, "GROUPS_MAX", 2),
]
"""Bounds of production, and what they are in half of the seeds with small bounds, each by chance."""
APART: list[tuple[Any, str, float]] = [
    (leader, "IDLE_READ_S", 5.0),
    (replica, "POSITION_MAX_AGE_S", 1.0),
    (follower, "POSITION_MAX_AGE_S", 1.0),
]
"""In seeds in which processes are apart the leader reads seldom what others wrote, and then loads a snapshot."""
RUSHED: list[tuple[Any, str, float]] = [(leader, "BACKLOG_MAX", 2)]
"""In rushed seeds a leader is behind with three commands."""
SHORT_HISTORY: list[tuple[Any, str, float]] = [
    (wait_learned, "SATURATED_MIN_S", 0.3),
    (wait_learned, "ENDS_MIN", 3),
    (wait_learned, "COSTS_MIN", 1),
    (wait_record, "OBSERVATIONS_MIN", 2),
]
"""In crowded seeds waits are announced after a few calls."""
IMPORTERS: dict[str, list[Any]] = {
    "HOUR_S": [accept, forgetting, steps, state, ends],
    "COMMANDS_MAX": [group_commit],
}
"""The modules that import a constant by its name."""


@contextmanager
def scaled(weather: Weather) -> Iterator[None]:
    random = Random(f"small {weather.seed}")
    small = [each for each in SMALL if random.random() < 0.5] if weather.small else []
    with ExitStack() as stack:
        for module, name, value in SCALED:
            stack.enter_context(patch.object(module, name, value))
        for module, name, value in [
            *small,
            *(SHORT_HISTORY if weather.crowded else ()),
            *(APART if weather.apart else ()),
            *(RUSHED if weather.rushed else ()),
        ]:
            for each in _with_constant(module, name):
                stack.enter_context(patch.object(each, name, value))
        yield


def _with_constant(module: Any, name: str) -> list[Any]:
    """Return the module of the constant, and those that import it from there."""
    return [module, *IMPORTERS.get(name, ())]
