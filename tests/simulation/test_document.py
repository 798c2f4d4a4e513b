"""The evidence document: what is written of a section, escaped, and the same bytes every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.evidence import document, pages
from headgate.evidence.coverage import ITEMS
from headgate.evidence.document import Check, Section, Table, experiment
from headgate.evidence.registry import EXPERIMENTS
from headgate.simulator.report.drawing import Plot, Series, svg

ROOT = Path(__file__).parents[2]
SECTION = Section(
    "A title with | and *stars*",
    "Paper, section 1",
    text=("A paragraph with `code`.",),
    tables=[Table("Numbers", ("name", "value"), [("a|b", 1234.5), ("<b>", None), ("c", 7)])],
    checks=[Check("it holds", True, "1 > 0"), Check("it does not", False, "0 > 1"), Check("unclear", None, "noise")],
    plots=[
        Plot("a-line", "A line", "x", "y", [Series("one", [0.0, 1.0, 2.0], [1.0, None, 3.0])]),
        Plot("some-bars", "Bars", "", "y", [Series("one", [0, 1], [1.0, 2.0])], kind="bars", ticks=("a", "b")),
        Plot("nothing", "Nothing", "x", "y", []),
    ],
)
SECTIONS = {"first": SECTION, "second": Section("Left out", "Paper", skipped="there are no traces")}


def test_the_document_says_all_of_it() -> None:
    text = pages.render_document(SECTIONS)
    assert "## In short\n\n**Of 3 claims 1 hold and 1 do not.** The reasons are below. 1 are reported without" in text
    assert "| [first](#first) | A title with \\| and \\*stars\\* | Paper, section 1 | 1 | 1 | 1 |" in text
    assert "| ✔ | it holds | 1 > 0 |" in text
    assert "| ✘ | it does not | 0 > 1 |" in text
    assert "A paragraph with `code`." in text
    assert "| a\\|b | 1,234 |\n| &lt;b> | – |\n| c | 7 |" in text
    assert "![A line](evidence/a-line.svg)" in text
    assert "Skipped: there are no traces" in text


def test_the_first_page_has_the_figure_of_all_measured_runs() -> None:
    figure = "](evidence/vtc-measured.svg)"
    first, _, _ = pages.render_document({"vtc-measured": SECTION, **SECTIONS}).partition("## Experiments")
    assert figure in first
    skipped = Section("All runs", "VTC, section 5", skipped="there are no traces")
    assert figure not in pages.render_document({"vtc-measured": skipped, **SECTIONS})


def test_written_twice_it_is_the_same_and_nothing_stale_stays(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "old.svg").write_text("old")
    written = [{path: path.read_bytes() for path in pages.write(tmp_path, SECTIONS)} for _ in range(2)]
    assert written[0] == written[1]
    drawn = ["a-line.svg", "claims.json", "nothing.svg", "some-bars.svg"]
    assert sorted(path.name for path in written[0]) == sorted([*drawn, "evidence.md"])
    assert sorted(path.name for path in (tmp_path / "evidence").iterdir()) == [
        "a-line.svg",
        "claims.json",
        "nothing.svg",
        "some-bars.svg",
    ]


def test_a_drawing_has_no_date_and_its_words_are_text(tmp_path: Path) -> None:
    pages.write(tmp_path, SECTIONS)
    drawn = (tmp_path / "evidence" / "a-line.svg").read_text()
    assert "<dc:date>" not in drawn
    assert ">A line</text>" in drawn


def test_a_point_between_gaps_is_seen() -> None:
    xs = [float(x) for x in range(20)]
    whole = Plot("whole", "Whole", "x", "y", [Series("one", xs, xs)])
    lone = Plot("lone", "Lone", "x", "y", [Series("one", xs, [None, 1.0, None, *xs[3:]])])
    dots = [svg(plot).count("fill: #0072b2") for plot in (whole, lone)]
    assert dots[0] == 0
    assert dots[1] > 0


def test_two_plots_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two plots of the name 'a-line'"):
        pages.write(tmp_path, {"one": SECTION, "two": SECTION})


def test_a_row_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells under 2 columns"):
        document.render_table(Table("wrong", ("a", "b"), [("only",)]))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.12344, "0.1234"), (1.0, "1.000"), (12345.6, "12,350"), (999.96, "1,000"), (-2.5, "-2.500")],
)
def test_four_significant_digits(value: float, text: str) -> None:
    assert document.number(value) == text


def test_a_name_is_entered_once() -> None:
    with pytest.raises(ValueError, match="two experiments of the name"):
        experiment(next(iter(EXPERIMENTS)), "Title", "Paper")(lambda setting: SECTION)


def test_one_experiment_is_renewed_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        monkeypatch.setitem(EXPERIMENTS, name, lambda setting: SECTION)
    other = Section("Another", "QLM, section 1", checks=[Check("near", True, "1 against 2", "", 1.0, 2.0, 0.6)])
    pages.write(tmp_path, {"first": SECTION, "second": other})
    renewed = replace(SECTION, title="Renewed", checks=[Check("it breaks", False, "0", "for a reason")], plots=[])
    pages.update(tmp_path, {"first": renewed})
    updated = (tmp_path / "evidence.md").read_text()
    assert updated == pages.render_document({"first": renewed, "second": other})
    assert not (tmp_path / "evidence" / "a-line.svg").exists()
    assert pages.differing(tmp_path, {"first": renewed}) == []
    assert pages.differing(tmp_path, {"first": SECTION}) == ["first", "overview"]
    assert "| QLM (SoCC 2024) | 1 | 0 | 0 | 1, 50.0% | 50.0%, [second](#second) |" in updated
    assert "| [first](#first) | it breaks (0) | for a reason |" in updated


def test_a_claim_that_fails_without_a_reason_is_unexplained() -> None:
    assert Check("it fails", False, "0").is_unexplained
    assert not Check("it fails", False, "0", "for a reason").is_unexplained
    assert not Check("unclear", None, "").is_unexplained


def test_every_experiment_that_the_coverage_names_exists() -> None:
    named = {name for items in ITEMS.values() for item in items for name in item.where if "/" not in name}
    assert named <= EXPERIMENTS.keys()
    paths = {name for items in ITEMS.values() for item in items for name in item.where if "/" in name}
    assert [name for name in sorted(paths) if not (ROOT / name).exists()] == []
