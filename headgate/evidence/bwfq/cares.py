"""Why the gate's order has two clocks: every order on the same runs.

These runs decided the gate's order: ten slots, and a few tenants that flood. Each run plays under any order. A service
unit is a slot-second. Arrivals are Poisson, drawn from the seed. Every tenant except the measured one floods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from statistics import fmean

from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.shard.alone import CostGate
from headgate.evidence.bwfq.workload import GATE_ORDERS
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.simulator.gates.cluster import ClusterRequest, ClusterRun, run_cluster

_SLOTS = 10
_FLOOD_PER_S = 20.0
_LEAD_MAX = 60.0
HALF_HOUR_S = 1800.0

_Measured = tuple[float, ...]
"""Service per second of tenants a and b; or one wait in seconds; or one fraction of all requests."""


def _arrivals(
    random: Random, tenant: str, per_s: float, end_s: float, *, start_s: float = 0.0, cost_s: float = 1.0
) -> Iterator[ClusterRequest]:
    at_s = start_s + random.expovariate(per_s)
    while at_s < end_s:
        yield ClusterRequest(at_s, tenant, cost_s)
        at_s += random.expovariate(per_s)


def _play(
    order: str,
    sources: Iterable[Iterable[ClusterRequest]],
    until_s: float,
    **share: Share,
) -> ClusterRun:
    requests = sorted((request for source in sources for request in source), key=lambda request: request.arrival_s)
    gate = CostGate(order, slots=_SLOTS, lead_max=_LEAD_MAX)
    return run_cluster(gate, requests, share=share, capacity_per_s=float(_SLOTS), until_s=until_s)


def _two_shares(run: ClusterRun, from_s: float, to_s: float) -> _Measured:
    shares = run.shares(from_s, to_s)
    return shares.get("a", 0.0), shares.get("b", 0.0)


def _wait_s(run: ClusterRun, tenant: str, fraction: float, from_s: float) -> _Measured:
    """Return a percentile by nearest rank. A request that has not started counts with its wait until the end."""
    waits = [
        min(start, run.until_s) - request.arrival_s
        for request, start in zip(run.requests, run.starts_s, strict=True)
        if request.tenant == tenant and request.arrival_s >= from_s
    ]
    return (percentile(waits, fraction) or 0.0,)


# ── What decided the order ───────────────────────────────────────────────────────────────────────────────────────────


def weights(order: str, random: Random) -> _Measured:
    """Weights 1 : 3, costs 1 and 0.2 s, the same small guarantee for both."""
    sources = (
        _arrivals(random, "a", _FLOOD_PER_S, 200.0),
        _arrivals(random, "b", 5 * _FLOOD_PER_S, 200.0, cost_s=0.2),
    )
    return _two_shares(_play(order, sources, 200.0, a=Share(1.0, 1.0, 10.0), b=Share(3.0, 1.0, 10.0)), 40.0, 200.0)


def idle_long(order: str, random: Random) -> _Measured:
    """a uses idle slots for half an hour, then b joins: the first minute of both."""
    sources = (
        _arrivals(random, "a", 0.99 * _SLOTS, HALF_HOUR_S),
        _arrivals(random, "a", _FLOOD_PER_S, HALF_HOUR_S + 60.0, start_s=HALF_HOUR_S),
        _arrivals(random, "b", _FLOOD_PER_S, HALF_HOUR_S + 60.0, start_s=HALF_HOUR_S),
    )
    run = _play(order, sources, HALF_HOUR_S + 60.0, a=Share(1.0, 1.0, 10.0), b=Share(1.0, 1.0, 10.0))
    return _two_shares(run, HALF_HOUR_S, HALF_HOUR_S + 60.0)


def owed_more(order: str, random: Random) -> _Measured:
    """a has a guarantee of 6 of 10 and needs 5: its median wait."""
    sources = _arrivals(random, "a", 5.0, 600.0), _arrivals(random, "b", _FLOOD_PER_S, 600.0)
    return _wait_s(_play(order, sources, 600.0, a=Share(1.0, 6.0, 12.0), b=Share(1.0, 3.0, 12.0)), "a", 0.50, 60.0)


def owed_flood(order: str, random: Random) -> _Measured:
    """Weights 1 : 3, a has a guarantee of 6 of 10, and both flood: a is owed 6, and b the rest. Most calls of a begin
    to wait while its bucket is empty, so each has to go first as soon as the bucket has something for it."""
    sources = _arrivals(random, "a", _FLOOD_PER_S, 200.0), _arrivals(random, "b", _FLOOD_PER_S, 200.0)
    return _two_shares(_play(order, sources, 200.0, a=Share(1.0, 6.0, 12.0), b=Share(3.0, 1.0, 2.0)), 40.0, 200.0)


def within_bucket(order: str, random: Random) -> _Measured:
    """a sends bursts of 20, with time between them to fill its bucket of 20: P99 wait."""
    bursts = [
        ClusterRequest(at_s, "a", 1.0)
        for at_s in (60.0 + number * 20.0 + random.uniform(0, 10) for number in range(40))
        for _ in range(20)
    ]
    sources = (bursts, _arrivals(random, "b", _FLOOD_PER_S, 900.0))
    return _wait_s(_play(order, sources, 900.0, a=Share(1.0, 3.0, 20.0), b=Share(1.0, 3.0, 12.0)), "a", 0.99, 60.0)


def overbooked(order: str, random: Random) -> _Measured:
    """Both have a guarantee of all ten slots, with bursts of 10 s and 1 s."""
    sources = _arrivals(random, "a", _FLOOD_PER_S, 150.0), _arrivals(random, "b", _FLOOD_PER_S, 150.0)
    return _two_shares(_play(order, sources, 150.0, a=Share(1.0, 10.0, 100.0), b=Share(1.0, 10.0, 10.0)), 30.0, 150.0)


# ── The five weaknesses of the published order, where the runs above do not show them ────────────────────────────────


def slept(order: str, random: Random) -> _Measured:
    """1: b sends one request, earns credit for half an hour, then floods beside a: the first minute."""
    sources = (
        [ClusterRequest(1.0, "b", 1.0)],
        _arrivals(random, "a", 5.0, HALF_HOUR_S),
        _arrivals(random, "a", _FLOOD_PER_S, HALF_HOUR_S + 60.0, start_s=HALF_HOUR_S),
        _arrivals(random, "b", _FLOOD_PER_S, HALF_HOUR_S + 60.0, start_s=HALF_HOUR_S),
    )
    run = _play(order, sources, HALF_HOUR_S + 60.0, a=Share(1.0, 4.0, 10.0), b=Share(1.0, 4.0, 10.0))
    return _two_shares(run, HALF_HOUR_S, HALF_HOUR_S + 60.0)


def history(order: str, random: Random) -> _Measured:
    """2: for half an hour a uses what b leaves, then both flood: the tenth minute of that."""
    end_s = HALF_HOUR_S + 600.0
    sources = (
        _arrivals(random, "a", 8.5, HALF_HOUR_S),
        _arrivals(random, "a", _FLOOD_PER_S, end_s, start_s=HALF_HOUR_S),
        _arrivals(random, "b", 1.0, HALF_HOUR_S),
        _arrivals(random, "b", _FLOOD_PER_S, end_s, start_s=HALF_HOUR_S),
    )
    run = _play(order, sources, end_s, a=Share(1.0, 4.0, 10.0), b=Share(1.0, 4.0, 10.0))
    return _two_shares(run, end_s - 60.0, end_s)


def stale(order: str, random: Random) -> _Measured:
    """3: a sends one request, later 400 at once; b sends steadily at half of its guarantee: P99 wait of b."""
    flood = [ClusterRequest(0.0, "a", 1.0), *(ClusterRequest(60.0, "a", 1.0) for _ in range(400))]
    steady = list(_arrivals(random, "b", 2.0, 160.0))
    return _wait_s(
        _play(order, (flood, steady), 160.0, a=Share(1.0, 4.0, 4.0), b=Share(1.0, 4.0, 4.0)), "b", 0.99, 60.0
    )


def stranded(order: str, random: Random) -> _Measured:
    """4: a is alone, needs half of the slots and has a tenth of that guaranteed: the fraction that starts."""
    requests = list(_arrivals(random, "a", 5.0, 300.0))
    run = _play(order, (requests,), 310.0, a=Share(1.0, 0.5, 1.0))
    return (run.dispatched / len(requests),)


def costs(order: str, random: Random) -> _Measured:
    """5: equal weights and rates, but a request of a costs a hundred times a request of b."""
    sources = (
        _arrivals(random, "a", _FLOOD_PER_S, 30.0),
        _arrivals(random, "b", 60 * _FLOOD_PER_S, 30.0, cost_s=0.01),
    )
    return _two_shares(_play(order, sources, 30.0, a=Share(1.0, 1.0, 1.0), b=Share(1.0, 1.0, 1.0)), 10.0, 30.0)


_Run = Callable[[str, Random], _Measured]
RUNS: dict[str, _Run] = {
    run.__name__: run
    for run in (
        *(weights, idle_long, owed_more, owed_flood, within_bucket, overbooked),
        *(slept, history, stale, stranded, costs),
    )
}


def measure(job: tuple[str, str, int]) -> _Measured:
    """Play one run. A job for Setting.map: name of the run, order, seed."""
    name, order, seed = job
    return RUNS[name](order, Random(f"{seed} {name}"))


_SEEDS = 2
_COMPARED: Mapping[str, Sequence[str]] = dict.fromkeys(RUNS, GATE_ORDERS)
"""The orders that play each run."""
_DECIDED = ("weights", "idle_long", "owed_more", "owed_flood", "within_bucket", "overbooked")
_WEAKNESSES = ("slept", "history", "stale", "stranded", "costs")
_WHAT = {
    "weights": "weights 1 : 3, costs 1 and 0.2 s: service per second",
    "idle_long": "a uses idle slots for half an hour, then b joins: first minute",
    "owed_more": "a has a guarantee of 6 of 10 and needs 5: median wait",
    "owed_flood": "weights 1 : 3, a has a guarantee of 6 of 10, both flood: service per second",
    "within_bucket": "bursts of a that fit its bucket: P99 wait",
    "overbooked": "overbooked 10 + 10 at 10, bursts 10 s and 1 s: service per second",
    "slept": "1. b is idle for half an hour, then floods: first minute",
    "history": "2. a uses for half an hour what b leaves, then b floods: tenth minute",
    "stale": "3. a sends 400 at once beside a steady b: P99 wait of b",
    "stranded": "4. a is alone and has no credit: requests that start",
    "costs": "5. costs of 1 and 0.01 s, all else equal: service per second",
}
_TARGETS = {
    "weights": "2.5 : 7.5",
    "idle_long": "5 : 5",
    "owed_more": "below 1 s",
    "owed_flood": "6 : 4",
    "within_bucket": "short",
    "overbooked": "5 : 5",
    "slept": "5 : 5",
    "history": "5 : 5",
    "stale": "short",
    "stranded": "100 %",
    "costs": "5 : 5",
}
_SHARES = {
    "weights": (2.5, 7.5),
    "idle_long": (5.0, 5.0),
    "owed_flood": (6.0, 4.0),
    "overbooked": (5.0, 5.0),
    "slept": (5.0, 5.0),
    "history": (5.0, 5.0),
    "costs": (5.0, 5.0),
}
_MARGIN = 0.5
"""The allowed distance from a target, in units of service per second; the slots serve ten. In the first minute after
half an hour, a burst of ten or the requests that still run are a sixth of a unit per second."""

_Found = dict[tuple[str, str], _Measured]


@experiment(
    "bwfq-cares",
    "Five weaknesses of the published order, and the two clocks",
    "BWFQ, section 3.1 and 3.2, equations 1 to 3",
)
def cares(setting: Setting) -> Section:
    found = _measure_all(setting, (*_DECIDED, *_WEAKNESSES))
    return Section(
        text=(
            "Ten slots, Poisson arrivals; a unit of service is a second of one slot. Every tenant except the measured "
            f"one floods: it sends more than the slots can serve. Means over {_SEEDS} seeds. `ratio` is the published "
            "order; `ratio+wake` is the same order with a queue that each arrival wakes. `virtual-clock` and `sfq` "
            "(start-time fair queueing) are the two clocks of `bwfq`, each alone; `virtual-clock+cap` also forgives "
            "debt beyond five seconds. `ratio` has rates in requests per second and no weights.",
        ),
        tables=[
            _table("What decided the order", _DECIDED, found),
            _table("The five weaknesses", _WEAKNESSES, found),
        ],
        checks=[*(_share_check(name, found) for name in _SHARES), *_waits(found), *_failures(found)],
    )


def _measure_all(setting: Setting, names: Sequence[str]) -> _Found:
    jobs = [(name, order, seed) for name in names for order in _COMPARED[name] for seed in range(1, _SEEDS + 1)]
    results = iter(setting.map(measure, jobs))
    found = {}
    for name in names:
        for order in _COMPARED[name]:
            of_seeds = [next(results) for _ in range(_SEEDS)]
            found[name, order] = tuple(fmean(values) for values in zip(*of_seeds, strict=True))
    return found


def _table(title: str, names: Sequence[str], found: _Found) -> Table:
    rows: list[tuple[Cell, ...]] = [("target", *(_TARGETS[name] for name in names))]
    rows += [(order, *(_cell(name, found.get((name, order))) for name in names)) for order in GATE_ORDERS]
    return Table(title, ("order", *(_WHAT[name] for name in names)), rows)


def _cell(name: str, measured: _Measured | None) -> str:
    if measured is None:
        return "–"
    if len(measured) == 2:
        return f"{measured[0]:.2f} : {measured[1]:.2f}"
    return f"{measured[0]:.0%}" if name == "stranded" else f"{measured[0]:.2f} s"


def _share_check(name: str, found: _Found) -> Check:
    measured = found[name, "bwfq"]
    near = all(abs(got - due) <= _MARGIN for got, due in zip(measured, _SHARES[name], strict=True))
    return Check(f"bwfq: {_WHAT[name]}: {_TARGETS[name]}", near, _cell(name, measured))


def _waits(found: _Found) -> list[Check]:
    started = found["stranded", "bwfq"]
    below_s = {"owed_more": 1, "within_bucket": 4, "stale": 2}
    return [
        *(_below(found, f"bwfq: {_WHAT[name]}: below {most} s", name, most, "bwfq") for name, most in below_s.items()),
        Check(f"bwfq: {_WHAT['stranded']}: all", started[0] == 1.0, _cell("stranded", started)),
    ]


def _failures(found: _Found) -> list[Check]:
    """Check that each weakness is real: an order that has it fails the run for it."""
    owed, stale = found["owed_more", "sfq"][0], found["stale", "ratio+wake"][0]
    return [
        _below(found, "ratio+wake: a tenant that used idle slots for half an hour starves", "idle_long", 1.0),
        _below(found, "ratio+wake: a tenant that saved credit while idle starves the others", "slept", 2.0),
        _below(found, "ratio+wake: half an hour of history outweighs ten minutes", "history", 2.0),
        Check("ratio+wake: a flood with one priority goes ahead of a steady tenant", stale > 10.0, f"{stale:.1f} s"),
        _below(found, "ratio: requests are stranded while workers are idle", "stranded", 0.9, "ratio"),
        Check(
            "ratio+wake: expensive requests get nearly all service",
            found["costs", "ratio+wake"][0] > 9.0,
            _cell("costs", found["costs", "ratio+wake"]),
        ),
        Check("sfq alone keeps no guarantee", owed > 10.0, f"{owed:.0f} s"),
        Check(
            "virtual clock alone gives all service to the larger burst when both are overbooked",
            found["overbooked", "virtual-clock"][0] > 9.0,
            _cell("overbooked", found["overbooked", "virtual-clock"]),
        ),
    ]


def _below(found: _Found, claim: str, name: str, below: float, order: str = "ratio+wake") -> Check:
    measured = found[name, order]
    return Check(claim, measured[0] < below, _cell(name, measured))
