"""A fairness smoke test of a running service: one tenant floods, and another one must not wait behind the flood.

Two tenants are created for it, with equal weights and no guarantee, and deleted afterwards. The verdict counts
requests, and does not depend on how fast the service is: of the requests of the flood that waited when a request of the
quiet tenant came, at most a half may get their first token before it. Under first come, first served all of them do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.model.tenants import Tenant
from dispatcher.operations.administration import TenantAdmin
from dispatcher.ports import Ids
from headgate.demo.measure import Sample
from headgate.demo.player import Player
from headgate.doctor.finding import Finding, failed, ok, warning
from headgate.workloads.arrivals import Arrival

CHECK = "fairness"
QUIET_REQUESTS = 3
INPUT_TOKENS, OUTPUT_TOKENS = 32, 64
QUIET_AT_S = 0.6
FLOOD_MAX = 600
AHEAD_MAX = 0.5
BYTES_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class TestedService:
    """Where the test sends its requests. `slots`: of all workers of the model. `window`: HEADGATE_SLO_WINDOW."""

    base_url: str
    model: str
    slots: int
    window: float = 5_000.0


async def check_fairness(admin: TenantAdmin, ids: Ids, service: TestedService) -> Finding:
    """Create two tenants, play the flood and the quiet requests, delete the tenants, and return the verdict."""
    suffix = "".join(letter for letter in ids.new().lower() if letter.isalnum())[:8]
    names = {role: f"doctor-{role}-{suffix}" for role in ("flood", "quiet")}
    keys: dict[str, str] = {}
    try:
        for name in names.values():
            keys[name] = await admin.create(Tenant(name))
        player = Player(service.base_url, None, keys, service.model, BYTES_PER_TOKEN, {})
        samples = await player.play(_arrivals(names["flood"], names["quiet"], _flood_size(service)))
    finally:
        for name in keys:
            await admin.delete(name)
    return verdict(samples, names["flood"], names["quiet"])


def _flood_size(service: TestedService) -> int:
    """Return the requests of the flood: four for each slot, and four windows of service. With SLO classes, requests of
    one window may go before a later one that is due later: this must be a small part of the flood."""
    windows = math.ceil(4 * service.window / (INPUT_TOKENS + 2 * OUTPUT_TOKENS))
    return min(FLOOD_MAX, max(16, 4 * service.slots, windows))


def _arrivals(flood: str, quiet: str, sent: int) -> list[Arrival]:
    """Return a flood of `sent` requests, and the quiet requests right behind it."""
    behind = [Arrival(QUIET_AT_S, quiet, INPUT_TOKENS, OUTPUT_TOKENS) for _ in range(QUIET_REQUESTS)]
    return [*(Arrival(0.0, flood, INPUT_TOKENS, OUTPUT_TOKENS) for _ in range(sent)), *behind]


def verdict(samples: Sequence[Sample], flood: str, quiet: str) -> Finding:
    """Return whether the quiet tenant's requests passed the flood's waiting ones."""
    lost = [sample for sample in samples if sample.tenant == quiet and sample.error]
    if lost:
        return failed(CHECK, f"a request of the quiet tenant failed: {lost[0].error}", "see the front's log")
    parts = [_ahead(samples, sample, flood) for sample in samples if sample.tenant == quiet]
    waited = [part for part in parts if part is not None]
    if not waited:
        advice = "nothing is wrong; to see the sharing, repeat it while the service is busy"
        return warning(CHECK, "the flood did not fill the workers: no request had to wait", advice)
    seen = f"of the flood's waiting requests, {max(waited):.0%} were served before a quiet one that came later"
    if max(waited) > AHEAD_MAX:
        return failed(CHECK, seen, "check HEADGATE_ORDER: fcfs does not share")
    return ok(CHECK, seen)


def _ahead(samples: Sequence[Sample], sample: Sample, flood: str) -> float | None:
    """Return the part of the flood that waited when the sample came and began before it. None: none waited."""
    firsts = [_first_s(each) for each in samples if each.tenant == flood and not each.error]
    waiting = [first for first in firsts if first > sample.arrival_s]
    mine = _first_s(sample)
    return sum(first < mine for first in waiting) / len(waiting) if waiting else None


def _first_s(sample: Sample) -> float:
    return math.inf if sample.first_token_s is None else sample.first_token_s
