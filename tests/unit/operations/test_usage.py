"""Usage: the projection, and what the shard holds beyond it, each token once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dispatcher.model.records.usage import HOUR_S, UsageRow
from dispatcher.operations.usage import merged, usage_of
from tests.support.gate.memory_gate import Gate
from tests.support.gate.story import asked, followed

ROW = UsageRow("a", "", 5, 1, 10, 3, 16.0, 7)


def test_of_two_rows_of_one_hour_and_shard_the_one_that_contains_more_of_the_log_counts() -> None:
    newer = replace(ROW, requests=2, position=9)
    others = [replace(ROW, app="x"), replace(ROW, tenant="b"), replace(ROW, hour=4)]
    for rows in ([ROW, newer, *others], [newer, *others, ROW]):
        assert merged(("s", row) for row in rows) == [others[2], newer, others[0], others[1]]
    assert merged([]) == []


def test_the_shards_of_a_tenant_that_moved_are_added_up() -> None:
    """Positions of two logs cannot be compared."""
    moved = UsageRow("a", "", 5, 2, 20, 30, 80.0, 3)
    (total,) = merged([("s", ROW), ("t", moved), ("s", replace(ROW, requests=9, position=6))])
    assert (total.requests, total.input_tokens, total.output_tokens, total.service) == (3, 30, 33, 96.0)


async def test_every_call_is_counted_once_before_and_after_the_projection(gate: Gate) -> None:
    hour = int(gate.clock.now() // HOUR_S)
    for tenant, app in (("a", ""), ("a", "chat"), ("a", "chat"), ("b", "")):
        await followed(gate, tenant, request=replace(asked(), app=app))
    rows = await usage_of(gate.context, "a", hour, hour)
    assert [(row.app, row.requests, row.output_tokens, row.service) for row in rows] == [
        ("", 1, 3, 16.0),
        ("chat", 2, 6, 32.0),
    ]
    await gate.store.put_usage(gate.pool.name, gate.shard.shard.usage_rows())
    assert await usage_of(gate.context, "a", hour, hour) == rows
    await followed(gate, "a")
    rows = await usage_of(gate.context, None, hour, hour)
    assert [(row.tenant, row.app, row.requests) for row in rows] == [("a", "", 2), ("a", "chat", 2), ("b", "", 1)]


async def test_hours_are_apart(gate: Gate) -> None:
    first = int(gate.clock.now() // HOUR_S)
    await followed(gate, "a")
    await asyncio.sleep(HOUR_S)
    await followed(gate, "a")
    assert [row.hour for row in await usage_of(gate.context, "a", first, first + 1)] == [first, first + 1]
    assert [row.hour for row in await usage_of(gate.context, "a", first + 1, first + 9)] == [first + 1]
    assert await usage_of(gate.context, "a", first - 9, first - 1) == []
