"""The adversary of Theorem 4.8 of the VTC paper: no work-conserving, non-preemptive scheduler can be fairer.

One client sends a batch of requests while no other request is there, so a work-conserving scheduler must admit them
all. Right after that the other client begins to send, and it receives nothing until they end. The service of the first
client in that time is nearly w_q M, with M the tokens of the batch: only the inputs are missing, and an input can be
one token.
"""

from __future__ import annotations

from headgate.simulator.engines.profile import EngineProfile
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload, Workload


def adversary(profile: EngineProfile, requests: int) -> Workload:
    """Make `requests` requests of client f that fill the pool, up to a remainder of the division; inputs of one token.

    During their prefill, one more request of each client arrives: g and f. From then on both are backlogged.
    """
    output_tokens = (profile.pool_tokens - 1) // requests - 1 - profile.prompt_extra_tokens
    during_prefill_s = profile.prefill_base_s
    arrivals = [Arrival(0.0, "f", 1, output_tokens) for _ in range(requests)]
    arrivals += [Arrival(during_prefill_s, client, 1, output_tokens) for client in "gf"]
    return ListWorkload("adversary", arrivals)
