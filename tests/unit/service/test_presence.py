"""Presence: what a leader concludes from silence, and what it must not conclude."""

from collections.abc import Callable, Sequence

import pytest

from dispatcher.model.commands import Command, Gone, Present, Return, Silent
from dispatcher.model.formats import NEWEST
from dispatcher.service.frames import Hello
from dispatcher.service.gate.courier import Session
from dispatcher.service.gate.follower import CALM_S, ClockGuard
from dispatcher.service.gate.group_commit import Reply
from dispatcher.service.gate.presence import (
    AGAIN_S,
    GONE_BROKEN_S,
    GONE_SILENT_S,
    LEASE_MARGIN_S,
    LEASE_S,
    SILENT_S,
    SWEEP_S,
    Presence,
)
from dispatcher.service.gate.replica import Replica
from tests.support.world.processes import World, accept, report


class Clock:
    """Both clocks go on together, unless the wall clock is set."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.set_by = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.at + self.set_by

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


class Closed:
    """ports.Connection that carries nothing."""

    def send(self, frame: bytes) -> None:
        return None

    async def receive(self) -> bytes:
        raise AssertionError

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        raise AssertionError

    def close(self) -> None:
        return None


class Watched:
    """A presence. Its commands are decided and written at once."""

    def __init__(self, replica: Replica, clock: Clock) -> None:
        self.clock, self.replica = clock, replica
        self.submitted: list[tuple[Command, Reply]] = []
        self.presence = Presence(replica, clock, lambda command, reply: self.submitted.append((command, reply)))

    def session(self, process: str) -> Session:
        session = Session(Closed(), self.clock, Hello(NEWEST, process, "client", ""))
        self.presence.on_joined(session)
        return session

    async def run(
        self, seconds: float, heard: Sequence[Session] = (), workers: Sequence[tuple[str, Session]] = ()
    ) -> list[Command]:
        """Let time pass. `heard`: sessions that send something now and then; `workers`: (name, session) that report."""
        asked: list[Command] = []
        for _ in range(round(seconds / SWEEP_S)):
            self.clock.at += SWEEP_S
            for session in heard:
                self.presence.heard(session)
            for name, session in workers:
                self.presence.on_reported(name, session)
            self.presence.sweep()
            asked += await self.written()
        return asked

    async def written(self) -> list[Command]:
        submitted, self.submitted[:] = list(self.submitted), []
        commands = [command for command, _ in submitted]
        if commands:
            committed = await self.replica.commit(commands)
            for (_, reply), outcome in zip(submitted, committed.outcomes, strict=True):
                reply(outcome)
        return commands


@pytest.fixture
async def watch(world: World) -> Watched:
    """A presence over a shard with one worker, and with a call of "front" on it and another one waiting."""
    clock = Clock()
    replica = world.replica("leader")
    replica._clock, replica.guard = clock, ClockGuard(clock)
    await replica.commit([report("w1", 1)])
    await replica.commit([accept(f"front-{number}", "front", clock.now()) for number in (1, 2)])
    return Watched(replica, clock)


async def test_a_process_and_a_worker_that_are_heard_lose_nothing(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    assert await watch.run(60, [front], [("w1", worker)]) == []


async def test_an_open_silent_connection(watch: Watched) -> None:
    watch.session("front")
    worker = watch.session("worker")
    reporting = [("w1", worker)]
    assert await watch.run(SILENT_S, workers=reporting) == []
    assert await watch.run(1, workers=reporting) == [Silent("front", False)]
    assert await watch.run(GONE_SILENT_S - SILENT_S - 1, workers=reporting) == []
    assert await watch.run(1, workers=reporting) == [Gone("front", False)]
    assert list(watch.replica.shard.state.calls) == ["front-1"]


async def test_nothing_is_lost_by_a_silence_that_is_in_the_state_but_not_in_the_log(watch: Watched) -> None:
    """A table that does not answer lets an entry wait for longer than a lease, while its facts are in the state."""
    shard, now = watch.replica.shard, watch.clock.now()
    shard.decide([Silent("w1", True), Silent("front", False)], now)
    assert await waiting(watch, LEASE_S + LEASE_MARGIN_S + 5) == []
    shard.rollback()
    submitted = await watch.run(0.5)
    assert submitted == [Silent("front", False), Silent("w1", True)]
    assert await watch.run(GONE_SILENT_S - SILENT_S - 1) == []
    assert await watch.run(1) == [Gone("front", False)]
    assert await watch.run(LEASE_S) == [Gone("w1", True)]


async def waiting(watch: Watched, seconds: float) -> list[Command]:
    """Let time pass while an entry waits for the log."""
    for _ in range(round(seconds / SWEEP_S)):
        watch.clock.at += SWEEP_S
        watch.presence.sweep()
    submitted, watch.submitted[:] = list(watch.submitted), []
    return [command for command, _ in submitted]


async def test_a_leader_that_always_writes_knows_a_silence_by_its_outcome(watch: Watched) -> None:
    await watch.run(SILENT_S + 0.5)
    assert watch.replica.shard.state.workers["w1"].config.state == "silent"
    watch.replica.shard.begin(watch.clock.now())  # from here on each sweep finds an entry that is being written
    assert Gone("w1", True) in await waiting(watch, LEASE_S + LEASE_MARGIN_S)


async def test_a_message_of_a_silent_process_resumes_its_calls(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    await watch.run(SILENT_S + 2, workers=[("w1", worker)])
    assert watch.replica.shard.state.processes["front"].silent
    assert await watch.run(60, [front], [("w1", worker)]) == [Present("front")]
    assert len(watch.replica.shard.state.calls) == 2


async def test_a_broken_connection(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    watch.presence.on_left(front)
    assert await watch.written() == [Silent("front", False)]
    assert await watch.run(GONE_BROKEN_S, workers=[("w1", worker)]) == []
    assert await watch.run(1, workers=[("w1", worker)]) == [Gone("front", False)]


async def test_a_process_that_returns_in_time(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    watch.presence.on_left(front)
    await watch.run(GONE_BROKEN_S - 0.5, workers=[("w1", worker)])
    again = watch.session("front")
    assert await watch.run(60, [again], [("w1", worker)]) == [Present("front")]


async def test_a_process_that_returns_before_its_silence_is_written(watch: Watched) -> None:
    watch.presence.on_left(watch.session("front"))
    watch.session("front")
    assert await watch.written() == [Silent("front", False), Present("front")]
    assert not watch.replica.shard.state.processes["front"].silent


async def test_each_of_several_broken_connections_counts(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    for _ in range(3):
        watch.presence.on_reported("w1", worker)
        await watch.replica.commit([report("w1", 1)])
        watch.presence.on_left(front)
        watch.presence.on_left(worker)
        assert await watch.written() == [Silent("front", False), Silent("w1", True)]
        front, worker = watch.session("front"), watch.session("worker")
        watch.presence.on_left(front)
        assert await watch.written() == [Present("front"), Silent("front", False)]
        front = watch.session("front")
        assert await watch.written() == [Present("front")]


async def test_a_process_is_present_again_also_while_the_clock_is_doubtful(watch: Watched) -> None:
    watch.replica.guard.stay_calm()
    watch.presence.on_left(watch.session("front"))
    front = watch.session("front")
    await watch.written()
    await watch.run(AGAIN_S, [front])
    await watch.replica.commit([Return("front-1", 1, "not_begun", "w1")])
    assert watch.replica.shard.state.processes["front"].silent
    assert await watch.run(SWEEP_S, [front]) == [Present("front")]


async def test_a_worker_is_lost_a_lease_after_the_log_calls_it_silent(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    watch.presence.on_reported("w1", worker)
    assert await watch.run(SILENT_S + 0.5, [front]) == [Silent("w1", True)]
    assert await watch.run(LEASE_S, [front]) == []
    assert await watch.run(LEASE_MARGIN_S + 1, [front]) == [Gone("w1", True)]
    assert not watch.replica.shard.state.workers
    await watch.run(SILENT_S + 1, [front])
    assert not watch.presence._silent_since


async def test_workers_that_are_lost_together_leave_a_few_at_a_time(watch: Watched) -> None:
    """The items of all their durable attempts are read before the entry: that may take longer than a leader waits."""
    names = [f"w{number}" for number in range(2, 6)]
    await watch.replica.commit([report(name, 300) for name in names])
    calls = [accept(f"front-{number}", "front", watch.clock.now()) for number in range(3, 1203)]
    await watch.replica.commit(calls)
    front, worker = watch.session("front"), watch.session("worker")
    await watch.run(SILENT_S + LEASE_S + LEASE_MARGIN_S, [front], [("w1", worker)])
    gone = [await watch.run(SWEEP_S, [front], [("w1", worker)]) for _ in range(8)]
    assert [sorted(each) for each in gone if each] == [
        [Gone("w2", True), Gone("w3", True)],
        [Gone("w4", True), Gone("w5", True)],
    ]


async def test_a_new_worker_is_not_silent_while_its_first_report_waits_for_its_entry(watch: Watched) -> None:
    front, worker, new = watch.session("front"), watch.session("worker"), watch.session("new worker")
    await watch.run(60, [front], [("w1", worker)])
    watch.presence.on_reported("w2", new)
    assert await watch.run(SWEEP_S, [front], [("w1", worker)]) == []
    await watch.replica.commit([report("w2", 1)])
    assert await watch.run(SILENT_S - SWEEP_S, [front], [("w1", worker)]) == []
    assert await watch.run(1, [front], [("w1", worker)]) == [Silent("w2", True)]


async def test_a_draining_worker_is_lost_too(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    await watch.replica.commit([report("w1", 1)._replace(draining=True)])
    watch.presence.on_reported("w1", worker)
    assert Gone("w1", True) in await watch.run(SILENT_S + LEASE_S + LEASE_MARGIN_S + 1, [front])


async def test_an_entry_of_another_process_shows_that_a_worker_lives(watch: Watched) -> None:
    front = watch.session("front")
    watch.replica.on_entry = lambda entry, deliveries: watch.presence.entry(entry)
    other = type(watch.replica)(watch.replica._log, watch.replica._settings, watch.clock, "worker")
    for _ in range(10):
        await watch.run(5, [front])
        await other.commit([report("w1", 1)])
        await watch.replica.catch_up()
    assert watch.replica.shard.state.workers["w1"].config.state == "serving"


async def test_nothing_is_lost_while_the_clock_is_doubtful(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    await watch.run(1, [front], [("w1", worker)])
    watch.clock.set_by = 3600.0
    assert await watch.run(CALM_S - 0.5) == []
    watch.clock.set_by = -3600.0
    assert await watch.run(CALM_S - 0.5) == []


async def test_a_leader_that_was_paused_itself_waits_for_messages(watch: Watched) -> None:
    front, worker = watch.session("front"), watch.session("worker")
    await watch.run(1, [front], [("w1", worker)])
    watch.clock.at += 30
    assert await watch.run(1) == []
    assert await watch.run(60, [front], [("w1", worker)]) == []


async def test_calls_of_a_process_that_never_came_are_not_lost_at_once(watch: Watched) -> None:
    worker = watch.session("worker")
    reporting = [("w1", worker)]
    assert await watch.run(SILENT_S, workers=reporting) == []
    assert await watch.run(GONE_SILENT_S - SILENT_S - 0.5, workers=reporting) == [Silent("front", False)]
    assert await watch.run(1, workers=reporting) == [Gone("front", False)]
