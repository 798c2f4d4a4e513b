"""Further mistakes: in what undoes and searches after an error, in what reads the log, and in the order."""

from __future__ import annotations

from dispatcher.policies.orders import two_clocks, two_clocks_index
from dispatcher.service import deciding, follower
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
    Edit(deciding.Decider, "_undo", "if isinstance(error, LogCorrupt):", "if False:"),
)
bug(
    "state_not_loaded_again",
    "After a decision that cannot be undone the state is used on.",
    Edit(follower.Follower, "_lose_state", "self._named, self._is_lost = None, True", "pass"),
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
    Edit(two_clocks.TwoClocks, "settled", "if not error:", "if True:"),
)
bug(
    "settled_by_the_new_share",
    "A settlement uses the share of now and not that of the dispatch.",
    Edit(two_clocks.TwoClocks, "settled", "weight = call.charge_weight", "weight = tenant.weight"),
)
bug(
    "bucket_never_full",
    "A tenant that was idle keeps the credit of all the time.",
    Edit(two_clocks.TwoClocks, "charged", "(tat if tat > full else full)", "tat"),
)
bug(
    "profile_ignored",
    "A tenant in profile has no advantage.",
    Edit(two_clocks_index.TwoClocksIndex, "_fill_buckets", "while ", "while False and "),
)
