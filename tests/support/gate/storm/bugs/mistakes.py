"""Other mistakes: each is easy to make, and was made in some system before."""

from __future__ import annotations

from dispatcher.operations.calls import following
from dispatcher.service.gate import courier, presence, replica
from dispatcher.service.link import pending, route
from dispatcher.shard import attempts, decide, fold, steps
from dispatcher.shard.state import indexes
from gpu_worker.service import agent
from gpu_worker.service.executions import executions
from gpu_worker.service.executions import outbox as worker_outbox
from tests.support.gate.storm.bugs.registry import Edit, Value, bug

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
        "served = state.settings.charge(input_tokens, output_tokens, cached_tokens)",
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
