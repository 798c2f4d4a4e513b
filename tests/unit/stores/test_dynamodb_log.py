"""A query of DynamoDB is no moment in time: what looks like a gap may have been written while it passed."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.model.errors import LogGap
from dispatcher.stores.dynamodb.log import DynamoLog
from dispatcher.stores.layout import entry_key


class Queries:
    """Answers each query with the entries that are visible to it. `asked`: the limit of each."""

    def __init__(self, *visible: set[int]) -> None:
        self._visible = list(visible)
        self.asked: list[int] = []

    async def query(self, _partition: str, _condition: str, values: dict[str, str], limit: int) -> list[dict[str, Any]]:
        self.asked.append(limit)
        first = int(values[":from"])
        chosen = sorted(number for number in self._visible.pop(0) if number >= first)
        return [{**entry_key("s", number), "entry": b"%d" % number} for number in chosen[:limit]]


def log_of(queries: Queries) -> DynamoLog:
    return DynamoLog(None, queries, "s")  # type: ignore[arg-type]


async def test_an_entry_that_was_written_behind_a_query_is_read_again() -> None:
    queries = Queries({0, 1, 3}, {0, 1, 2, 3, 4})
    assert list(await log_of(queries).read(0, 5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert queries.asked == [5, 3]


async def test_a_query_that_meets_two_writes_is_repeated_twice() -> None:
    queries = Queries({0, 2}, {0, 1, 2, 4}, {0, 1, 2, 3, 4})
    assert list(await log_of(queries).read(0, 9)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(("first", "missing"), [(0, 2), (2, 2)])
async def test_an_entry_that_is_missing_twice_is_a_gap(first: int, missing: int) -> None:
    queries = Queries({0, 1, 3}, {0, 1, 3, 4})
    with pytest.raises(LogGap, match=f"no entry {missing}"):
        await log_of(queries).read(first)
