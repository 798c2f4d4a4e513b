"""The first page of the evidence: for each source what agrees and how well, and what does not and why.

It is made of the claims of all experiments, so it cannot say more than they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from headgate.evidence.document import Cell, Check, Markdown, Section, Table, render_table

SOURCES = {
    "VTC": "VTC (OSDI 2024)",
    "BWFQ": "BWFQ (2025)",
    "FairServe": "FairServe (2024)",
    "QLM": "QLM (SoCC 2024)",
    "beyond QLM": "planning beyond QLM's evaluation",
    "beside other gateways": "the rules of other gateways",
}
"""Names of the sources, by how the `source` of an experiment begins."""
_LARGEST = 12

_Claims = list[tuple[str, Check]]
"""Each with the name of its experiment."""


def render_overview(sections: Mapping[str, Section]) -> str:
    """Return the first page as Markdown."""
    claims = [(name, check) for name, section in sections.items() for check in section.checks]
    return "\n".join(_blocks(sections, claims))


def _blocks(sections: Mapping[str, Section], claims: _Claims) -> Iterator[str]:
    yield "## In short\n"
    yield (
        "*Near* counts the claims that a figure of ours is near a measured or printed one; the deviations are of "
        "these. [mutants.md](evidence/mutants.md) says which broken policies each claim notices, "
        "[corrections.md](evidence/corrections.md) what this project stated and withdrew, and [the end](#coverage) of "
        "this page what of each source is reproduced, or why not.\n"
    )
    yield render_table(_sources(sections))
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


def _sources(sections: Mapping[str, Section]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for start, name in SOURCES.items():
        checks = [
            check for section in sections.values() if section.source.startswith(start) for check in section.checks
        ]
        if checks:
            rows.append((name, *_counts(checks)))
    return Table("", ("source", "✔", "✘", "–", "near", "median deviation", "largest"), rows)


def _counts(checks: Sequence[Check]) -> tuple[Cell, ...]:
    held = Counter(check.held for check in checks)
    found = [abs(value) for value in map(_deviation, checks) if value is not None]
    middle, largest = (f"{median(found):.1%}", f"{max(found):.1%}") if found else (None, None)
    return held[True], held[False], held[None], len(found), middle, largest


def _failures(failed: _Claims) -> list[tuple[Cell, ...]]:
    """Return a row for each experiment and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, check in failed:
        grouped.setdefault((name, check.reason), []).append(f"{check.claim} ({check.found})")
    return [(_link(name), "; ".join(claims), reason or "not known") for (name, reason), claims in grouped.items()]


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
