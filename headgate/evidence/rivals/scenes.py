"""Four scenes that every front plays, with any number of processes, and what is measured of each.

Ingress is *even* if each request enters at a process drawn evenly. It is *skewed* if a tenant that spreads its
connections, `wide`, enters at all processes evenly and each other tenant enters at one process of its own (its
connections stay open). With one process, both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from dispatcher.policies.percentiles import percentile
from headgate.evidence.rivals.deciders import OURS, OneLog, Playback, Replicas, Sent, play
from headgate.evidence.rivals.policies import RIVALS

PROCESSES = (1, 2, 8, 64)
EVEN, SKEWED = "even", "skewed"
WORKERS = 8
_UNTIL_S = 200.0
_FROM_S = 40.0
"""Shares and waits are measured from here on."""
WIDE = "wide"
_OTHERS = ("b", "c", "d")
_LIGHT = "light"


class Job(NamedTuple):
    scene: str
    front: str
    processes: int
    ingress: str


def play_job(job: Job) -> tuple[float, ...]:
    """Play a scene and return its figures. A job for Setting.map."""
    return SCENES[job.scene](job)


def _play_front(job: Job, sent: list[Sent], weights: Mapping[str, float], *, workers: int, until_s: float) -> Playback:
    sent.sort(key=lambda each: each.arrival_s)
    if job.front == OURS:
        return play(OneLog(weights, workers), sent, until_s)
    return play(Replicas(lambda: RIVALS[job.front](weights), job.processes, workers), sent, until_s)


def _requests(
    job: Job, random: Random, tenant: str, per_s: float, cost: float, from_s: float, to_s: float
) -> Iterator[Sent]:
    """Yield Poisson arrivals of one tenant: the same ones for any ingress and any number of processes."""
    ingress = Random(tenant)
    own = (*_OTHERS, _LIGHT).index(tenant) % job.processes if tenant != WIDE else 0
    is_spread = job.ingress == EVEN or tenant == WIDE
    at_s = from_s + random.expovariate(per_s)
    while at_s < to_s:
        yield Sent(at_s, tenant, cost, ingress.randrange(job.processes) if is_spread else own)
        at_s += random.expovariate(per_s)


def four_to_one(job: Job) -> tuple[float, ...]:
    """Return the requests of premium over those of regular, as in the public report: weights 4 : 1, equal costs.

    One worker starts 325 requests; both classes always wait. With skewed ingress, each class enters at its own half of
    the processes.
    """
    random, half = Random(1), max(1, job.processes // 2)

    def at(tenant: str) -> int:
        if job.ingress == EVEN or job.processes == 1:
            return random.randrange(job.processes)
        return random.randrange(half) + (0 if tenant == "premium" else half)

    sent = [Sent(0.0, tenant, 1.0, at(tenant)) for _ in range(400) for tenant in ("premium", "regular")]
    played = _play_front(job, sent, {"premium": 4.0}, workers=1, until_s=324.5)
    return (played.count_starts("premium") / played.count_starts("regular"),)


def shares(job: Job) -> tuple[float, ...]:
    """Return what the least served of four tenants gets of its fair part, and the P90 wait of a fifth, in seconds.

    The four always have requests waiting, of costs 4, 1, 1 and 0.5 s. The fifth needs a twentieth of the workers.
    """
    random = Random(2)
    sent: list[Sent] = []
    for tenant, cost in zip((WIDE, *_OTHERS), (4.0, 1.0, 1.0, 0.5), strict=True):
        sent += _requests(job, random, tenant, 0.5 * WORKERS / cost, cost, 0.0, _UNTIL_S)
    sent += _requests(job, random, _LIGHT, 0.05 * WORKERS, 1.0, 0.0, _UNTIL_S)
    played = _play_front(job, sent, {}, workers=WORKERS, until_s=_UNTIL_S)
    given = [played.service(tenant, _FROM_S, _UNTIL_S) for tenant in (WIDE, *_OTHERS)]
    wait_s = percentile(played.waits_s(_LIGHT, _FROM_S, _UNTIL_S), 0.9) or 0.0
    return min(given) / (sum(given) / len(given)), wait_s


def burst_wait(job: Job) -> tuple[float, ...]:
    """Return the P90 wait of two tenants that together need half of the workers, while a third sends 300 requests.

    They arrive within a second, after a minute of silence; the workers need half a minute for them. The waits are of
    the requests that arrive within these 30 s.
    """
    random, at_s = Random(3), 60.0
    sent: list[Sent] = []
    for tenant in ("b", "c"):
        sent += _requests(job, random, tenant, 0.25 * WORKERS, 1.0, 0.0, 120.0)
    sent += _requests(job, random, WIDE, 300.0, 1.0, at_s, at_s + 1.0)
    played = _play_front(job, sent, {}, workers=WORKERS, until_s=240.0)
    waits = [wait for tenant in ("b", "c") for wait in played.waits_s(tenant, at_s, at_s + 30.0)]
    return (percentile(waits, 0.9) or 0.0,)


def idle_credit(job: Job) -> tuple[float, ...]:
    """Return what a tenant that has used the workers for two minutes gets of its half, once another one floods too.

    Measured over the minute after the other's first request. The tenant that was idle is `wide`.
    """
    random, joins_s = Random(4), 120.0
    ends_s = joins_s + 60.0
    sent = list(_requests(job, random, "b", 1.5 * WORKERS, 1.0, 0.0, ends_s))
    sent += _requests(job, random, WIDE, 2.0 * WORKERS, 1.0, joins_s, ends_s)
    played = _play_front(job, sent, {}, workers=WORKERS, until_s=ends_s)
    mine, other = (played.service(tenant, joins_s, ends_s) for tenant in ("b", WIDE))
    return (2.0 * mine / (mine + other),)


SCENES: Mapping[str, Callable[[Job], tuple[float, ...]]] = {
    "four to one": four_to_one,
    "shares": shares,
    "burst": burst_wait,
    "idle credit": idle_credit,
}
