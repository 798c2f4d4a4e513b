"""The rules of docs/gate.md, each removed.

Rule 9 is not here: there is no inbox, a process without a leader appends by itself. A rule that two mechanisms keep
is removed in both where each alone keeps it; the bug's text says so.
"""

from __future__ import annotations

from math import inf

from dispatcher.operations.calls import followed, following, submit
from dispatcher.service import snapshots
from dispatcher.service.gate import follower, planning, presence, replica
from dispatcher.service.gate import process as gate_process
from dispatcher.service.link import channel, route
from dispatcher.shard import accept, attempts, fold, snapshot, steps, swapping
from dispatcher.shard.state import records, state
from dispatcher.stores import hedged_log, snapshot_parts
from gpu_worker.service import agent
from gpu_worker.service.executions import executions
from tests.support.world.storm import machine
from tests.support.world.storm.bugs.registry import Edit, Value, bug

bug(
    "expired_positions",
    "An append at a position that may have expired counts.",
    Value(replica, "POSITION_MAX_AGE_S", inf),
    Value(follower, "POSITION_MAX_AGE_S", inf),
    rule=1,
)
bug(
    "answers_from_old_state",
    "A report, an end and an unknown attempt are answered without reading the tail.",
    Edit(replica.Replica, "_commit", "if is_fresh or (", "if True or ("),
    rule=2,
)
bug(
    "answered_before_written",
    "An append without a reply counts as written.",
    Edit(
        replica.Replica,
        "_append",
        "                await self._clock.sleep(self._pause_s(tries))\n                tries += 1",
        "                stands = data\n                break",
    ),
    rule=3,
)
bug(
    "attempts_begin_twice",
    "A worker forgets which attempts it has seen.",
    Edit(executions.SeenAttempts, "has", "seen is not None and", "False and"),
    rule=4,
)
bug(
    "unknown_attempts_run_on",
    "A worker goes on with attempts that the log does not hold. Only this ends what a suspended machine lost: its "
    "monotonic clock did not run, so the watch of the lease sees nothing.",
    Edit(agent.HeldAttempts, "unknown", ">= UNKNOWN_S", ">= 1e9"),
    rule=4,
)
bug(
    "streamed_call_begins_again",
    "A front that streamed a lost attempt begins the next one.",
    Edit(
        following.Following,
        "_on_offer",
        "if self._events.is_partly_delivered:",
        "if False:",
    ),
    rule=4,
)
bug(
    "whole_answer_ends_with_its_attempt",
    "A front ends a call that is answered as a whole with the tokens of a lost attempt.",
    Edit(
        following.Following,
        "_on_offer",
        "if self._events.is_partly_delivered:",
        "if self._events.collected.output_tokens:",
    ),
    rule=4,
)
bug(
    "tokens_of_two_attempts",
    "A call that begins again keeps the tokens of the lost attempt in its answer.",
    Edit(
        followed.AnswerEvents,
        "begin",
        "self.collected, self.first_at, self._is_handed = Collected(), None, False",
        "pass",
    ),
    rule=4,
)
bug(
    "lease_too_short",
    "The leader takes a worker for lost before the worker has aborted its work.",
    Value(presence, "LEASE_S", 0.0),
    Value(presence, "LEASE_MARGIN_S", 0.0),
    Value(presence, "SILENT_S", 0.5),
    rule=4,
)
bug(
    "outbox_lost",
    "The outbox does not survive the worker's process.",
    Edit(machine.MemoryJournal, "recover", "return dict(self._disk.reports)", "return {}"),
    rule=5,
)
bug(
    "front_reports_the_end",
    "A front ends the attempt of a caller that left, before the worker has freed the slot.",
    Edit(
        following.Following,
        "_on_left",
        "self._attempts.stop()",
        'self._context.spawn(self._link.do(End(self.call.id, self._attempts.highest, "cancelled", 0, 0)))',
    ),
    rule=5,
)
bug(
    "not_begun_does_not_suspend",
    "An offer that is not begun leaves its process as it is.",
    Edit(attempts, "return_attempt", 'if command.reason == "not_begun"', 'if command.reason == "never"'),
    rule=6,
)
bug(
    "dead_process_is_never_gone",
    "A process that is not heard keeps its calls.",
    Edit(presence.Presence, "_gone_processes", "if not process.calls or silent_s <= GONE_BROKEN_S:", "if True:"),
    rule=6,
)
bug(
    "suspended_for_ever",
    "A message from a suspended process does not resume its calls.",
    Edit(presence.Presence, "heard", "if process is not None and (", "if False and ("),
    Edit(presence.Presence, "on_reported", "self._silent_since.pop(Silent(worker, True), None)", "pass"),
    rule=6,
)
bug(
    "not_begun_counts",
    "An offer that is not begun counts as an attempt.",
    Value(fold, "NOT_COUNTED", frozenset()),
    Value(attempts, "NOT_COUNTED", frozenset()),
    rule=6,
)
bug(
    "no_patience",
    "A late receipt is taken for a dead leader, and nothing holds a takeover off.",
    Value(channel, "PATIENCE_MAX_S", 0.004),
    Value(gate_process, "HOLD_OFF_S", 0.0),
    Edit(gate_process.Succession, "may_succeed", "if not is_certain:", "if False:"),
    rule=7,
)
bug(
    "accepted_twice",
    "The window of a process's commands is not looked at.",
    Edit(
        accept,
        "_was_accepted",
        "return process is not None and (sequence < process.floor or sequence in process.accepted)",
        "return False",
    ),
    rule=8,
)
bug(
    "window_not_in_snapshot",
    "A snapshot leaves the windows of the processes out.",
    Edit(snapshot, "_process", "sorted(process.repeatable())", "[]"),
    rule=8,
)
bug(
    "worker_trusts_the_wall_clock",
    "A worker measures its lease by a clock that can be set back.",
    Edit(agent.Agent, "_watch", "self.clock.monotonic()", "self.clock.now()"),
    Edit(agent.Agent, "_heartbeat", "self.clock.monotonic()", "self.clock.now()"),
    rule=10,
)
bug(
    "time_goes_back",
    "An entry has its writer's time, also if that is before the last entry's.",
    Edit(follower.ClockGuard, "entry_time", "max(previous, self._clock.now())", "self._clock.now()"),
    rule=10,
)
bug(
    "losses_without_calm",
    "A leader decides losses at once after its takeover, or when it was paused.",
    Edit(presence.Presence, "sweep", "if self._replica.guard.is_calm:", "if False:"),
    Edit(presence.Presence, "_worker_unheard_s", "self._began_at", "0.0"),
    Edit(presence.Presence, "_unheard_s", "self._began_at", "0.0"),
    Edit(presence.Presence, "_note_silent", "setdefault(silent, self._clock.monotonic())", "setdefault(silent, 0.0)"),
    rule=10,
)
bug(
    "no_undo_of_clocks",
    "A decision that was not written leaves a tenant's clocks changed.",
    Edit(state.State, "set_clocks", "self._note(self.set_clocks, tenant, tenant.clocks)", "pass"),
    Edit(steps, "_undo_accept", "call.tenant.clocks = clocks", "pass"),
    Edit(steps, "_undo_dispatch", "call.tenant.clocks, state.virtual_time", "_, state.virtual_time"),
    Edit(steps, "_undo_end", "call.tenant.clocks, call.tenant.spent", "_, call.tenant.spent"),
    rule=11,
)
bug(
    "no_undo_of_queues",
    "A decision that was not written leaves a call in its queue.",
    Edit(state.State, "enqueue", "self._note(self.dequeue, call)", "pass"),
    Edit(steps, "_undo_accept", "state.leave_queue(call)", "pass"),
    rule=11,
)
bug(
    "torn_snapshot_is_read",
    "A snapshot with lost or damaged parts counts as complete.",
    Edit(snapshot_parts, "join", "return state if complete else None", "return state"),
    rule=12,
)
bug(
    "cut_too_far",
    "The log is cut below the newest snapshot, which may be torn.",
    Edit(snapshots.Snapshots, "write", "await self._log.cut(before)", "await self._log.cut(position)"),
    rule=12,
)
bug(
    "mailbox_not_read",
    "A process without a leader does not read its mailbox.",
    Edit(route.Alone, "_read_mailbox", "for position, letter in letters:", "for position, letter in ():"),
    Edit(route.Alone, "_on_entry", "if delivery.process == self._replica.name:", "if False:"),
    rule=13,
)
bug(
    "no_heir",
    "No process takes over from a dead leader.",
    Edit(gate_process.GateProcess, "_succeed", "await self._take_over(known)", "await self._clock.sleep(RETRY_S)"),
    rule=14,
)
bug(
    "answer_after_the_end",
    "The end of a durable call is written without keeping its answer.",
    Edit(replica.Replica, "_commit", "if not kept and self._answers and", "if False and"),
    rule=15,
)
bug(
    "durable_call_leaves_with_its_process",
    "A durable call is cancelled when the process that holds it is gone.",
    Edit(fold, "_fold_process_loss", "if call.terms.durable:", "if False:"),
    rule=15,
)
bug(
    "item_after_acceptance",
    "A durable call is accepted before its item is written.",
    Edit(
        submit,
        "_one_try",
        "        item = await in_time(context.store.create(item_of(call, body)))\n",
        "        following = Following(context, call, waiting)\n        await following.first()\n"
        "        item = await in_time(context.store.create(item_of(call, body)))\n",
    ),
    Edit(
        submit,
        "_one_try",
        "            following = Following(context, call, waiting)\n        elif",
        "            pass\n        elif",
    ),
    rule=15,
)
bug(
    "hedged_without_bound",
    "Every slow request to the log is repeated, however many were repeated before.",
    Edit(hedged_log.HedgedLog, "_may_hedge", "return self._saved >= 1 and not self._is_throttled()", "return True"),
    rule=16,
)
bug(
    "ordered_worker_gets_calls",
    "A worker that should load another model gets new calls.",
    Edit(records.Worker, "_open", "and not self.load", ""),
    rule=17,
)
bug(
    "order_is_not_answered",
    "The answer to a heartbeat does not name the model to load.",
    Edit(swapping, "answered_with_loads", "if not state.slots.can_swap:", "if True:"),
    rule=17,
)
bug(
    "order_not_in_snapshot",
    "A snapshot lacks the orders to load models.",
    Edit(snapshot, "_load_shard", 'fields.get("loads", ())', "()"),
    rule=17,
)
bug(
    "order_is_not_undone",
    "An order that was not written stays in the state of its writer.",
    Edit(state.State, "set_load", "self._note(self.set_load, worker, worker.load, worker.ordered_at)", "pass"),
    rule=17,
)
bug(
    "no_turns_without_a_plan",
    "Nothing but a plan loads a model that calls wait for.",
    Edit(swapping, "order_loads", "if missing and (waiting := _waiting_since(state, missing)):", "if waiting := {}:"),
    Value(planning, "SWEEP_S", inf),
    Value(planning, "REPLAN_S", inf),
    rule=17,
)
