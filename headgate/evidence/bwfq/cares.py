"""Why the gate's order has two clocks: every order on the same runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from headgate.evidence.bwfq.floods import Measured, measure
from headgate.evidence.document.sections import Cell, Check, Section, Setting, Table, experiment

ORDERS = ("fcfs", "ratio", "ratio+wake", "virtual-clock", "virtual-clock+cap", "sfq", "bwfq")
SEEDS = 3
TABLE = ("weights", "idle_hours", "owed_more", "within_bucket", "overbooked")
CARES = ("slept", "history", "stale", "stranded", "costs")
WHAT = {
    "weights": "weights 1 : 3, costs 1 and 0.2 s: service a second",
    "idle_hours": "a used idle hours, then b joins: first minute",
    "owed_more": "a is owed 6 of 10 and asks 5: median wait",
    "within_bucket": "a's bursts within its bucket: P99 wait",
    "overbooked": "overbooked 10 + 10 at 10, bursts 10 s and 1 s",
    "slept": "1. b slept for an hour, then floods: first minute",
    "history": "2. a used for an hour what b left, then b floods: tenth minute",
    "stale": "3. 400 at once beside a steady b: b's P99 wait",
    "stranded": "4. alone, without credit: requests that start",
    "costs": "5. costs of 1 and 0.01 s, all else equal: service a second",
}
SHOULD = {
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
"""Service a second of ten. After an hour a burst of ten, or what still ran, is a sixth of a unit a second."""

Found = dict[tuple[str, str], Measured]


@experiment("bwfq-cares")
def cares(setting: Setting) -> Section:
    found = _measured(setting, (*TABLE, *CARES))
    return Section(
        "Five things that the published order needs care in, and two clocks",
        "BWFQ, section 3.1 and 3.2, equations 1 to 3",
        text=(
            f"Ten slots, Poisson arrivals, everyone but the measured tenant floods; means over {SEEDS} seeds. `ratio` "
            "is the published order, `ratio+wake` the same with a queue that an arrival wakes; `virtual-clock` and "
            "`sfq` (start-time fair queueing) are each of the two clocks alone; `virtual-clock+cap` forgives debts "
            "beyond five seconds. `ratio` knows rates in requests a second and no weights.",
        ),
        tables=[
            _table("What decided the order", TABLE, found),
            _table("The five cares", CARES, found),
        ],
        checks=[*(_shared(name, found) for name in SHARES), *_waits(found), *_failures(found)],
    )


def _measured(setting: Setting, names: Sequence[str]) -> Found:
    jobs = [(name, order, seed) for name in names for order in ORDERS for seed in range(1, SEEDS + 1)]
    results = iter(setting.map(measure, jobs))
    found = {}
    for name in names:
        for order in ORDERS:
            of_seeds = [next(results) for _ in range(SEEDS)]
            found[name, order] = tuple(fmean(values) for values in zip(*of_seeds, strict=True))
    return found


def _table(title: str, names: Sequence[str], found: Found) -> Table:
    rows: list[tuple[Cell, ...]] = [("should be", *(SHOULD[name] for name in names))]
    rows += [(order, *(_said(name, found[name, order]) for name in names)) for order in ORDERS]
    return Table(title, ("order", *(WHAT[name] for name in names)), rows)


def _said(name: str, measured: Measured) -> str:
    if len(measured) == 2:
        return f"{measured[0]:.2f} : {measured[1]:.2f}"
    return f"{measured[0]:.0%}" if name == "stranded" else f"{measured[0]:.2f} s"


def _shared(name: str, found: Found) -> Check:
    measured = found[name, "bwfq"]
    near = all(abs(got - due) <= MARGIN for got, due in zip(measured, SHARES[name], strict=True))
    return Check(f"bwfq: {WHAT[name]}: {SHOULD[name]}", near, _said(name, measured))


def _waits(found: Found) -> list[Check]:
    owed, bursts, stale = (found[name, "bwfq"][0] for name in ("owed_more", "within_bucket", "stale"))
    return [
        Check(f"bwfq: {WHAT['owed_more']}: below 1 s", owed < 1.0, f"{owed:.2f} s"),
        Check(f"bwfq: {WHAT['within_bucket']}: below 4 s", bursts < 4.0, f"{bursts:.2f} s"),
        Check(f"bwfq: {WHAT['stale']}: below 2 s", stale < 2.0, f"{stale:.2f} s"),
        Check(f"bwfq: {WHAT['stranded']}: all", found["stranded", "bwfq"][0] == 1.0, "100 %"),
    ]


def _failures(found: Found) -> list[Check]:
    """That each care is one: the order without it fails the run that shows it."""
    idle, slept, history = (found[name, "ratio+wake"] for name in ("idle_hours", "slept", "history"))
    owed, stale = found["owed_more", "sfq"][0], found["stale", "ratio+wake"][0]
    promised = found["overbooked", "virtual-clock"]
    return [
        Check("ratio starves who used idle hours", idle[0] < 1.0, _said("idle_hours", idle)),
        Check("ratio: credits of a sleeper starve the others", slept[0] < 2.0, _said("slept", slept)),
        Check("ratio: an hour's history outweighs ten minutes", history[0] < 2.0, _said("history", history)),
        Check("ratio: a flood at one priority stands before a steady tenant", stale > 10.0, f"{stale:.1f} s"),
        Check(
            "ratio strands requests at an idle fleet",
            found["stranded", "ratio"][0] < 0.9,
            _said("stranded", found["stranded", "ratio"]),
        ),
        Check(
            "ratio gives the dear requests nearly everything",
            found["costs", "ratio+wake"][0] > 9.0,
            _said("costs", found["costs", "ratio+wake"]),
        ),
        Check("sfq alone keeps no guarantee", owed > 10.0, f"{owed:.0f} s"),
        Check(
            "virtual clock alone lets the larger burst have it all where both are overbooked",
            promised[0] > 9.0,
            _said("overbooked", promised),
        ),
    ]
