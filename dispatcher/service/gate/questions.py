"""Answers questions about the state of a shard (its workers, its usage) as JSON text.

The leader answers them. Without a leader, a process reads its own replica.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, fields

from dispatcher.model.errors import BadFrame
from dispatcher.model.facts import WorkerSet
from dispatcher.model.formats import OLDEST
from dispatcher.model.usage import UsageRow
from dispatcher.service.frames import WORKERS
from dispatcher.shard.shard import Shard

_ROW, _ROW_BEFORE = len(fields(UsageRow)), 8
"""The fields of a row of usage, now and in format OLDEST."""


def answer(shard: Shard, topic: str, arguments: Sequence[str], reads: int) -> str:
    """Return the answer as JSON, for a process that reads this format. Raises BadFrame for an unknown question."""
    match topic, list(arguments):
        case "fleet", []:
            return json.dumps([WORKERS.pack(worker, reads) for worker in shard.fleet()])
        case "usage", [tenant, first_hour, last_hour] if first_hour.isdecimal() and last_hour.isdecimal():
            rows = usage(shard, tenant or None, int(first_hour), int(last_hour))
            size = _ROW_BEFORE if reads == OLDEST else None
            return json.dumps([astuple(row)[:size] for row in rows])
    raise BadFrame(f"An unknown question: {topic[:40]}")


def usage(shard: Shard, tenant: str | None, first_hour: int, last_hour: int) -> list[UsageRow]:
    """Return the tenant's usage rows (None: of all tenants) from `first_hour` to `last_hour`, both included."""
    rows = shard.usage_rows()
    return [row for row in rows if tenant in (None, row.tenant) and first_hour <= row.hour <= last_hour]


def read_fleet(answered: str) -> list[WorkerSet]:
    """Return the workers of an answer. Raises BadFrame."""
    return [WORKERS.unpack(item) for item in json.loads(answered)]


def read_usage(answered: str) -> list[UsageRow]:
    """Return the rows of an answer. Raises BadFrame."""
    try:
        return [UsageRow(*row[:_ROW]) for row in json.loads(answered)]
    except (TypeError, ValueError):
        raise BadFrame("Usage rows of another version.") from None
