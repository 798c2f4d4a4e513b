"""Further mistakes: in what undoes and searches after an error, in what reads the log, in calls that several processes
hold, in usage, and in the order."""

from __future__ import annotations

from dispatcher.operations.calls import ends, following
from dispatcher.policies.orders import two_clocks
from dispatcher.service.gate import deciding, follower, replica
from dispatcher.service.link import pending
from dispatcher.shard import attempts, decide, fold, steps
from tests.support.gate.storm.bugs.registry import Edit, bug

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
    Edit(pending.Pending, "resolve", "if isinstance(outcome, Refused | NotAccepted) and copies > 1:", "if False:"),
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
    Edit(two_clocks.TwoClocks, "settle", "if not error:", "if True:"),
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
