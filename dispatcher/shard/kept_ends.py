"""Keeps the ends of calls for a time, so that a repeated command gets the answer of the first one.

An end has no time of its own. So marks stand between the ends, at most one for each second of the log:

    end, end, mark(17), end, mark(18), end        the first two ended at 17 or before, the third at 18 or before

A mark has the time of the first entry of a later second. So an outage, in which the log has no entries, does not count.
A mark is a row like an end, of an id that no call has. So snapshots contain the marks, and each copy of a shard drops
the same ends at the same entry. (A process of an older version drops the oldest rows, ends and marks alike.)
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from dispatcher.model.commands import Over

ENDS_KEPT_S = 30.0
"""An end is kept for this time by the clock of the log, if there are not too many. A takeover takes less than a second,
and a process that sends nothing for 10 s counts as gone."""
ENDS_LEAST = 4_096
"""So many ends are kept however old they are."""
ENDS_MOST = 65_536
"""More ends are never kept. At 2,000 calls a second, as much as a shard carries, there are 60,000."""
MARK = "@"


def drop_surplus(ends: OrderedDict[str, Over]) -> None:
    """Drop the oldest ends beyond ENDS_MOST. Call this after each entry."""
    while len(ends) > ENDS_MOST:
        ends.popitem(last=False)


def drop_old(ends: OrderedDict[str, Over], now: float) -> None:
    """Mark the ends so far, and drop the old ones. Call this once a second of the log. `now` is in Unix seconds.

    O(ends of a second), and O(1) for each end that is dropped.
    """
    if ends and not next(reversed(ends)).startswith(MARK):
        name = f"{MARK}{int(now) + 1}"
        ends[name] = Over(name, 0, "")
    while len(ends) > ENDS_LEAST and (marked := _first_second(ends)) and _time_of(marked[-1]) < now - ENDS_KEPT_S:
        for name in marked[: len(ends) - ENDS_LEAST]:
            del ends[name]


def _first_second(ends: OrderedDict[str, Over]) -> list[str]:
    """Return the ids up to the first mark; none if there is no mark."""
    count = next((place for place, name in enumerate(ends, 1) if name.startswith(MARK)), 0)
    return list(islice(ends, count))


def _time_of(mark: str) -> float:
    return float(mark.removeprefix(MARK))
