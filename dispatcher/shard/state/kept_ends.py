"""Keeps the ends of calls for a time, so that a repeated command gets the answer of the first one.

An end has no time of its own. So marks stand between the ends, at most one for each second of the log:

    end, end, mark(17), end, mark(18), end        the first two ended at 17 or before, the third at 18 or before

A mark has the time of the first entry of a later second. So an outage, in which the log has no entries, does not count.
A mark is a row like an end, of an id that no call has. So snapshots contain the marks, and each copy of a shard drops
the same ends at the same entry. (A process of an older version drops the oldest rows, ends and marks alike.)
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil

from dispatcher.model.commands import Over

ENDS_KEPT_S = 30.0
"""An end is kept for this time by the clock of the log, if there are not too many. A takeover takes less than a second,
and a process that sends nothing for 10 s counts as gone."""
ENDS_LEAST = 4_096
"""So many ends are kept however old they are."""
ENDS_MOST = 65_536
"""More ends are never kept. At 2,000 calls a second, as much as a shard carries, there are 60,000."""
DROPPED_MOST = 1_000
"""Most ends that are dropped for their age with one entry."""
MARKS_TRIED = 60
"""A log that was idle for longer drops its old ends when a later mark is old."""
MARK = "@"


class Ends(OrderedDict[str, Over]):
    """`none_old_at`: the second for which no old mark was found. The next old one is of a later second."""

    none_old_at = 0


def mark_second(ends: Ends, now: float) -> None:
    """Mark the ends so far. Call this with the first entry of a second of the log. `now` is in Unix seconds."""
    if ends and not next(reversed(ends)).startswith(MARK):
        name = f"{MARK}{int(now) + 1}"
        ends[name] = Over(name, 0, "")


def drop_old(ends: Ends, now: float) -> None:
    """Drop the oldest ends beyond ENDS_MOST, and those that are older than ENDS_KEPT_S, at most DROPPED_MOST. Call this
    after each entry."""
    if len(ends) <= ENDS_LEAST:
        return
    while len(ends) > ENDS_MOST:
        ends.popitem(last=False)
    if ends.none_old_at == _newest_old(now):
        return
    last = _last_old_mark(ends, now)
    if last is None:
        ends.none_old_at = _newest_old(now)
        return
    for _ in range(min(DROPPED_MOST, len(ends) - ENDS_LEAST)):
        if ends.popitem(last=False)[0] == last:
            return


def _newest_old(now: float) -> int:
    """Return the newest second whose ends are all older than ENDS_KEPT_S."""
    return ceil(now - ENDS_KEPT_S) - 1


def _last_old_mark(ends: Ends, now: float) -> str | None:
    """Return the newest mark that is older than ENDS_KEPT_S, if it is among the MARKS_TRIED newest that there can be.
    Before it are all older ones."""
    newest = _newest_old(now)
    names = (f"{MARK}{second}" for second in range(newest, newest - MARKS_TRIED, -1))
    return next((name for name in names if name in ends), None)
