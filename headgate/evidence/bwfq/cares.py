"""Why the gate's order has two clocks: every order on the same runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from headgate.evidence.bwfq.floods import Measured, measure
from headgate.evidence.bwfq.played import GATE_ORDERS
from headgate.evidence.document.sections import Cell, Check, Section, Setting, Table, experiment

SEEDS = 3
DECIDED = ("weights", "idle_hours", "owed_more", "within_bucket", "overbooked")
WEAKNESSES = ("slept", "history", "stale", "stranded", "costs")
WHAT = {
    "weights": "weights 1 : 3, costs 1 and 0.2 s: service per second",
    "idle_hours": "a uses idle slots for an hour, then b joins: first minute",
    "owed_more": "a has a guarantee of 6 of 10 and needs 5: median wait",
    "within_bucket": "bursts of a that fit its bucket: P99 wait",
    "overbooked": "overbooked 10 + 10 at 10, bursts 10 s and 1 s: service per second",
    "slept": "1. b is idle for an hour, then floods: first minute",
    "history": "2. a uses for an hour what b leaves, then b floods: tenth minute",
    "stale": "3. a sends 400 at once beside a steady b: P99 wait of b",
    "stranded": "4. a is alone and has no credit: requests that start",
    "costs": "5. costs of 1 and 0.01 s, all else equal: service per second",
}
TARGETS = {
    "weights": "2.5 : 7.5",
    "idle_hours": "5 : 5",
    "owed_more": "below 1 s",
    "within_bucket": "short",
    "overbooked": "5 : 5",
    "slept": "5 : 5",
    "history": "5 : 5",
    "stale": "short",
    "stranded": "100 %",
    "costs": "5 : 5",
}
SHARES = {
    "weights": (2.5, 7.5),
    "idle_hours": (5.0, 5.0),
    "overbooked": (5.0, 5.0),
    "slept": (5.0, 5.0),
    "history": (5.0, 5.0),
    "costs": (5.0, 5.0),
}
MARGIN = 0.5
"""The allowed distance from a target, in units of service per second; the slots serve ten. In the first minute after
an hour, a burst of ten or the requests that still run are a sixth of a unit per second."""

Found = dict[tuple[str, str], Measured]


@experiment(
    "bwfq-cares",
    "Five weaknesses of the published order, and the two clocks",
    "BWFQ, section 3.1 and 3.2, equations 1 to 3",
)
def cares(setting: Setting) -> Section:
    found = _measure_all(setting, (*DECIDED, *WEAKNESSES))
    return Section(
        text=(
            "Ten slots, Poisson arrivals; a unit of service is a second of one slot. Every tenant except the measured "
            f"one floods: it sends more than the slots can serve. Means over {SEEDS} seeds. `ratio` is the published "
            "order; `ratio+wake` is the same order with a queue that each arrival wakes. `virtual-clock` and `sfq` "
            "(start-time fair queueing) are the two clocks of `bwfq`, each alone; `virtual-clock+cap` also forgives "
            "debt beyond five seconds. `ratio` has rates in requests per second and no weights.",
        ),
        tables=[
            _table("What decided the order", DECIDED, found),
            _table("The five weaknesses", WEAKNESSES, found),
        ],
        checks=[*(_share_check(name, found) for name in SHARES), *_waits(found), *_failures(found)],
    )


def _measure_all(setting: Setting, names: Sequence[str]) -> Found:
    jobs = [(name, order, seed) for name in names for order in GATE_ORDERS for seed in range(1, SEEDS + 1)]
    results = iter(setting.map(measure, jobs))
    found = {}
    for name in names:
        for order in GATE_ORDERS:
            of_seeds = [next(results) for _ in range(SEEDS)]
            found[name, order] = tuple(fmean(values) for values in zip(*of_seeds, strict=True))
    return found


def _table(title: str, names: Sequence[str], found: Found) -> Table:
    rows: list[tuple[Cell, ...]] = [("target", *(TARGETS[name] for name in names))]
    rows += [(order, *(_cell(name, found[name, order]) for name in names)) for order in GATE_ORDERS]
    return Table(title, ("order", *(WHAT[name] for name in names)), rows)


def _cell(name: str, measured: Measured) -> str:
    if len(measured) == 2:
        return f"{measured[0]:.2f} : {measured[1]:.2f}"
    return f"{measured[0]:.0%}" if name == "stranded" else f"{measured[0]:.2f} s"


def _share_check(name: str, found: Found) -> Check:
    measured = found[name, "bwfq"]
    near = all(abs(got - due) <= MARGIN for got, due in zip(measured, SHARES[name], strict=True))
    return Check(f"bwfq: {WHAT[name]}: {TARGETS[name]}", near, _cell(name, measured))


def _waits(found: Found) -> list[Check]:
    started = found["stranded", "bwfq"]
    below_s = {"owed_more": 1, "within_bucket": 4, "stale": 2}
    return [
        *(_below(found, f"bwfq: {WHAT[name]}: below {most} s", name, most, "bwfq") for name, most in below_s.items()),
        Check(f"bwfq: {WHAT['stranded']}: all", started[0] == 1.0, _cell("stranded", started)),
    ]


def _failures(found: Found) -> list[Check]:
    """Check that each weakness is real: an order that has it fails the run for it."""
    owed, stale = found["owed_more", "sfq"][0], found["stale", "ratio+wake"][0]
    return [
        _below(found, "ratio: a tenant that used idle slots for an hour starves", "idle_hours", 1.0),
        _below(found, "ratio: a tenant that saved credit while idle starves the others", "slept", 2.0),
        _below(found, "ratio: an hour of history outweighs ten minutes", "history", 2.0),
        Check("ratio: a flood with one priority goes ahead of a steady tenant", stale > 10.0, f"{stale:.1f} s"),
        _below(found, "ratio: requests are stranded while workers are idle", "stranded", 0.9, "ratio"),
        Check(
            "ratio: expensive requests get nearly all service",
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


def _below(found: Found, claim: str, name: str, below: float, order: str = "ratio+wake") -> Check:
    measured = found[name, order]
    return Check(claim, measured[0] < below, _cell(name, measured))
