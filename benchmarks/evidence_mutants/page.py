"""docs/evidence/mutants.md: for each claim which mutants turn it, and for each mutant how many claims it turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set

from benchmarks.evidence_mutants.mutants import MUTANTS
from benchmarks.evidence_mutants.seeds import SEEDS, SEEDS_OF
from headgate.evidence.document import Cell, Markdown, Table, render_table
from headgate.evidence.registry import EXPERIMENTS

Verdicts = dict[str, bool | None]
"""Whether each claim holds; None without a verdict."""
Held = Mapping[str, list[str]]
"""The claims of each experiment that hold in docs/evidence.md."""
IsStale = Callable[[str, str], bool]
"""Whether the code of a row, an experiment under a mutant, has changed since it was played."""
_WITHOUT_CLAIMS = ("qlm",)
_STALE = " †"
_LIMIT = "a limit: "
"""So begins a claim that states what no order can do, or where ours ends. A policy that turns it would be better."""
Found = Mapping[str, Mapping[str, Verdicts]]
"""Verdicts by experiment and mutant; the mutant "" is none."""

Stale = Set[tuple[str, str]]
"""The rows, by experiment and mutant, that are stale."""

_INTRODUCTION = """\
# Mutants: what the claims notice

`python -m benchmarks.evidence_mutants` runs the experiments of [evidence.md](../evidence.md) with policies that are
broken on purpose (benchmarks/evidence_mutants/mutants.py), and writes this page. A mutant *turns* a claim that holds
unbroken and fails under the mutant. Claims without a verdict, and those that do not hold unbroken in these runs, are
left out.

A mutant runs with the experiments that have what it breaks; that it is not in the list of an experiment says nothing
about what it would turn there. So that the whole is affordable, the runs are smaller than those of the page:
`vtc-measured` plays the runs of which every figure is within its tolerance, `vtc-theorems` 40 random workloads,
`bwfq-latency` two seeds of one load, `bwfq-cares` one seed, both with the orders of their claims alone, `bwfq-scale`
one seed and its sizes up to 100 workers and tenants.
"""


def render_page(found: Found, held: Held | None = None, is_stale: IsStale = lambda _experiment, _mutant: False) -> str:
    return "\n".join(_blocks(found, held or {}, is_stale))


def _blocks(found: Found, held: Held, is_stale: IsStale) -> Iterator[str]:
    yield _INTRODUCTION
    others = ", ".join(f"`{name}` {seeds}" for name, seeds in SEEDS_OF.items())
    yield f"An experiment that can play any number of seeds has {SEEDS} here; {others}.\n"
    stale = {(name, mutant) for name, rows in found.items() for mutant in rows if is_stale(name, mutant)}
    yield _staleness(sum(len(rows) for rows in found.values()), len(stale))
    turned = {mutant: _turned_by(found, mutant) for mutant in MUTANTS}
    yield "## Mutants\n"
    rows: list[tuple[Cell, ...]] = [
        (
            *(name, mutant.what),
            f"{len(turned[name])} of {of}" if (of := _concerned(found, name)) else "not run yet",
            sum(1 for experiment, _ in turned[name] if (experiment, name) not in stale),
        )
        for name, mutant in MUTANTS.items()
    ]
    columns = ("mutant", "what is broken", "claims that it turns", "with the code of this revision")
    yield render_table(Table("", columns, rows))
    yield "## Experiments\n"
    counts = {experiment: _count(found, experiment) for experiment in found if list_holding(found[experiment])}
    total, turned_total = (sum(count[at] for count in counts.values()) for at in range(2))
    limits = sum(1 for experiment, claim in _claims(found) if _is_unturned_limit(found, experiment, claim))
    yield f"{turned_total} of {total} claims are turned by at least one mutant. Of the others, {limits} state a limit."
    yield ""
    rows = [
        (
            _link(experiment),
            *count,
            ", ".join(_mark_if_stale(experiment, name, stale) for name in found[experiment] if name),
        )
        for experiment, count in counts.items()
    ]
    yield render_table(Table("", ("experiment", "claims", "turned", "mutants that ran"), rows))
    missing = [name for name in EXPERIMENTS if name not in found and name not in _WITHOUT_CLAIMS]
    if missing:
        yield f"Not run yet: {', '.join(missing)}.\n"
    if held:
        yield from _of_the_page(found, held, stale)
    yield "## Claims\n"
    for experiment in counts:
        rows = [
            (claim, _describe_turning(found, experiment, claim, stale)) for claim in list_holding(found[experiment])
        ]
        yield f"**{_link(experiment)}**\n"
        yield render_table(Table("", ("claim", "turned by"), rows))


def _staleness(plays: int, stale: int) -> str:
    if not stale:
        return f"All {plays} plays are of the code of this revision.\n"
    return (
        f"{plays - stale} of {plays} plays are of the code of this revision. The others are marked with{_STALE}: since "
        "they were played, their mutant or a file that their experiment runs through has changed, not counting "
        "docstrings and comments (mutants\\_code.json has digests).\n"
    )


def _of_the_page(found: Found, held: Held, stale: Stale) -> Iterator[str]:
    """Yield how many of the claims that hold in docs/evidence.md are turned, are not, and are not judged."""
    listed = [(name, claim) for name, claims in held.items() for claim in claims]
    judged = [(name, claim) for name, claim in listed if claim in list_holding(found.get(name, {}))]
    turning = {of: [(of[0], mutant) for mutant in _turning(found, *of)] for of in judged}
    turned = [rows for rows in turning.values() if rows]
    today = [rows for rows in turned if any(row not in stale for row in rows)]
    yield (
        f"{len(listed)} claims hold in evidence.md. {len(turned)} of them are turned by a mutant ({len(today)} by one "
        f"that was played with the code of this revision), {len(judged) - len(turned)} by none, and "
        f"{len(listed) - len(judged)} are not judged.\n"
    )
    outside = Counter(name for name, _ in listed)
    outside.subtract(name for name, _ in judged)
    if counted := [f"{name} {number}" for name, number in outside.items() if number]:
        yield (
            "Not judged are claims on runs that are left out here, and claims that fail unbroken in the smaller runs: "
            f"{', '.join(counted)}.\n"
        )


def _mark_if_stale(experiment: str, mutant: str, stale: Stale) -> str:
    return mutant + _STALE * ((experiment, mutant) in stale)


def _describe_turning(found: Found, experiment: str, claim: str, stale: Stale) -> str | None:
    limit = "none: it states a limit" if claim.startswith(_LIMIT) else None
    return (
        ", ".join(_mark_if_stale(experiment, mutant, stale) for mutant in _turning(found, experiment, claim)) or limit
    )


def _is_unturned_limit(found: Found, experiment: str, claim: str) -> bool:
    return claim.startswith(_LIMIT) and not _turning(found, experiment, claim)


def _link(experiment: str) -> Markdown:
    return Markdown(f"[{experiment}](../evidence.md#{experiment})")


def _count(found: Found, experiment: str) -> tuple[int, int]:
    """Return the claims of an experiment, and those that a mutant turns."""
    claims = list_holding(found[experiment])
    return len(claims), sum(1 for claim in claims if _turning(found, experiment, claim))


def find_unnoticed(found: Found) -> list[str]:
    """Return the mutants that turn no claim."""
    return [mutant for mutant in MUTANTS if not _turned_by(found, mutant)]


def _claims(found: Found) -> Iterator[tuple[str, str]]:
    for experiment, by_mutant in found.items():
        yield from ((experiment, claim) for claim in list_holding(by_mutant))


def list_holding(by_mutant: Mapping[str, Verdicts]) -> list[str]:
    """Return the claims that hold unbroken, of an experiment that at least one mutant may change."""
    return [claim for claim, held in by_mutant.get("", {}).items() if held is True] if len(by_mutant) > 1 else []


def _turning(found: Found, experiment: str, claim: str) -> list[str]:
    """Return the mutants that turn a claim."""
    return [name for name, verdicts in found[experiment].items() if name and _fails(verdicts, claim)]


def _fails(verdicts: Verdicts, claim: str) -> bool:
    return verdicts.get(claim) is False


def _turned_by(found: Found, mutant: str) -> list[tuple[str, str]]:
    return [
        (experiment, claim)
        for experiment, claim in _claims(found)
        if mutant in found[experiment] and _fails(found[experiment][mutant], claim)
    ]


def _concerned(found: Found, mutant: str) -> int:
    return sum(1 for experiment, _ in _claims(found) if mutant in found[experiment])
