"""Oracles that look at the whole run after its end. Those of thrown errors (I10) come first: an error in the code ends
its caller's request and nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import Dropped, Ended
from dispatcher.model.kept import ATTEMPTS_MAX
from dispatcher.model.usage import HOUR_S, UsageRow
from dispatcher.model.worker_protocol import execution_name
from dispatcher.shard.codec import decode_entry
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import load
from dispatcher.stores.hedged_log import HEDGED_SHARE_MAX, HEDGES_SAVED_MAX
from dispatcher.stores.snapshot_parts import join
from tests.support.world.store_faults import run_at_once
from tests.support.world.storm.oracles.facts import refusals_are_justified, refused_calls_do_not_run
from tests.support.world.storm.records import Answered, text_of

if TYPE_CHECKING:
    from tests.support.world.storm.world import World


def errors_end_their_own_requests(world: World) -> Iterator[str]:
    """A request that an error of the gate ended is of the tenant at fault. Errors that are thrown by chance harm at
    most as many tenants as there were errors: after each, its tenant is a suspect for a while."""
    thrown = world.errors.thrown.total()
    harmed = dict(_harmed(world))
    if world.errors.by_chance.total():
        if len(set(harmed.values())) > thrown:
            yield f"{thrown} errors were thrown, and harmed the requests {harmed}"
        return
    for request, tenant in harmed.items():
        if not thrown or tenant != world.errors.tenant:
            yield f"{request} of {tenant} ended by an error; at fault is {world.errors.tenant or 'no tenant'}"


def _harmed(world: World) -> Iterator[tuple[str, str]]:
    """Yield (request, tenant) of the requests that ended by an error of the gate."""
    for answered in world.books.answers:
        if answered.code == "internal_error":
            yield f"the request of caller {answered.caller}", answered.tenant
    for call_id, ends in world.log.ends.items():
        end = ends[0]
        if isinstance(end, Dropped) and end.outcome == "failed" and not end.attempt:
            yield call_id, world.log.accepted[call_id][0].terms.tenant


def errors_end_one_task(world: World) -> Iterator[str]:
    """An error in a caller's own task ends this caller."""
    ended = sum(answered.code == "error" for answered in world.books.answers)
    if ended > world.errors.by_chance.total():
        yield f"{ended} callers ended by an error, and {world.errors.by_chance.total()} were thrown"


EndOracle = Callable[["World"], Iterator[str]]
"""Yields what is wrong."""

NO_CLAIM = frozenset(
    {
        "store_unavailable",
        "worker_failed",
        "deadline_exceeded",
        "left",
        "front died",
        "no_worker",
        "model_not_found",
        "queue_full",
        "overloaded",
        "too_old",
        "idempotency_conflict",
        "cancelled",
        "internal_error",
        "deadline_out_of_reach",
        "throttled_user",
        "throttled_app",
        "too_large",
        "error",
    }
)
"""Errors by which a caller knows nothing of the end, or that come before the call was accepted."""


def the_log_folds(world: World) -> Iterator[str]:
    """I4: every entry fits the state that all entries before it make."""
    if world.log.corrupt:
        yield world.log.corrupt


def each_call_ends(world: World) -> Iterator[str]:
    """I1, I8: every accepted call has ended when nothing fails any more."""
    for call_id in world.log.accepted:
        if world.log.over(call_id) is None:
            call = world.log.reference.state.calls[call_id]
            process = world.log.reference.state.processes.get(call.process)
            silent = process.silent if process else None
            yield f"{call_id} of {call.process!r} (silent: {silent}) on {call.worker!r} never ended"


def charges_are_service(world: World) -> Iterator[str]:
    """I2, I9: a call is charged exactly the tokens that its attempt read and generated.

    An attempt that never began is charged what the caller of a stream got of the attempt before it, or nothing. If an
    earlier attempt stored its answer before it was returned, the call ends with that answer and its charge.
    """
    for call_id, ends in world.log.ends.items():
        end = ends[0]
        if not isinstance(end, Ended):
            continue
        item = run_at_once(world.store.get(call_id))
        if item is not None and item.answer is not None and 0 < item.answer.attempt < end.attempt:
            end = end._replace(attempt=item.answer.attempt)
        charged = (end.input_tokens, end.output_tokens)
        if end.served != world.settings.service(*charged):
            yield f"{call_id} is charged {end.served} for {charged}"
        execution = world.books.executions.get(execution_name(call_id, end.attempt))
        if execution is None:
            yield from _charge_without_execution(world, end, charged)
        elif end.outcome in ("done", "cancelled", "expired") and charged != (0, 0):
            if charged != (execution.input_tokens, execution.output_tokens):
                yield f"{execution.name} is charged {charged}, not {execution.input_tokens, execution.output_tokens}"
        elif end.output_tokens not in (0, execution.output_tokens):
            yield f"{execution.name} failed and is charged {charged}, not {execution.output_tokens} tokens"
        if end.outcome == "done" and (execution is None or execution.reason != "length"):
            yield f"{call_id}#{end.attempt} is done in the log and not in an engine"


def _charge_without_execution(world: World, end: Ended, charged: tuple[int, int]) -> Iterator[str]:
    if charged == (0, 0):
        return
    before = [world.books.executions.get(execution_name(end.id, number)) for number in range(1, end.attempt)]
    delivered = [each for each in before if each is not None and each.output_tokens >= end.output_tokens]
    if not delivered or end.id not in world.books.streams:
        yield f"{end.id}#{end.attempt} never ran and is charged {charged}"


def answers_are_the_record(world: World) -> Iterator[str]:
    """I9: what a caller was answered is what the log and the kept answer say."""
    for answered in world.books.answers:
        if not answered.id:
            continue
        end = world.log.over(answered.id)
        if answered.code == "nothing":
            yield f"{answered.id}: caller {answered.caller} got neither an end nor an error"
        elif answered.code == "done":
            yield from _answer(world, answered)
        elif answered.code not in NO_CLAIM and (end is None or end.outcome == "done"):
            yield f"{answered.id}: caller {answered.caller} got {answered.code}, the log says {end}"


def _answer(world: World, answered: Answered) -> Iterator[str]:
    end = world.log.over(answered.id)
    if not isinstance(end, Ended) or end.outcome != "done":
        yield f"{answered.id}: caller {answered.caller} got an answer, the log says {end}"
        return
    if (answered.input_tokens, answered.output_tokens) != (end.input_tokens, end.output_tokens):
        yield f"{answered.id}: caller {answered.caller} got {answered.output_tokens} tokens, the log says {end}"
    item = run_at_once(world.store.get(answered.id))
    kept = item.answer.attempt if item is not None and item.answer is not None else 0
    attempt = kept or end.attempt  # a later attempt ends with the answer that an earlier one kept (rule 15)
    if answered.text != text_of(execution_name(answered.id, attempt), end.output_tokens):
        yield f"{answered.id}: caller {answered.caller} got {answered.text!r} and not the text of attempt {attempt}"


def no_caller_is_lost(world: World) -> Iterator[str]:
    """I1: a call that was accepted at a front, or answered, is in the log: an acceptance is never taken back."""
    for answered in world.books.answers:
        was_accepted = bool(answered.id) and (answered.streamed or answered.code == "done")
        if was_accepted and answered.id not in world.log.accepted:
            yield f"{answered.id} was accepted or answered, and the log does not know it"


def durable_work_is_finished(world: World) -> Iterator[str]:
    """Rule 15: a durable call that the log accepted ends with its answer kept, whichever process died.

    Its kept answer is the end in the log, and it is not cancelled because a process is gone.
    """
    for call_id, accepted in world.log.accepted.items():
        end = world.log.over(call_id)
        if not accepted[0].terms.durable or end is None:
            continue
        item = run_at_once(world.store.get(call_id))
        if item is None:
            yield f"{call_id} was accepted before its item was written"
        elif end.outcome == "done" and item.answer is None:
            yield f"{call_id} is done, and its answer is not kept"
        elif item.answer is not None and item.answer.attempt:
            yield from _agree(call_id, item.answer, end)
        if end.outcome == "cancelled":
            yield f"{call_id} is durable and was cancelled"


def _agree(call_id: str, answer: Any, end: Any) -> Iterator[str]:
    kept = (answer.outcome, answer.input_tokens, answer.output_tokens)
    logged = (end.outcome, getattr(end, "input_tokens", 0), getattr(end, "output_tokens", 0))
    if kept != logged:
        yield f"{call_id}: the kept answer is {kept}, the log says {logged}"


def one_key_one_call(world: World) -> Iterator[str]:
    """I2: all callers of one idempotency key get the same answer."""
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for answered in world.books.answers:
        if answered.key and answered.code == "done":
            texts[answered.key].add(answered.text)
    for key, different in texts.items():
        if len(different) > 1:
            yield f"{key} has {len(different)} answers: {sorted(different)}"


def _projected(world: World) -> list[tuple[str, UsageRow]]:
    """Return the rows in the store: of a day before and after the run too, because clocks may be wrong."""
    first_hour, last_hour = int(world.began_at // HOUR_S) - 24, int(world.now() // HOUR_S) + 24
    return list(run_at_once(world.store.usage(None, first_hour, last_hour)))


def usage_is_the_sum_of_ends(world: World) -> Iterator[str]:
    """I2: usage rows, in the state and as projected, are the sums of the ends below their position. An end that is not
    in the state any more is projected."""
    ends: defaultdict[tuple[str, str, int], list[tuple[int, Ended | Dropped]]] = defaultdict(list)
    for data in world.log.history:
        entry = decode_entry(data)
        for fact in entry.facts:
            if isinstance(fact, Ended | Dropped) and fact.attempt:
                accepted = world.log.accepted[fact.id][0]
                ends[accepted.terms.tenant, accepted.terms.app, int(entry.at // HOUR_S)].append((entry.position, fact))
    rows = world.log.reference.usage_rows()
    kept = list(world.usage_rows(_projected(world)))
    for row in [*rows, *kept]:
        own = [end for at, end in ends[row.tenant, row.app, row.hour] if at < row.position]
        counts = (len(own), sum(end.input_tokens for end in own), sum(end.output_tokens for end in own))
        if counts != (row.requests, row.input_tokens, row.output_tokens):
            yield f"{row} but the ends are {counts}"
    complete = {(row.tenant, row.app, row.hour) for row in rows}
    projected = {(row.tenant, row.app, row.hour): row.requests for row in kept}
    for key, own_ends in ends.items():
        if own_ends and key not in complete and projected.get(key, 0) != len(own_ends):
            yield f"{len(own_ends)} ends of {key} are not in the state, and {projected.get(key, 0)} are projected"


def physical_slots(world: World) -> Iterator[str]:
    """I3: an engine never runs more executions than its worker has slots, and no execution twice."""
    for node in world.workers:
        if node.engine.most > world.weather.slots:
            yield f"{node.tag} ran {node.engine.most} executions at once"
    for name in world.books.twice:
        yield f"{name} began twice"


def replay_and_snapshots_agree(world: World) -> Iterator[str]:
    """Replay of the whole log, each snapshot, and each replica have the same state at the same position."""
    states = _states_to_compare(world)
    if world.log.corrupt or not states:
        return
    shard = Shard(world.settings)
    expected = {0: canonical(shard)} if 0 in states else {}
    for data in world.log.history:
        shard.fold(decode_entry(data))
        if shard.position in states:
            expected[shard.position] = canonical(shard)
    for position, kept in states.items():
        for name, state in kept:
            if state != expected.get(position):
                yield f"{name} at {position} differs: {_difference(state, expected.get(position))}"


def _states_to_compare(world: World) -> dict[int, list[tuple[str, Any]]]:
    states: defaultdict[int, list[tuple[str, Any]]] = defaultdict(list)
    for name, (manifest, _) in world.log.manifests.items():
        parts = world.log.parts.get(name, {})
        state = join(manifest, [parts[number] for number in sorted(parts)])
        if state is not None:
            states[name[0]].append((f"snapshot of {name[1]}", _loaded(state, world.settings)))
    for gate in world.gates:
        if gate.is_up and (replica := gate.processes[world.shard].replica).is_loaded and not replica._lock.locked():
            states[replica.shard.position].append((f"replica of {gate.tag}", canonical(replica.shard)))
    return states


def _loaded(state: bytes, settings: ShardSettings) -> dict[str, Any]:
    """Return the canonical state of a snapshot, or what is wrong with its bytes."""
    try:
        return canonical(load(state, settings))
    except LogCorrupt as error:
        return {"bytes": str(error)}


def canonical(shard: Shard) -> dict[str, Any]:
    """Return a shard's state without what depends on the way to it: the order of records.

    Not by production's `dump`, which may leave something out.
    """
    state = shard.state
    plain = (state.position, state.at, state.virtual_time, state.arrivals, shard.leader, shard.epoch)
    return {
        "values": plain,
        "workers": {
            name: (each.config, each.failures, each.causes, sorted(each.running))
            for name, each in state.workers.items()
        },
        "processes": {
            name: (each.silent, each.floor, sorted(each.repeatable()), each.seen_at, sorted(each.calls), each.unreached)
            for name, each in state.processes.items()
        },
        "tenants": {name: _slots(each, ("queues", "promised_per_s")) for name, each in state.tenants.items()},
        "calls": {name: _slots(each, ("tenant",)) for name, each in state.calls.items()},
        "usage": dict(state.usage),
        "interactions": dict(state.interactions),
        "ends": list(state.ends.values()),
    }


def _slots(record: Any, without: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__ if name not in without}


def _difference(one: Any, other: Any) -> str:
    if other is None:
        return "the log has no such position"
    return "; ".join(f"{name}: {one[name]} / {other.get(name)}" for name in one if one[name] != other.get(name))


def failed_after_real_attempts(world: World) -> Iterator[str]:
    """Rule 6: a call fails without an execution only after other attempts failed, or after one failed on this worker,
    which does not repeat it (gpu_worker/service/health). Offers not begun do not count."""
    for call_id, ends in world.log.ends.items():
        end = ends[0]
        if not isinstance(end, Ended) or end.outcome != "failed" or end.output_tokens:
            continue
        names = [execution_name(call_id, number) for number in range(1, end.attempt + 1)]
        if names[-1] in world.books.executions or names[-1] in world.books.refused:
            continue
        worker = world.log.attempts[call_id, end.attempt].worker
        real = {
            number: returned
            for (returned_id, number), returned in world.log.returned.items()
            if returned_id == call_id and returned.reason not in ("not_begun", "declined")
        }
        failed_here = any(
            returned.reason == "failed" and world.log.attempts[call_id, number].worker == worker
            for number, returned in real.items()
        )
        if not failed_here and len(real) < ATTEMPTS_MAX - 1:
            yield f"{call_id} failed after {len(real)} real attempts"


def what_is_done_is_answered(world: World) -> Iterator[str]:
    """I9: in mild weather, a caller at an undisturbed front and worker gets the answer that the log says is done.

    Its tenant must not be at fault: after an error that loads the state again, its commands are refused for seconds.
    """
    errors = world.errors
    for answered in world.books.answers if world.weather.mild and not errors.by_chance.total() else ():
        end = world.log.over(answered.id)
        if errors.thrown and answered.tenant == errors.tenant:
            continue
        if answered.code in ("done", "left", "front died") or answered.key or not isinstance(end, Ended):
            continue
        if world.was_lost(answered.began, answered.at):
            continue
        worker = world.log.attempts[answered.id, end.attempt].worker
        front = answered.front.partition("x")[0]
        if end.outcome == "done" and not {worker, front} & world.touched:
            yield f"{answered.id} is done, caller {answered.caller} at {answered.front} got {answered.code}"


def leadership_is_stable(world: World) -> Iterator[str]:
    """Rule 7: in mild weather leadership changes only when a gate process dies or begins."""
    most = 1 + world.weather.gates + world.kills + world.restarts + len(world.losses[world.shard])
    if world.weather.mild and len(world.log.epochs) > most:
        yield f"{len(world.log.epochs)} epochs, with {world.kills} kills and {world.restarts} restarts"


def ends_on_disk_are_not_lost(world: World) -> Iterator[str]:
    """I9, rule 5: an end that a worker wrote to its disk reaches the log within the lease, also if its process dies."""
    written = {end for disk in world.disks.values() for end in disk.ends}
    for (call_id, attempt), returned in world.log.fenced.items():
        if (call_id, attempt) in written:
            yield f"{execution_name(call_id, attempt)} ended on its worker, and was returned as {returned.reason}"


def repeats_are_few(world: World) -> Iterator[str]:
    """Rule 16: a process repeats at most 5 % of its requests to the log, beyond the first few."""
    for node in world.nodes():
        hedges = sum(log.hedges for log in node.hedged)
        most = len(node.hedged) * HEDGES_SAVED_MAX + HEDGED_SHARE_MAX * node.faults.steps
        if hedges > most:
            yield f"{node.tag} repeated {hedges} requests in {node.faults.steps} steps"


END_ORACLES: list[EndOracle] = [
    the_log_folds,
    each_call_ends,
    charges_are_service,
    answers_are_the_record,
    no_caller_is_lost,
    durable_work_is_finished,
    one_key_one_call,
    usage_is_the_sum_of_ends,
    physical_slots,
    replay_and_snapshots_agree,
    failed_after_real_attempts,
    what_is_done_is_answered,
    leadership_is_stable,
    ends_on_disk_are_not_lost,
    repeats_are_few,
    errors_end_their_own_requests,
    errors_end_one_task,
    refusals_are_justified,
    refused_calls_do_not_run,
]
