"""The list of what the sources have is whole: it is compared with their texts."""

from __future__ import annotations

import re

import pytest

from headgate.evidence.coverage import ITEMS
from tests.support.simulator.fleets import TRACES

PAPERS = TRACES.parent / "papers"
KINDS = "Figure|Table|Theorem|Lemma|Definition|Remark|Algorithm|Insight|Takeaway"
NUMBER = r"[A-Z]?\.?\d+(?:\.\d+)?"
NAMED = re.compile(rf"\b({KINDS}|Fig\.)\s+#?({NUMBER})\b")
TAGGED = re.compile(r"\\quad\s*\((\d+)\)|\\tag\{(\d+)\}|^ \((\d+)\)$", re.MULTILINE)
TEXTS = {
    "VTC (OSDI 2024)": "vtc.txt",
    "QLM (SoCC 2024)": "qlm.txt",
    "FairServe (2024)": "fairserve.txt",
    "BWFQ (2025)": "bwfq.txt",
}
MISNAMED = {("Theorem", "4.7"), ("Theorem", "A.1")}
"""The VTC paper calls its Remark 4.7 and its Lemma A.1 so in one place each."""
_ENTRY = re.compile(rf"(?:({KINDS}|Equation)s?\s+)?({NUMBER})[a-z]?(?: to ({NUMBER}))?", re.IGNORECASE)


def list_covered(source: str) -> set[tuple[str, str]]:
    """Return the kind and number of each item of a source. A range stands for all of its numbers."""
    found = set()
    for item in ITEMS[source]:
        kind = ""
        for part in re.split(r", | and |: ", item.name):
            entry = _ENTRY.match(part)
            if entry is None:
                continue
            kind = entry[1].capitalize() if entry[1] else kind
            chapter, _, first = entry[2].rpartition(".")
            last = entry[3].rpartition(".")[2] if entry[3] else first
            found |= {
                (kind, f"{chapter}.{number}" if chapter else str(number)) for number in range(int(first), int(last) + 1)
            }
    return found


def list_named(text: str) -> set[tuple[str, str]]:
    """Return the kind and number of each figure, table, theorem and equation that a paper names."""
    found = {("Figure" if kind == "Fig." else kind, number) for kind, number in NAMED.findall(text)}
    return found | {("Equation", next(filter(None, numbers))) for numbers in TAGGED.findall(text)}


def test_a_range_and_a_list_stand_for_each_of_their_items() -> None:
    covered = list_covered("VTC (OSDI 2024)")
    assert {("Remark", "4.6"), ("Theorem", "4.11"), ("Lemma", "A.2"), ("Table", "4"), ("Figure", "20")} <= covered
    assert ("Table", "7") not in covered


@pytest.mark.parametrize("source", TEXTS)
def test_every_item_that_a_paper_names_has_a_line(source: str) -> None:
    if not PAPERS.is_dir():
        pytest.skip(f"there are no texts of the papers in {PAPERS}")
    named = list_named((PAPERS / TEXTS[source]).read_text("utf-8")) - MISNAMED
    assert len(named) > 8
    assert sorted(named - list_covered(source)) == []


def test_every_part_of_the_article_has_a_line() -> None:
    """It numbers no table and no figure. A line names its section, or one above it."""
    if not PAPERS.is_dir():
        pytest.skip(f"there are no texts of the papers in {PAPERS}")
    text = (PAPERS / "priority-preemption.txt").read_text("utf-8")
    sections = re.findall(r"^(\d\.\d) [A-Z]", text, re.MULTILINE)
    lines = re.findall(r"section (\d(?:\.\d)?)", " ".join(item.name for item in ITEMS[_ARTICLE]))
    assert len(sections) > 12
    assert [each for each in sections if each not in lines and each[0] not in lines] == _WITHOUT_FIGURES


_ARTICLE = "Priority and preemption (an article)"
_WITHOUT_FIGURES = ["1.1"]
"""When preemption is necessary: text alone."""
