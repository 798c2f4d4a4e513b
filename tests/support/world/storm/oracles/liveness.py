"""Oracles of liveness (I8), sampled during the run. Their bounds hold while no fault slows healthy processes down:
after the trouble, and in mild weather also during it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dispatcher.model.shards import shard_of_call
from dispatcher.model.worker_protocol import execution_name

if TYPE_CHECKING:
    from dispatcher.policies.orders.queues import Call
    from tests.support.world.storm.nodes import WorkerNode
    from tests.support.world.storm.world import World


SETTLED_S = 8.0
"""After the last fault: reconnecting, a takeover, and the time in which no loss is decided."""
WAIT_MAX_S = 6.0
"""Longest time that an eligible call waits while a slot is free: an offer and its return to the queue go before it."""
MOVED_MAX_S = 10.0
"""Longest time until a free slot of a worker has moved to a shard with a waiting call: some heartbeats."""
HELD_MAX_S = 6.0
"""Longest time that a slot is held for an attempt that does not run on its living worker: the offer's time, a report,
and its answer."""
LEASE_MAX_S = 24.0
"""The same for a dead worker: found silent, the lease and its margin, and a takeover."""
DEAD_PROCESS_MAX_S = 24.0
"""Longest time that calls of a dead process stay."""
UNHELD_MAX_S = 8.0
"""Longest time that a worker runs what the log does not hold."""
UNKNOWN_MAX_S = 5.5
"""The same while its heartbeats are answered: 2 s after the first answer without the attempt, with the next answer."""
LEADERLESS_MAX_S = 6.0
"""Longest time without a leader when nothing has failed for a while."""
ANSWERED_S = 2.0
"""A worker whose last answered heartbeat is not older is answered."""
OVERDUE_MAX_S = 2.0
"""Longest time that a call stays in its queue after its deadline."""
OVER_MAX_S = 8.0
"""Longest time from the end of a call in the log to the answer: the worker's last event may be lost."""
MISSING_MAX_S = 25.0
"""Longest time that calls wait for a model that no living worker has: three turns of residency, drain and swap, with
two heartbeats each."""
LATE_MAX_S = 15.0
"""Longest time that a caller waits after its deadline."""
SAMPLE_S = 0.5

LIVENESS = frozenset(
    {
        "no gate process leads",
        "an eligible call waits while a slot is free",
        "a call waits while slots of other shards are free",
        "a model that calls wait for is loaded nowhere",
        "a slot is held for a dead worker",
        "a slot is held for an attempt that does not run",
        "a call of a dead process waits",
        "a call of a living process is suspended",
        "a call waits beyond its deadline",
        "a worker that the gate answers runs what the log does not hold",
        "a worker runs what the log does not hold",
        "a caller is not answered at its deadline",
        "a caller is not answered although its call is over",
    }
)
"""The conditions."""


class Liveness:
    """`sample` is called each SAMPLE_S seconds. It knows since when each bad condition holds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[str, float] = {}
        self.longest: dict[str, float] = {}
        """The longest time that each kind of bad condition held, for reports."""

    def sample(self) -> Iterator[tuple[str, str]]:
        """Yield (oracle, message) of each condition that held too long."""
        found = {f"{kind} {what}": (kind, what, most) for kind, what, most in self._conditions()}
        now = self._world.now()
        self._since = {key: self._since.get(key, now) for key in found}
        for key, (kind, what, most) in found.items():
            held_s = now - self._since[key]
            self.longest[kind] = max(self.longest.get(kind, 0.0), held_s)
            if held_s > most:
                yield kind, f"{what} for {held_s:.1f} s"

    def _conditions(self) -> Iterator[tuple[str, str, float]]:
        world = self._world
        yield from self._executions()
        if not (world.outage.is_over or world.weather.mild):
            return
        yield from self._callers()
        if world.now() < world.disturbed_until + SETTLED_S:
            return
        yield from self._leaders()
        yield from self._eligible_calls()
        yield from self._held_slots()
        yield from self._processes()
        yield from self._late_calls()

    def _leaders(self) -> Iterator[tuple[str, str, float]]:
        """Rule 14: where a gate process lives, one leads."""
        up = [gate for gate in self._world.gates if gate.is_up and not gate.host.paused]
        if up and not any(gate.processes[self._world.shard].is_leader for gate in up):
            yield "no gate process leads", " ".join(gate.tag for gate in up), LEADERLESS_MAX_S

    def _eligible_calls(self) -> Iterator[tuple[str, str, float]]:
        """No eligible call waits while a usable slot is free, as the workers and fronts themselves see it."""
        world = self._world
        state = world.log.reference.state
        living = world.living()
        waiting = [call for call in state.calls.values() if not call.worker and self._is_wanted(call, living)]
        free = {worker.engine.facts.model for worker in world.workers if self._is_usable(worker)}
        eligible = [call.id for call in waiting if call.model in free]
        if waiting and state.order.is_conserving and len(world.logs) > 1 and any(map(self._is_free, world.workers)):
            yield "a call waits while slots of other shards are free", waiting[0].id, MOVED_MAX_S
        if eligible and state.order.is_conserving:
            yield "an eligible call waits while a slot is free", eligible[0], WAIT_MAX_S
        if world.weather.planned:  # a plan may leave a model out until its calls are due, beyond their deadlines here
            return
        loaded = {worker.engine.facts.model for worker in world.workers if worker.is_up}
        for model in {call.model for call in waiting} - loaded if loaded else ():
            yield "a model that calls wait for is loaded nowhere", model, MISSING_MAX_S

    def _is_wanted(self, call: Call, living: set[str]) -> bool:
        return call.process in living or (call.terms.durable and not call.process)

    def _is_usable(self, worker: WorkerNode) -> bool:
        """Whether the worker lives, and has a slot that runs nothing and is offered to no caller."""
        if not worker.is_up or worker.host.paused or len(worker.engine.running) >= self._world.weather.slots:
            return False
        if worker.swapper is not None and worker.swapper.is_swapping:
            return False
        known = self._world.log.reference.state.workers.get(worker.name)
        if known is not None and known.load:
            return False
        if known is not None and known.config.state == "retiring":
            return False
        return known is None or known.config.state == "silent" or len(known.running) < known.config.slots

    def _is_free(self, worker: WorkerNode) -> bool:
        """Whether the worker serves the shard, and no shard holds all of its slots."""
        world = self._world
        known = world.log.reference.state.workers.get(worker.name)
        is_up = worker.is_up and not worker.host.paused and world.now() - worker.began_at > SETTLED_S
        serves = known is not None and known.config.state == "serving"
        return is_up and serves and world.held_on(worker.name) < world.weather.slots

    def _held_slots(self) -> Iterator[tuple[str, str, float]]:
        """No slot is held for a caller or worker that is gone for longer than the offer's time, or the lease."""
        for name, known in self._world.log.reference.state.workers.items():
            node = next((worker for worker in self._world.workers if worker.name == name and worker.is_up), None)
            for call in known.running.values():
                attempt = execution_name(call.id, call.attempt)
                if node is None:
                    yield "a slot is held for a dead worker", attempt, LEASE_MAX_S
                elif attempt not in node.executions.live():
                    yield "a slot is held for an attempt that does not run", attempt, HELD_MAX_S

    def _processes(self) -> Iterator[tuple[str, str, float]]:
        """Calls of a dead process leave; calls of a living one are not suspended."""
        living = self._world.living()
        for call in self._world.log.reference.state.calls.values():
            if call.process and call.process not in living and not call.worker:
                yield "a call of a dead process waits", call.id, DEAD_PROCESS_MAX_S
            elif call.process in living and not call.worker and not call.queued:
                yield "a call of a living process is suspended", call.id, WAIT_MAX_S

    def _late_calls(self) -> Iterator[tuple[str, str, float]]:
        """I1: a waiting call leaves its queue at its deadline."""
        now = self._world.now()
        for call in self._world.log.reference.state.calls.values():
            if not call.worker and call.terms.deadline_at < now:
                yield "a call waits beyond its deadline", call.id, OVERDUE_MAX_S

    def _executions(self) -> Iterator[tuple[str, str, float]]:
        """A worker does not go on with what the log does not hold: not for long while the gate answers it (rule 4)."""
        held = {
            execution_name(call.id, call.attempt)
            for worker in self._world.log.reference.state.workers.values()
            for call in worker.running.values()
        }
        may_be_slow = not (self._world.outage.is_over or self._world.weather.mild)
        for worker in self._world.workers:
            running = (name for name in worker.engine.running if shard_of_call(name) == self._world.shard)
            unheld = [name for name in running if name not in held]
            if not unheld or not worker.is_up or worker.host.paused:
                continue
            if worker.answered_s_ago(self._world.shard) < ANSWERED_S:
                yield "a worker that the gate answers runs what the log does not hold", unheld[0], UNKNOWN_MAX_S
            if not may_be_slow:
                yield "a worker runs what the log does not hold", unheld[0], UNHELD_MAX_S

    def _callers(self) -> Iterator[tuple[str, str, float]]:
        """I1: a caller is answered at its deadline at the latest, and soon after the end of its call."""
        for call in self._world.callers.values():
            if not call.front.is_up or call.front.host.paused:
                continue
            if self._world.now() > call.deadline_at:
                yield "a caller is not answered at its deadline", f"{call.front.tag} {call.id}", LATE_MAX_S
            if call.id and self._world.log.over(call.id) is not None:
                yield "a caller is not answered although its call is over", call.id, OVER_MAX_S
