"""One seed from start to end."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from dispatcher.model.facts import Entry, Fact
from dispatcher.shard.state.state import State
from tests.support.world.network import Host, install_hosts
from tests.support.world.storm.callers import plans, play
from tests.support.world.storm.disturbances import Disturbances
from tests.support.world.storm.oracles.ends import END_ORACLES
from tests.support.world.storm.oracles.entries import ENTRY_ORACLES
from tests.support.world.storm.oracles.facts import beyond_its_limit, unfair
from tests.support.world.storm.oracles.liveness import SAMPLE_S, Liveness
from tests.support.world.storm.scale import scaled
from tests.support.world.storm.weather import Weather
from tests.support.world.storm.world import Violation, World
from tests.support.world.virtual_time import StormLoop

DRAIN_MAX_S = 90.0
"""After the trouble everything comes to its end within this time: the longest deadline, and a lease."""
QUIET_S = 3.0
TEARDOWN_S = 0.5
TEARDOWN_ROUNDS = 5
"""A task may begin another one while it ends."""


@dataclass
class Run:
    """What came of one seed."""

    weather: Weather
    violations: list[Violation] = field(default_factory=list)
    digest: str = ""
    """Of the log's bytes and of everything that happened, with its time."""
    entries: int = 0
    calls: int = 0
    done: int = 0
    trace: list[str] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)
    hosts: list[Host] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    """Steps of the first process of each host at the store (store_faults.StormFaults)."""


def run(weather: Weather, *, crash_at: dict[str, int] | None = None, bug: Any = None) -> Run:
    """Run one seed. `bug`: a context manager that breaks production code meanwhile."""
    outcome = Run(weather)
    loop = StormLoop()
    loop.set_exception_handler(_ignore_loop_error)
    with ExitStack() as stack:
        stack.enter_context(_no_collection())
        stack.enter_context(_quiet())
        stack.enter_context(scaled(weather))
        stack.enter_context(bug or nullcontext())
        try:
            loop.run_until_complete(_run(weather, outcome, crash_at or {}))
        finally:
            _tear_down(loop, outcome.hosts)
            outcome.hosts = []
    return outcome


async def _run(weather: Weather, outcome: Run, crash_at: dict[str, int]) -> None:
    install_hosts()
    world = World(weather, crash_at)
    for view in world.views():
        view.log.on_entry = _entry_oracles(view)
        view.log.reference.before_fact = _fact_oracles(view)
    with world.errors.active(world):
        await _play(world, outcome)


async def _play(world: World, outcome: Run) -> None:
    world.start()
    views = world.views()
    liveness, disturbances = [Liveness(view) for view in views], Disturbances(world)
    disturbances.start()
    callers = [world.spawn(play(world, plan)) for plan in plans(world)]
    try:
        await _until_drained(world, liveness, disturbances, callers)
        if not world.violations:
            for oracle in END_ORACLES:
                for message in (message for view in views for message in oracle(view)):
                    world.violate(oracle.__name__, message)
    finally:
        _summarize(world, liveness, outcome)
        outcome.hosts = world.hosts


async def _until_drained(
    world: World, liveness: list[Liveness], disturbances: Disturbances, callers: list[asyncio.Task[None]]
) -> None:
    calm_at = world.now() + world.weather.trouble_s
    is_calm, drained_at = False, None
    while not world.violations:
        await asyncio.sleep(SAMPLE_S)
        if not is_calm and world.now() >= calm_at:
            is_calm = True
            disturbances.end()
            world.disturb(max(0.0, world.outage.paused_until - world.now()))
        for kind, message in (found for each in liveness for found in each.sample()):
            world.violate(kind, message)
        for log in world.logs:
            if log.corrupt:
                world.violate("the_log_folds", log.corrupt)
        calls = sorted(call for log in world.logs for call in log.reference.state.calls)
        if is_calm and all(caller.done() for caller in callers) and not calls:
            drained_at = drained_at or world.now()
            if world.now() - drained_at >= QUIET_S:
                return
        else:
            drained_at = None
        if world.now() > calm_at + DRAIN_MAX_S:
            open_callers = sum(not caller.done() for caller in callers)
            world.violate("everything comes to its end", f"{open_callers} callers, calls {calls}")


def _entry_oracles(world: World) -> Callable[[Entry], None]:
    def check(entry: Entry) -> None:
        world.note(f"entry {entry.position} at {entry.at:.4f} by {entry.writer} {entry.leader} {entry.epoch}")
        for fact in entry.facts:
            world.note(f"    {fact}")
        world.queues.note(world.now(), world.log.reference.state, entry)
        for oracle in ENTRY_ORACLES:
            message = oracle(world, entry)
            if message is not None:
                world.violate(oracle.__name__, message)

    return check


def _fact_oracles(world: World) -> Callable[[State, Fact], None]:
    def check(state: State, fact: Fact) -> None:
        if (message := unfair(state, fact, world.log.numbers)) is not None:
            world.violate("the order is fair", message)
        if (message := beyond_its_limit(state, fact)) is not None:
            world.violate("queues are bounded", message)

    return check


def _summarize(world: World, liveness: list[Liveness], outcome: Run) -> None:
    digest = hashlib.sha256()
    for log in world.logs:
        for data in log.history:
            digest.update(data)
    for line in world.books.trace:
        digest.update(line.encode())
    outcome.digest = digest.hexdigest()
    outcome.violations = list(world.violations)
    outcome.entries = sum(len(log.history) for log in world.logs)
    outcome.calls = sum(len(log.accepted) for log in world.logs)
    outcome.done = sum(answered.code == "done" for answered in world.books.answers)
    outcome.trace = world.books.trace
    for each in liveness:
        for kind, longest_s in each.longest.items():
            outcome.longest[kind] = max(outcome.longest.get(kind, 0.0), longest_s)
    outcome.steps = {node.name: node.faults.steps for node in world.nodes()}


def _tear_down(loop: StormLoop, hosts: list[Host]) -> None:
    """End all tasks, also those of dead and paused hosts. What they do meanwhile counts no more."""
    for _ in range(TEARDOWN_ROUNDS):
        loop.call_soon(_cancel_all, hosts)
        loop.run_to(loop.time() + TEARDOWN_S)
        if not asyncio.all_tasks(loop):
            break
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        loop.close()
    finally:
        sys.unraisablehook = hook


def _cancel_all(hosts: list[Host]) -> None:
    for host in hosts:
        host.dead = False
        host.resume()
    for task in asyncio.all_tasks():
        task.cancel()


@contextmanager
def _no_collection() -> Any:
    """Collect no garbage meanwhile: a run is short, and each collection would look at all of its tasks."""
    gc.collect(0)  # the run before this one
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _quiet() -> Any:
    """Log nothing: workers and fronts log every fault. Tasks of a dead process may end before they begin."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        logging.disable(logging.NOTSET)


def _ignore_loop_error(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """Errors of tasks are seen by their nodes."""
