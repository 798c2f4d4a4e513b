"""Divides a worker's slots among the shards of its pool, so that tenants of all shards get their shares. Pure.

A pool of several shards has a leader for each, and none of them knows the tenants of the others. Every worker reports
to every shard, each time with a part of its slots. The answer says what the shard needs (`ShardNeed`). From the newest
answers of all shards every worker computes the same division of the pool, and gives its part of it. There is no
coordinator.

The division is that which one shard would make among all tenants:

    light tenants     no call of theirs waits: they keep the slots in which their calls run
    guarantees        a shard has at least the part of the pool that its guaranteed rates take of the pool's capacity,
                      as far as its calls need it
    waiting tenants   share the rest by weight. A shard gets slots for the sum of their weights, at most for its calls
    deferred calls    get what is left
    what is left      goes to all shards equally, so that a first call finds a slot. If nothing is left, the shards
                      without calls keep IDLE_PART of the pool together

Slots are not service: a call may give its tenant more or less service in the same time. A shard's virtual time is the
service that its waiting tenants have got for a weight of 1. A shard with a virtual time behind that of the others
counts with more weight, until it has caught up (`_Progress`). This also evens out that slots are whole.

A shard with a call that waits for its first slots, while the division gives it slots for all its calls, gets a slot of
the next worker where an execution ends: each worker that knows of it gives one, whatever it would round to.

A slot moves only when it is free, and then at once: `urgent` says which reports move one. What a worker has reported to
a shard counts until a smaller number is answered, and what the shard's log holds here counts as long as it does. So the
shards together never have more slots than the worker. A shard that does not answer keeps its slots until its lease ends
(`lose`): its loss touches its own tenants.

Not as in one shard: floors of tiers hold within a shard, and between shards a waiting tenant counts with its weight,
whatever its tier.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, exp, inf, log, log2
from typing import NamedTuple
from zlib import crc32

IDLE_PART = 0.01
"""The part of a busy pool that the shards without calls keep together: slots for first calls that come at once."""
TURN_S = 10.0
"""In this time each shard with a part of a slot gets the slot once, for this part of the time, if the pool has at most
_TURN_WORKERS workers like this one. With twice as many it takes twice as long: a worker needs some seconds to move a
slot, and its turn for it must last as long."""
_TURN_WORKERS = 4
CATCH_UP_S = 60.0
"""A lag is made up in about this time, which is several times as long as a slot takes to move."""
_FACTOR_MAX = 8.0
"""A lag changes a shard's weight at most by this factor. Calls of one tenant may give a slot as many times the service
of another's."""
_RATE_S = 10.0
"""The rate of the virtual time is the mean of about so many seconds."""
_HALVINGS = 40
_ALMOST = 1e-9


class ShardNeed(NamedTuple):
    """What a shard needs of its pool. Its deferred calls count in `deferred` alone."""

    slots: int
    """The slots that all workers give to the shard now."""
    light: int
    """Running calls of tenants without waiting calls."""
    heavy: int
    """Running calls of tenants with waiting calls."""
    waiting: int
    deferred: int
    weight: float
    """The sum of the weights of the tenants with waiting calls."""
    promised_per_s: float
    """The sum of the guaranteed rates of the tenants with calls, in service units a second."""
    capacity_per_s: float
    """The capacity of the slots that the shard has; 0 while it is unknown."""
    virtual_time: float

    @property
    def calls(self) -> int:
        return self.light + self.heavy + self.waiting


@dataclass(eq=False)
class _Shard:
    """What a worker knows of one shard."""

    need: ShardNeed | None = None
    given: int = 0
    """The slots that the shard may believe to have here."""
    held: int = 0
    """The attempts of this worker that its log holds."""
    sent: int = 0
    """The slots in the last report."""

    @property
    def at_most(self) -> int:
        return max(self.given, self.held)


class SlotShares:
    """One worker's division. `worker`: its id, by which the workers round in different ways."""

    def __init__(self, worker: str, shards: int) -> None:
        self._offset = crc32(worker.encode()) / 2**32
        self._now_s = 0.0
        self._shards = [_Shard() for _ in range(shards)]
        self._progress = _Progress(shards)
        self._divided: tuple[int, list[float]] | None = None
        """The division by the present needs, and the open slots with which it was made."""

    def note(self, shard: int, need: ShardNeed | None, held: int, now_s: float) -> None:
        """Note the answer to the last report. `held`: the attempts of this worker in it. `now_s`: monotonic seconds.

        `need` None: the shard's leader is of a version that does not say it.
        """
        known, self._now_s = self._shards[shard], max(self._now_s, now_s)
        known.given, known.held, known.need = known.sent, held, need
        self._divided = None
        if need is not None:
            self._progress.note(shard, need, now_s)

    def lose(self, shard: int) -> None:
        """Take back the slots of a shard, because its lease here has ended: its executions were aborted."""
        self._shards[shard] = _Shard()
        self._divided = None

    def slots(self, shard: int, slots_open: int) -> int:
        """Return the slots for the report to the shard that is sent now. `slots_open`: those of the worker."""
        known = self._shards[shard]
        known.sent = max(0, min(self._own_parts(slots_open)[shard], self._free(shard, slots_open)))
        known.given = max(known.given, known.sent)
        return known.sent

    def urgent(self, slots_open: int) -> list[int]:
        """Return the shards to which a report now moves a slot to waiting calls: the shards that can have it at once,
        else those that still have to give it back."""
        parts = self._own_parts(slots_open)
        claiming = self._claiming(parts)
        ready = [shard for shard in claiming if self._free(shard, slots_open) > self._shards[shard].sent]
        if ready or not claiming:
            return ready
        return [shard for shard, known in enumerate(self._shards) if parts[shard] < known.given]

    def is_urgent_end(self, shard: int, slots_open: int) -> bool:
        """Return whether a report to the shard frees a slot for waiting calls of another one, now that an execution of
        it has ended."""
        parts = self._own_parts(slots_open)
        return bool(self._claiming(parts)) and parts[shard] < self._shards[shard].held

    def _claiming(self, parts: Sequence[int]) -> list[int]:
        """Return the shards with waiting calls that are to have more slots here than in their last reports."""
        return [
            shard
            for shard, known in enumerate(self._shards)
            if known.need is not None and known.need.waiting and parts[shard] > known.sent
        ]

    def _free(self, shard: int, slots_open: int) -> int:
        """Return the slots that no other shard may use."""
        return slots_open - sum(each.at_most for other, each in enumerate(self._shards) if other != shard)

    def _own_parts(self, slots_open: int) -> list[int]:
        """Return this worker's slots for each shard. They add up, and those of many workers are right in the mean,
        because each worker begins to round at an offset of its own. The offset moves: else a shard could get a part of
        a slot of each of few workers, and a whole one of none. A shard that lacks a slot gets one more than it uses
        here, from one of the others."""
        parts = self._parts(slots_open)
        turned = (self._offset + self._now_s / self._turn_s(slots_open)) % 1.0
        ends = [int(end * slots_open + turned + _ALMOST) for end in accumulate(parts, initial=0.0)]
        found = [end - begin for begin, end in pairwise(ends)]
        lacking = self._lacking(slots_open)
        for shard in lacking:
            givers = [each for each, slots in enumerate(found) if slots and each not in lacking]
            if givers and found[shard] <= self._shards[shard].held:
                giver = _pick(givers, [parts[each] for each in givers], turned)
                found[giver] -= 1
                found[shard] += 1
        return found

    def _lacking(self, slots_open: int) -> list[int]:
        """Return the shards with a call that waits for a slot, which get slots for all their calls in the division."""
        lacking = []
        for shard, part in enumerate(self._division(slots_open)):
            need = self._shards[shard].need or _NOTHING
            if need.waiting and need.slots < need.calls and need.calls * (1 - IDLE_PART) <= part + _ALMOST:
                lacking.append(shard)
        return lacking

    def _turn_s(self, slots_open: int) -> float:
        """Return TURN_S, doubled as often as the pool has twice as many workers: so it seldom changes."""
        slots = sum(each.need.slots for each in self._shards if each.need is not None)
        workers = slots / max(1, slots_open)
        return TURN_S * 2.0 ** ceil(log2(max(1.0, workers / _TURN_WORKERS)))

    def _parts(self, slots_open: int) -> list[float]:
        """Return the part of the pool that each shard gets. They add up to 1."""
        divided = self._division(slots_open)
        slots = sum(divided)
        return [each / slots if slots else 1 / len(divided) for each in divided]

    def _division(self, slots_open: int) -> list[float]:
        """Return the slots of the pool that each shard gets. `slots_open`: count if no shard has any slot at this
        moment, because the only one is on its way from one to another."""
        if self._divided is None or self._divided[0] != slots_open:
            needs = [each.need or _NOTHING for each in self._shards]
            slots = float(sum(need.slots for need in needs) or slots_open)
            self._divided = slots_open, divide(needs, slots, self._progress.factors(needs))
        return self._divided[1]


class ShardShare(NamedTuple):
    """The part of a worker's slots that one shard has."""

    shares: SlotShares
    shard: int

    def note(self, need: Sequence[ShardNeed], held: int, now_s: float) -> None:
        """Note the answer to the last report, as SlotShares does. `need`: of Attempts."""
        self.shares.note(self.shard, need[0] if need else None, held, now_s)

    def lose(self) -> None:
        self.shares.lose(self.shard)

    def slots(self, slots_open: int) -> int:
        return self.shares.slots(self.shard, slots_open)


def _pick(shards: Sequence[int], weights: Sequence[float], point: float) -> int:
    """Return the shard at `point`, from 0 to 1, of the line on which each takes as much room as its weight."""
    ends = list(accumulate(weights))
    return shards[min(bisect_right(ends, point * ends[-1]), len(shards) - 1)]


_NOTHING = ShardNeed(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)


def divide(needs: Sequence[ShardNeed], slots: float, factors: Sequence[float]) -> list[float]:
    """Return the slots of each shard, which add up to `slots`. `factors`: of the shards' weights."""
    calls = [float(need.calls) for need in needs]
    floors = _floors(needs, slots)
    kept = [min(call, max(need.light, floor)) for call, need, floor in zip(calls, needs, floors, strict=True)]
    kept = _within(kept, slots)
    weights = [need.weight * factor for need, factor in zip(needs, factors, strict=True)]
    light = [min(need.light, keep) for need, keep in zip(needs, kept, strict=True)]
    found = _fill(kept, light, calls, weights, slots)
    deferred = _within([float(need.deferred) for need in needs], slots - sum(found))
    found = [one + more for one, more in zip(found, deferred, strict=True)]
    left = slots - sum(found)
    idle = [not need.calls and not need.deferred for need in needs]
    if any(idle) and left < IDLE_PART * slots:
        found = [each * (1 - IDLE_PART) for each in found]
        left = slots - sum(found)
        return [one + left * is_idle / sum(idle) for one, is_idle in zip(found, idle, strict=True)]
    return [each + left / len(needs) for each in found]


def _floors(needs: Sequence[ShardNeed], slots: float) -> list[float]:
    """Return the slots that each shard's guarantees need."""
    capacity_per_s = sum(need.capacity_per_s for need in needs)
    if not capacity_per_s:
        return [0.0] * len(needs)
    return [slots * need.promised_per_s / capacity_per_s for need in needs]


def _within(wanted: Sequence[float], slots: float) -> list[float]:
    """Return what is wanted, all reduced by one factor if it is more than `slots`."""
    factor = min(1.0, max(0.0, slots) / (sum(wanted) or 1.0))
    return [each * factor for each in wanted]


def _fill(
    least: Sequence[float], begin: Sequence[float], most: Sequence[float], weights: Sequence[float], slots: float
) -> list[float]:
    """Raise all shards from `begin` in proportion to their weights, each between `least` and `most`, until they have
    `slots` together, or all have their most."""

    def at(level: float) -> list[float]:
        raised = (start + level * weight for start, weight in zip(begin, weights, strict=True))
        return [min(high, max(low, each)) for low, each, high in zip(least, raised, most, strict=True)]

    high = max((m / w for m, w in zip(most, weights, strict=True) if w), default=0.0)
    if sum(at(high)) <= slots:
        return at(high)
    low = 0.0
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        low, high = (level, high) if sum(at(level)) <= slots else (low, level)
    return at(low)


class _Look(NamedTuple):
    virtual_time: float
    at_s: float


class _Progress:
    """How far the virtual time of each shard with waiting calls has come, compared with the others.

    When calls begin to wait in a shard, it begins where the others are, as a tenant does in VTC: it has no claim from
    before.
    """

    def __init__(self, shards: int) -> None:
        self._seen: list[_Look | None] = [None] * shards
        """The last look at each shard; None if nothing waited there."""
        self._come = [0.0] * shards
        self._per_s = 0.0
        self._now_s = -inf

    def note(self, shard: int, need: ShardNeed, now_s: float) -> None:
        before, self._now_s = self._seen[shard], now_s
        self._seen[shard] = _Look(need.virtual_time, now_s) if need.waiting else None
        if not need.waiting:
            return
        if before is None:
            self._come[shard] = self._mean_without(shard)
        elif now_s > before.at_s:
            moved, passed_s = max(0.0, need.virtual_time - before.virtual_time), now_s - before.at_s
            self._come[shard] += moved
            self._per_s += (moved / passed_s - self._per_s) * min(1.0, passed_s / _RATE_S)

    def factors(self, needs: Sequence[ShardNeed]) -> list[float]:
        """Return the factor of each shard's weight."""
        if not self._per_s:
            return [1.0] * len(needs)
        come = [self._now(shard) for shard in range(len(needs))]
        weight = sum(need.weight for need, each in zip(needs, come, strict=True) if each is not None)
        if not weight:
            return [1.0] * len(needs)
        mean = sum(need.weight * each for need, each in zip(needs, come, strict=True) if each is not None) / weight
        return [1.0 if each is None else self._factor(mean - each) for each in come]

    def _factor(self, lag: float) -> float:
        most = log(_FACTOR_MAX)
        return exp(min(most, max(-most, lag / self._per_s / CATCH_UP_S)))

    def _now(self, shard: int) -> float | None:
        """Return how far the shard has come by now: the looks at the shards are of different times."""
        seen = self._seen[shard]
        return None if seen is None else self._come[shard] + self._per_s * (self._now_s - seen.at_s)

    def _mean_without(self, shard: int) -> float:
        others = [each for other in range(len(self._seen)) if other != shard and (each := self._now(other)) is not None]
        return sum(others) / len(others) if others else 0.0
