"""The adversary of Theorem 4.8 of the VTC paper: no work-conserving scheduler that does not preempt can be fairer.

A batch's worth of requests of one client arrives alone, so whoever conserves work must admit them all; right after
them the other client begins to ask, and gets nothing before they end. What the first receives meanwhile is nearly
w_q M, with M the tokens of that batch: all but its inputs, and inputs can be one token each.
"""

from __future__ import annotations

from headgate.simulator.engines.profile import EngineProfile
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload, Workload


def adversary(profile: EngineProfile, requests: int) -> Workload:
    """`requests` of client f that take the whole pool, less what does not divide by their number; inputs of one token.
    While they are prefilled, one more of g's and one more of f's: from then on both are backlogged."""
    output_tokens = (profile.pool_tokens - 1) // requests - 1 - profile.prompt_extra_tokens
    during_prefill_s = profile.prefill_base_s
    arrivals = [Arrival(0.0, "f", 1, output_tokens) for _ in range(requests)]
    arrivals += [Arrival(during_prefill_s, client, 1, output_tokens) for client in "gf"]
    return ListWorkload("adversary", arrivals)
