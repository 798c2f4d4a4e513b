"""Mistakes beside the removed rules: each is easy to make, and was made in some system before.

The first ones are in the gate's way of a call. Then come mistakes in what undoes and searches after an error, in calls
that several processes hold, in usage, and in the order; last those that were made in similar software, each with the
report that it is derived from.
"""

from __future__ import annotations

from dispatcher.operations.calls import ends, following
from dispatcher.policies.orders import two_clocks
from dispatcher.service.gate import courier, deciding, follower, presence, replica
from dispatcher.service.link import pending, route
from dispatcher.shard import accept, attempts, decide, fold, steps
from dispatcher.shard.state import indexes
from gpu_worker.service import agent
from gpu_worker.service.executions import executions
from gpu_worker.service.executions import outbox as worker_outbox
from tests.support.world.storm.bugs.registry import Edit, Value, bug

bug(
    "lost_reply_is_a_loss",
    "An append that failed is taken for one that was not written: its facts are written again at the next position.",
    Edit(replica.Replica, "_write", "if stands != data:", "if stands != data or self._doubted:"),
    Edit(
        replica.Replica,
        "_write",
        "            self._fold(stands)",
        "            self._doubted = False\n            self.shard.state.position += 1",
    ),
    Edit(
        replica.Replica,
        "_append",
        "                tries += 1",
        "                tries, self._doubted = tries + 1, True",
    ),
    Value(replica.Replica, "_doubted", False),
)
bug(
    "winner_not_folded",
    "A process that lost a position writes the next one without folding the winner's entry.",
    Edit(replica.Replica, "_write", "self._fold(stands)", "self.shard.state.position += 1"),
)
bug(
    "end_not_fenced",
    "An end of an earlier attempt ends the call.",
    Edit(attempts, "_running", "and call.attempt == attempt", ""),
)
bug(
    "returned_attempt_keeps_its_slot",
    "An attempt that is returned keeps its slot.",
    Edit(fold, "_release", "state.release(call, worker)", "reason not in NOT_COUNTED or state.release(call, worker)"),
)
bug(
    "end_keeps_its_slot",
    "A call that was cancelled before it began keeps its slot.",
    Edit(attempts, "_return", 'return _end(decision, call, "cancelled")', "return None"),
)
bug(
    "ends_remembered_wrongly",
    "A repeated end gets the answer of a call that never ran.",
    Edit(steps, "fold_end", "state.ends[call_id] = over", 'state.ends[call_id] = Over(call_id, 0, "cancelled")'),
)
bug(
    "deadlines_not_decided",
    "Waiting calls stay beyond their deadline.",
    Edit(indexes.Deadlines, "take_due", "return list(due)", "return []"),
)
bug(
    "live_attempts_ignored",
    "A worker returns held attempts that run.",
    Edit(agent.Agent, "_heartbeat", "self.executions.live(), now_s", "frozenset(), now_s"),
    Edit(executions.Executions, "fence", "if name in self.live():", "if False:"),
)
bug(
    "news_lost_at_failover",
    "A process does not ask a new leader for the calls that it holds.",
    Edit(route.Route, "_ask_status", "for call_id in self._waiters.unfinished:", "for call_id in ():"),
)
bug(
    "news_not_pushed",
    "A leader does not send the news of an entry.",
    Edit(courier.Courier, "deliver", "for delivery in deliveries:", "for delivery in ():"),
)
bug(
    "stale_offers_taken",
    "A process takes offers of attempts that it has seen.",
    Edit(following.Following, "_on_offer", "if offer.attempt <= attempts.highest:", "if False:"),
    Edit(pending.Waiters, "put", "elif news.attempt <= call.highest:", "elif False:"),
)
bug(
    "charged_by_estimate",
    "A call is charged its estimate and not its true service.",
    Edit(
        attempts,
        "_end",
        "served = state.settings.charge(input_tokens, output_tokens, cached_tokens, adapter_loaded=adapter_loaded)",
        "served = call.cost",
    ),
)
bug(
    "cancel_frees_the_slot",
    "A cancelled call that runs frees its slot at once.",
    Edit(
        decide,
        "_cancel",
        "decision.add(Cancelling(call.id))",
        "end(decision, End(call.id, call.attempt, command.outcome, 0, 0))",
    ),
)
bug(
    "no_lease_watch",
    "A worker that cannot reach its gate does not abort its work.",
    Edit(agent.Agent, "_watch", "if self._lease_ends(now_s):", "if False:"),
)
bug(
    "dead_worker_keeps_its_work",
    "A worker that is not heard any more keeps its attempts.",
    Edit(presence.Presence, "_lost_workers", 'is_silent = worker.config.state == "silent"', "is_silent = False"),
)
bug(
    "shared_attempt_returned",
    "A process returns an attempt that another one may have begun.",
    Value(attempts, "BY_ITS_PROCESS", frozenset()),
)
bug(
    "launch_forgotten",
    "A durable call that no process holds is dispatched, and not launched.",
    Edit(courier.Courier, "launch", "if self.executors:", "return\n        if self.executors:"),
)
bug(
    "suspended_call_is_not_launched",
    "No executor is started for the calls that are suspended because no process holds them.",
    Edit(courier.Launches, "sweep", "if waiting:", "if False:"),
)
bug(
    "end_sent_once",
    "A worker reports an end once, and forgets it if no answer comes.",
    Edit(
        worker_outbox.Outbox,
        "_repeat_report",
        "            if self.journal is not None:",
        '            return Refused("", "forgotten", "", 0.0)\n            if self.journal is not None:',
    ),
    Value(worker_outbox, "TRY_S", 1.0),
)
bug(
    "silent_worker_gets_work",
    "The leader does not note that a worker is silent.",
    Edit(presence.Presence, "_worker_silent", "if worker is not None and", "if False and"),
)


# Errors in the code (I10)

bug(
    "an_error_refuses_all",
    "An error in a decision refuses all commands of its entry.",
    Edit(
        deciding.Decider,
        "_commit_sound",
        "        good = [",
        "        each = enumerate(commands)\n"
        "        found.refused.update({p: self.faults.refuse('', c, failed.failure.error) for p, c in each})\n"
        "        good = [",
    ),
)
bug(
    "outcomes_change_places",
    "After a search the refusals come last, so callers get the outcomes of others.",
    Edit(deciding.Decider, "_commit_sound", "outcomes.insert(place, refused)", "outcomes.append(refused)"),
)
bug(
    "error_not_undone",
    "A decision that raised stays in the state, because only a lost position undoes it.",
    Edit(deciding.Decider, "_undo", "            self._roll_back()", "            self.shard.confirm()"),
)
bug(
    "half_a_fact_undone",
    "A fact that was folded in part is undone like others.",
    Edit(deciding.Decider, "_undo", "if decision.is_folding:", "if False:"),
)
bug(
    "state_not_loaded_again",
    "After a decision that cannot be undone the state is used on.",
    Edit(follower.Follower, "_lose_state", "self._named, self._is_lost = None, True", "pass"),
)

bug(
    "kept_after_loss",
    "After a lost position the time and the stored answers of the earlier decision are still used.",
    Edit(
        replica.Replica,
        "_commit",
        "losses, kept, is_fresh, found = losses + 1, False, False, ()",
        "losses, is_fresh = losses + 1, False",
    ),
)
bug(
    "floor_not_kept",
    "The undo of an acceptance leaves the floor of its process raised.",
    Edit(steps, "_undo_accept", "process.floor, process.seen_at = before", "pass"),
)
bug(
    "arrival_not_undone",
    "The undo of an acceptance leaves the number of arrivals raised.",
    Edit(steps, "_undo_accept", "state.arrivals -= 1", "pass"),
)
bug(
    "end_not_undone",
    "The undo of an end leaves the call among the ends.",
    Edit(steps, "_undo_end", "del state.ends[call.id]", "pass"),
)
bug(
    "virtual_time_not_undone",
    "The undo of a dispatch leaves the virtual time.",
    Edit(
        steps,
        "_undo_dispatch",
        "call.dispatched_at, call.tenant.clocks, state.virtual_time, state.behind,",
        "call.dispatched_at, call.tenant.clocks, _, state.behind,",
    ),
)

# Calls that several processes hold, and commands that are sent again

bug(
    "unbegun_end_of_shared",
    "The unbegun end of a call ends it, although another process may have begun the attempt.",
    Edit(attempts, "end", "if command.unbegun and call.watchers and (call.process or not command.kept):", "if False:"),
)
bug(
    "refusal_of_repeated",
    "The refusal of one copy of a command is its outcome, although another copy was accepted.",
    Edit(pending.Pending, "resolve", "isinstance(outcome, Refused | NotAccepted) and found.copies > 1", "False"),
)
bug(
    "news_of_holder_only",
    "The end of a call is sent to the process that holds it last.",
    Edit(steps, "news_of", "if call.watchers:", "if False:"),
)
bug(
    "watchers_forgotten",
    "A call forgets which processes held it before.",
    Edit(fold, "_hold_by", "if call.process and call.process not in call.watchers:", "if False:"),
)
bug(
    "over_at_once",
    "A front ends a call when the gate says so, before the worker's last tokens have come.",
    Edit(
        following.Following,
        "_on_over",
        "if not self._attempts.is_running or over.attempt != self._attempts.highest:",
        "if True:",
    ),
)
bug(
    "counts_are_an_answer",
    "A call that ended in the log is answered with the tokens that came.",
    Edit(ends, "end_in_log", "over.output_tokens == events.collected.output_tokens", "over.output_tokens"),
)
bug(
    "rest_of_another_text",
    "A caller gets the rest of an answer that began differently.",
    Edit(ends, "_rest_of", 'choices[0]["text"].startswith(got.text)', "True"),
)
bug(
    "cancelled_runs_again",
    "A call that was cancelled waits again when its attempt is returned.",
    Edit(
        attempts,
        "_return",
        "if call.cancelling or (not call.process and not call.terms.durable):",
        "if not call.process and not call.terms.durable:",
    ),
)

# Usage

bug(
    "usage_saved_too_far",
    "The log says that usage is projected up to now, and not up to the snapshot.",
    Edit(decide, "_note_saved_usage", "position = min(command.position, state.position)", "position = state.position"),
)
bug(
    "spent_not_undone",
    "The undo of an end leaves its charge in the tenant's total.",
    Edit(steps, "_undo_end", "call.tenant.spent, state.virtual_time = before", "_, state.virtual_time = before"),
)

# Bounds

bug(
    "one_page_read",
    "The end of the log is read up to one page.",
    Edit(follower.Follower, "_catch_up", "if len(entries) < READ_MAX:", "if True:"),
)

# The order

bug(
    "no_refund",
    "A settlement does not correct the tenant's clocks.",
    Edit(two_clocks.TwoClocks, "settle", "if not error and not swap_service:", "if True:"),
)
bug(
    "settled_by_the_new_share",
    "A settlement uses the share of now and not that of the dispatch.",
    Edit(two_clocks.TwoClocks, "settle", "weight = call.charge_weight", "weight = tenant.config.weight"),
)
bug(
    "bucket_never_full",
    "A tenant that was idle keeps the credit of all the time.",
    Edit(two_clocks.TwoClocks, "charge", "(tat if tat > full else full)", "tat"),
)
bug(
    "profile_ignored",
    "A tenant in profile has no advantage.",
    Edit(two_clocks.TwoClocksIndex, "_fill_buckets", "later[0] <= now", "later[0] < 0.0"),
)


bug(
    "unbounded_queue",
    "A tenant's queue has no limit (vllm-project/vllm#18826).",
    Edit(accept, "_queue_full", "if waiting < limit or", "if True or"),
)
bug(
    "count_below_zero",
    "A suspended call that leaves is not counted as suspended, and the count is clamped (llm-d/llm-d#1950).",
    Edit(fold, "_leave", "state.suspend(call, -1)", "call.tenant.suspended = max(0, call.tenant.suspended)"),
)
bug(
    "aborted_stream_is_free",
    "A stream that is aborted costs nothing (BerriAI/litellm#18730).",
    Edit(
        attempts,
        "_end",
        "    served = state.settings.charge(input_tokens, output_tokens, cached_tokens, adapter_loaded=adapter_loaded)",
        '    output_tokens = 0 if outcome == "cancelled" else output_tokens\n'
        "    served = state.settings.charge(input_tokens, output_tokens, cached_tokens, adapter_loaded=adapter_loaded)",
    ),
)
bug(
    "returned_call_goes_last",
    "A call that comes back loses its place (vllm-project/vllm#23347).",
    Edit(
        fold,
        "_fold_return",
        "        state.enqueue(call)",
        "        call.arrival += 1000\n        state.enqueue(call)",
    ),
)
bug(
    "counter_is_not_lifted",
    "A tenant that was idle comes back with its old counter, and takes all slots until it has caught up (the lift of "
    "VTC, section 4.1, left out in several schedulers).",
    Edit(two_clocks.TwoClocks, "join", "vft = virtual_time\n", "pass\n"),
)
bug(
    "charged_again_on_retry",
    "A call that comes back is charged for its first attempt too (BerriAI/litellm#15740).",
    Edit(attempts, "_return", "state.order.settle(call.tenant, call, 0.0)", "call.tenant.clocks"),
)
bug(
    "refused_charge_is_dropped",
    "A report that the gate refuses for now is not sent again (BerriAI/litellm#35531, #33873: spend that the database "
    "does not take is gone).",
    Edit(worker_outbox.Outbox, "_repeat_report", "if not isinstance(outcome, Refused):", "if True:"),
)
bug(
    "finished_work_is_given_away",
    "A worker does not say that it holds an attempt whose report is under way, so the attempt is done again "
    "(mapbox/ecs-watchbot#143).",
    Edit(executions.Executions, "live", "self.running() | self.outbox.live() | self._deciding", "self.running()"),
)
bug(
    "aborted_request_keeps_its_slot",
    "A request whose caller left before the end keeps its slot (sgl-project/sglang#8587).",
    Edit(executions.Executions, "_close", "if execution.name in self._live:", "if False:"),
)
