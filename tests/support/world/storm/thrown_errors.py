"""Errors in production code, thrown at the points of a seed until the trouble is over (FoundationDB calls it BUGGIFY).

A point is any statement of certain functions. The function gets one more statement there, which calls the hook with the
function's parameters. It is compiled once and put into the function for the time of a run, wherever the function was
imported. A point throws in one of two ways:

at fault    for the calls of one tenant, chosen by their ids: a point that gets such a call, its command or its fact
            throws each time (`of_a_call`). Only their callers may be harmed
anywhere    by chance, a few times. Each throw may end one request

A follower that folds an entry of the log fails at most once at a position: it loads the state again. An entry that
fails twice cannot be folded, and stops the shard by design. So does a snapshot that does not load: none fails here.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch
from zlib import crc32

from dispatcher.model.facts import Accepted, Entry
from dispatcher.model.shards import shard_of_call
from dispatcher.operations.calls import answer, submit
from dispatcher.policies.orders import baselines, queues, two_clocks
from dispatcher.policies.orders.queues import Call, Tenant
from dispatcher.service import kept_answers
from dispatcher.service.gate import follower
from dispatcher.shard import accept, attempts, codec, decide, fold, steps, swapping, workers
from dispatcher.shard.fold import Decision
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import load
from dispatcher.shard.state import forgetting, indexes, records, state
from dispatcher.shard.state.state import State
from dispatcher.shard.waits import estimate as waits
from dispatcher.shard.waits import record as wait_record
from tests.support.world.network import current_host

if TYPE_CHECKING:
    from tests.support.world.storm.weather import Weather
    from tests.support.world.storm.world import World


THROWN = "thrown by the storm"
HOOK = "__storm_point__"
NUMBER = 987_654_321
OF_A_CALL: list[tuple[Any, str]] = [
    (accept, "accept"), (accept, "_configure_tenant"), (accept, "_queue_full"), (accept, "_out_of_reach"),
    (accept, "_app"), (decide, "_accept"), (steps, "fold_accept"), (steps, "_note_sequence"), (attempts, "dispatch"),
    (steps, "fold_dispatch"), (state.State, "join_queue"), (codec, "encode_entry"),
]  # fmt: skip
"""Functions that get a call, or its command or fact, until it is dispatched."""
REPORTS: list[tuple[Any, str]] = [
    (attempts, "end"), (attempts, "return_attempt"), (attempts, "_return"), (attempts, "_end"), (steps, "fold_end"),
    (steps, "news_of"), (fold, "_fold_return"), (fold, "_release"), (fold, "_fold_drop"), (fold, "_leave"),
    (fold, "_fold_hold"), (fold, "_hold_by"), (accept, "_hold"), (decide, "_cancel"), (fold, "_fold_cancelling"),
    (codec, "encode_entry"), (records, "cause_of"), (kept_answers, "_keep_answer"),
]  # fmt: skip
"""The same, from its dispatch on."""
ANYWHERE: list[tuple[Any, str]] = [
    (decide, "decide"), (decide, "_decide"), (decide, "_tick"), (decide, "_set_process"), (decide, "_give_slots"),
    (decide, "_decide_again"), (decide, "status"), (decide, "_lost_process"), (decide, "_note_saved_usage"),
    (attempts, "due_queue"), (attempts, "dispatch_next"), (indexes.Deadlines, "take_due"), (fold, "fold"),
    (fold, "_fold_worker_set"), (fold, "_fold_process_set"), (fold, "_fold_process_loss"), (fold, "_fold_tenant_set"),
    (fold, "_note_reached"), (fold, "_move"), (forgetting, "forget"), (forgetting, "_forget_idle"),
    (forgetting, "_forget_old"), (indexes.Lanes, "update"), (attempts, "leave"), (attempts, "_rest_if_failing"),
    (indexes.Slots, "update"), (indexes.Slots, "first"), (state.State, "flush"), (state.State, "refresh"),
    (state.State, "leave_queue"), (state.State, "enqueue"), (state.State, "set_call"), (state.State, "set_worker"),
    (state.State, "note_interaction"), (state.State, "set_clocks"), (swapping, "order_loads"), (waits, "observe"),
    (waits, "expected_wait"), (waits, "sum_changed"), (wait_record.WaitRecord, "count_ends"),
    (wait_record.WaitRecord, "see_models"), (workers, "report"), (workers, "rested"), (workers, "silent_worker"),
    (two_clocks.TwoClocks, "join"), (two_clocks.TwoClocks, "charge"), (two_clocks.TwoClocks, "settle"),
    (two_clocks.TwoClocksIndex, "place"), (baselines.KeyedIndex, "place"), (queues.TenantQueue, "head"),
    (queues.TenantQueue, "move"),
    (indexes.IdleTenants, "update"), (steps, "_undo_accept"), (steps, "_undo_dispatch"), (steps, "_undo_end"),
    (codec, "encode_entry"), (kept_answers, "keep_answers"), (kept_answers, "kept_ends"),
    (kept_answers, "keep_outcomes"),
]  # fmt: skip
"""Functions of the decision, the fold, and what keeps answers before it."""
OPERATIONS: list[tuple[Any, str]] = [
    (submit, "submit"), (submit, "_send_call"), (submit, "_one_try"), (submit, "_join_call"), (submit, "_build_call"),
    (submit, "_await_admission"), (submit, "_ensure_answer"), (answer, "result_of"),
]  # fmt: skip
"""Functions of a caller's own task, in its front."""


class Point(NamedTuple):
    """`place`: the number of the statement before which the error is thrown."""

    function: Any
    place: int
    of_a_call: bool
    """It is thrown only for calls of the tenant at fault."""

    def __str__(self) -> str:
        return f"{self.function.__module__.rpartition('.')[2]}.{self.function.__qualname__}:{self.place}"


def _function(owner: Any, name: str) -> Any:
    found = inspect.getattr_static(owner, name)
    return found.fget if isinstance(found, property) else found


_ORIGINALS = {
    (function := _function(owner, name)): function.__code__
    for owner, name in (*OF_A_CALL, *REPORTS, *ANYWHERE, *OPERATIONS)
}
"""The code of each function before any seeded bug is in it. A function with another code gets no point."""
_COMPILED: dict[Any, list[CodeType]] = {}
"""By function: its code with a point at each of its statements."""


def is_thrown(error: BaseException) -> bool:
    """Return whether the storm threw the error."""
    return THROWN in str(error)


def draw_points(random: Random, functions: list[tuple[Any, str]], count: int, *, of_a_call: bool) -> list[Point]:
    """Return points in some of these functions."""
    chosen = [_function(owner, name) for owner, name in random.sample(functions, min(count, len(functions)))]
    return [Point(each, random.randrange(len(_codes(each))), of_a_call) for each in chosen]


@contextmanager
def planted(points: list[Point], hook: Callable[[int, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call `hook` with a point's number and its function's parameters, each time that the point is reached."""
    before: list[tuple[Any, CodeType]] = []
    setattr(builtins, HOOK, hook)
    try:
        for number, point in enumerate(points):
            function = point.function
            if function.__code__ is _ORIGINALS[function]:
                before.append((function, function.__code__))
                code = _codes(function)[point.place]
                function.__code__ = _numbered(code, number)
        yield
    finally:
        for function, code in before:
            function.__code__ = code
        delattr(builtins, HOOK)


def _numbered(code: CodeType, number: int) -> CodeType:
    """Return the code with the point's number instead of NUMBER."""
    return code.replace(co_consts=tuple(number if each == NUMBER else each for each in code.co_consts))


def _codes(function: Any) -> list[CodeType]:
    if function not in _COMPILED:
        tree = ast.parse(textwrap.dedent(inspect.getsource(_ORIGINALS[function])))
        count = len(_places(tree.body[0]))
        _COMPILED[function] = [_compile(function, place) for place in range(count)]
    return _COMPILED[function]


def _compile(function: Any, place: int) -> CodeType:
    """Return the function's code with a call of the hook before one of its statements."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(_ORIGINALS[function])))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    statements, at = _places(definition)[place]
    arguments = definition.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    call = f"{HOOK}({NUMBER}, ({''.join(name + ', ' for name in names)}))"
    statements.insert(at, ast.copy_location(ast.parse(call).body[0], statements[at]))
    future = ast.parse("from __future__ import annotations").body
    module = ast.fix_missing_locations(ast.Module([*future, definition], []))
    made: dict[str, Any] = {}
    exec(compile(module, _ORIGINALS[function].co_filename, "exec"), vars(sys.modules[function.__module__]), made)  # noqa: S102 - the source is production code
    code: CodeType = made[definition.name].__code__
    return code


def _places(definition: ast.AST) -> list[tuple[list[ast.stmt], int]]:
    """Return each statement of the function but its docstring, as a list of statements and the place in it."""
    found: list[tuple[list[ast.stmt], int]] = []
    for node in ast.walk(definition):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                found += [(statements, at) for at, each in enumerate(statements) if not _is_docstring(each)]
    return found


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


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
        fold = Shard.fold

        def record_quietly(record: Callable[[bytes, float], None], data: bytes, now: float) -> None:
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
            for log in world.logs:
                stack.enter_context(patch.object(log, "_record", partial(record_quietly, log._record)))
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
        accepted = self._world.logs[shard_of_call(call_id)].accepted.get(call_id)
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
