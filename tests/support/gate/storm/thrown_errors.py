"""Errors in production code, thrown at the points of a seed (points.py) until the trouble is over.

at fault    the calls of one tenant, chosen by their ids: a point that gets such a call, its command or its fact throws
            each time (`of_a_call`). Only their callers may be harmed
anywhere    a point throws by chance, a few times. Each throw may end one request

A follower that folds an entry of the log fails at most once at a position: it loads the state again. An entry that
fails twice cannot be folded, and stops the shard by design. So does a snapshot that does not load: none fails here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zlib import crc32

from dispatcher.model.facts import Accepted, Entry
from dispatcher.policies.orders.queues import Call, Tenant
from dispatcher.service.gate import follower
from dispatcher.shard.fold import Decision
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import load
from dispatcher.shard.state.state import State
from tests.support.gate.hosts import current_host
from tests.support.gate.storm.points import (
    ANYWHERE,
    OF_A_CALL,
    OPERATIONS,
    REPORTS,
    THROWN,
    Point,
    draw_points,
    planted,
)

if TYPE_CHECKING:
    from tests.support.gate.storm.weather import Weather
    from tests.support.gate.storm.world import World

SORTS: list[type[Exception]] = [ValueError, KeyError, TypeError, RuntimeError, AssertionError]
OF_REPORTS_MAX = 3
"""Throws at one point for one call from its dispatch on: its report is repeated, and its slot held meanwhile."""


class ThrownErrors:
    """The errors of one run."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._random = random = Random(f"{weather.seed} errors")
        self.tenant = weather.at_fault
        self.points: list[Point] = []
        if weather.at_fault:
            self.points += draw_points(random, OF_A_CALL, random.choice([1, 2]), of_a_call=True)
            self.points += draw_points(random, REPORTS, random.choice([0, 0, 1]), of_a_call=True)
        if weather.throws:
            self.points += draw_points(random, [*ANYWHERE, *OF_A_CALL, *REPORTS], 3, of_a_call=False)
            self.points += draw_points(random, OPERATIONS, 1, of_a_call=False)
        self._left = [random.choice([1, 2, 4]) for _ in self.points]
        self._of_call: Counter[tuple[int, str]] = Counter()
        self.thrown: Counter[str] = Counter()
        """The number of throws at each point."""
        self.by_chance: Counter[str] = Counter()
        """Those of them that any call may meet."""
        self.ids: set[str] = set()
        """The calls of the tenant at fault at which an error was thrown."""
        self._world: World | None = None
        self._is_off = False
        self._folding = 0
        self._failed: set[tuple[str, int]] = set()

    @contextmanager
    def active(self, world: World) -> Iterator[None]:
        """Throw while the run is in trouble. The reference and the oracles see no errors."""
        if not self.points:
            yield
            return
        self._world = world
        record, fold = world.log._record, Shard.fold

        def record_quietly(data: bytes, now: float) -> None:
            self._is_off = True
            try:
                record(data, now)
            finally:
                self._is_off = False

        def note_fold(shard: Shard, entry: Entry) -> Any:
            before, self._folding = self._folding, entry.position + 1
            try:
                return fold(shard, entry)
            finally:
                self._folding = before

        def load_quietly(data: bytes, settings: ShardSettings) -> Shard:
            before, self._is_off = self._is_off, True
            try:
                return load(data, settings)
            finally:
                self._is_off = before

        with ExitStack() as stack:
            stack.enter_context(patch.object(world.log, "_record", record_quietly))
            stack.enter_context(patch.object(follower, "load", load_quietly))
            stack.enter_context(patch.object(Shard, "fold", note_fold))
            stack.enter_context(planted(self.points, self._reached))
            yield

    def _reached(self, number: int, arguments: tuple[Any, ...]) -> None:
        world, host = self._world, current_host()
        if self._is_off or world is None or world.outage.is_over or host is None or host.dead:
            return
        point = self.points[number]
        if point.of_a_call:
            call_id = next(self._calls_at_fault(arguments), "")
            if not call_id or not self._may_throw(number, call_id):
                return
            self.ids.add(call_id)
        elif not self._left[number] or self._random.random() >= self._weather.throws:
            return
        if self._folding:
            key = (host.name, self._folding)
            if key in self._failed:
                return
            self._failed.add(key)
        if not point.of_a_call:
            self._left[number] -= 1
            self.by_chance[str(point)] += 1
        self.thrown[str(point)] += 1
        world.note(f"thrown at {point}")
        raise self._random.choice(SORTS)(f"{THROWN} at {point}")

    def _may_throw(self, number: int, call_id: str) -> bool:
        self._of_call[number, call_id] += 1
        is_report = self.points[number].function in _REPORTING
        return not is_report or self._of_call[number, call_id] <= OF_REPORTS_MAX

    def _calls_at_fault(self, arguments: Iterable[Any]) -> Iterator[str]:
        """Yield the ids of the calls at fault among a function's parameters."""
        for call_id, tenant in _calls_in(arguments):
            is_chosen = crc32(f"{self._weather.seed} {call_id}".encode()) % 2 == 0
            if is_chosen and (tenant or self._tenant_in_log(call_id)) == self.tenant:
                yield call_id

    def _tenant_in_log(self, call_id: str) -> str:
        assert self._world is not None
        accepted = self._world.log.accepted.get(call_id)
        return accepted[0].terms.tenant if accepted else ""


_REPORTING = {vars(owner)[name] for owner, name in REPORTS if name != "encode_entry"}


def _calls_in(arguments: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield (id, tenant) of the calls among a function's parameters. The tenant is empty if it is not known here."""
    calls: dict[str, Call] = {}
    for each in arguments:
        if isinstance(each, State | Decision):
            calls = each.calls if isinstance(each, State) else each.state.calls
        elif isinstance(each, Entry):
            accepted = {fact.id: fact.terms.tenant for fact in each.facts if isinstance(fact, Accepted)}
            ids = (getattr(fact, "id", "") for fact in each.facts)
            yield from ((call_id, accepted.get(call_id, "")) for call_id in ids if call_id)
        elif isinstance(call_id := getattr(each, "id", None), str):
            known = calls.get(call_id)
            tenant = known.tenant if known is not None else getattr(getattr(each, "terms", each), "tenant", "")
            yield call_id, tenant.name if isinstance(tenant, Tenant) else str(tenant)
