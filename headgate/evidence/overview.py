"""The first page of the evidence: for each source what agrees and how well, and what does not and why.

It is made of the claims of all experiments, so it cannot say more than they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from headgate.evidence.coverage import ITEMS
from headgate.evidence.document import PLOTS_FOLDER, Cell, Check, Markdown, Section, Table, render_table

SOURCES = {
    "VTC": "VTC (OSDI 2024)",
    "BWFQ": "BWFQ (2025)",
    "FairServe": "FairServe (2024)",
    "QLM": "QLM (SoCC 2024)",
    "beyond QLM": "planning beyond QLM's evaluation",
    "beside other gateways": "the rules of other gateways",
    "priority": "Priority and preemption (an article)",
}
"""Names of the sources, by how the `source` of an experiment begins."""
_MEASURED = "vtc-measured"
"""The experiment with the figure of this page, and the figure's name."""
_LARGEST = 6
_NAMED = 2
"""So many claims that fail for one reason are named; the experiment has all."""

_Claims = list[tuple[str, Check]]
"""Each with the name of its experiment."""


def render_overview(sections: Mapping[str, Section]) -> str:
    """Return the first page as Markdown."""
    claims = [(name, check) for name, section in sections.items() for check in section.checks]
    return "\n".join(_blocks(sections, claims))


def _blocks(sections: Mapping[str, Section], claims: _Claims) -> Iterator[str]:
    yield "## In short\n"
    yield _verdict([check for _, check in claims])
    yield (
        "*Near* counts the claims that figures of ours are near measured or printed ones, with the median of their "
        "deviations; a claim of several figures counts with the one that is furthest off. "
        "[mutants.md](evidence/mutants.md) says which broken policies each claim notices, "
        "[corrections.md](evidence/corrections.md) what this project stated and withdrew, and [the end](#coverage) of "
        "this page where each table, figure and theorem is, or why it is not.\n"
    )
    yield render_table(_sources(sections))
    if _MEASURED in sections and sections[_MEASURED].checks:
        yield f"**Measured against simulated, each tenant of each published run** ({_link(_MEASURED)})\n"
        yield f"![Mean time to first token, measured against simulated]({PLOTS_FOLDER}/{_MEASURED}.svg)\n"
    failed = [(name, check) for name, check in claims if check.held is False]
    if failed:
        yield "**What does not hold, and why**\n"
        yield render_table(Table("", ("experiment", "claims, and what was found", "why"), _failures(failed)))
    near = sorted(
        ((name, each) for name, each in claims if _deviation(each) is not None), key=lambda pair: -_used(pair[1])
    )
    if near:
        yield "**The largest deviations, by the part of their tolerance that they use**\n"
        yield render_table(
            Table("", ("experiment", "claim", "found", "of the tolerance"), [_row(*pair) for pair in near[:_LARGEST]])
        )


def _verdict(checks: Sequence[Check]) -> str:
    """Return how many claims hold, in a sentence: the first of the page."""
    held = Counter(check.held for check in checks)
    unclear = f" {held[None]:,} are reported without a verdict." if held[None] else ""
    verdict = f"**Of {len(checks):,} claims {held[True]:,} hold and {held[False]:,} do not.**"
    return f"{verdict} The reasons are below.{unclear}\n"


def _sources(sections: Mapping[str, Section]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for start, name in SOURCES.items():
        claims = [
            (experiment, check)
            for experiment, section in sections.items()
            if section.source.startswith(start)
            for check in section.checks
        ]
        if claims:
            rows.append((name, *_counts(claims), _missing(name)))
    columns = ("source", "✔", "✘", "–", "near", "the largest deviation", "not compared: the datum is missing")
    return Table("", columns, rows)


def _counts(claims: _Claims) -> tuple[Cell, ...]:
    held = Counter(check.held for _, check in claims)
    found = [(abs(value), name) for name, check in claims if (value := _deviation(check)) is not None]
    near, largest = None, None
    if found:
        most, where = max(found)
        near, largest = (
            f"{len(found)}, {median(value for value, _ in found):.1%}",
            Markdown(f"{most:.1%}, {_link(where)}"),
        )
    return held[True], held[False], held[None], near, largest


def _missing(source: str) -> str | None:
    """Return the items of the source that lack a datum of the authors."""
    return ", ".join(item.name for item in ITEMS.get(source, ()) if item.note.startswith("missing")) or None


def _failures(failed: _Claims) -> list[tuple[Cell, ...]]:
    """Return a row for each experiment and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, check in failed:
        grouped.setdefault((name, check.reason), []).append(f"{check.claim} ({check.found})")
    return [(_link(name), _name_some(claims), reason or "not known") for (name, reason), claims in grouped.items()]


def _name_some(claims: Sequence[str]) -> str:
    more = len(claims) - _NAMED
    return "; ".join([*claims[:_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _deviation(check: Check) -> float | None:
    """Return ours over theirs less 1; None if the claim compares no two figures."""
    return check.ours / check.theirs - 1 if check.ours is not None and check.theirs else None


def _used(check: Check) -> float:
    """Return the part of the tolerance that the deviation uses."""
    return abs(_deviation(check) or 0.0) / (check.tolerance or 1.0)


def _row(name: str, check: Check) -> tuple[Cell, ...]:
    return _link(name), check.claim, check.found, f"{_used(check):.0%}"


def _link(name: str) -> Markdown:
    return Markdown(f"[{name}](#{name})")
