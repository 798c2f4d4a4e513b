"""`headgate reproduce`: the document, the verdict, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.evidence.document import Check, Section, Setting
from headgate.evidence.registry import EXPERIMENTS
from tests.unit.cli.command import headgate


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_list_is_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("reproduce", "--list") == 0
    assert capsys.readouterr().out.split() == list(EXPERIMENTS)
    assert {"vtc-real", "vtc-theorems", "bwfq-latency", "bwfq-cares", "fairserve"} <= EXPERIMENTS.keys()


def test_the_same_bytes_on_one_core_and_on_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("1", "2"):
        arguments = ("--only", "vtc-figure-9,vtc-adversary", "--seeds", "2", "--processes", name)
        assert headgate("reproduce", *arguments, "--out", str(tmp_path / name)) == 0
    assert written(tmp_path / "1") == written(tmp_path / "2")
    assert written(tmp_path / "1").keys() == {
        *("evidence.md", "evidence/claims.json", "evidence/vtc-figure-9a.svg", "evidence/vtc-figure-9b.svg")
    }
    assert "claims hold, 0 do not" in capsys.readouterr().out


def test_a_document_that_shows_another_result_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = ("reproduce", "--only", "vtc-figure-9,vtc-adversary", "--seeds", "2")
    assert headgate(*ran, "--out", str(tmp_path)) == 0
    compared = ("reproduce", "--only", "vtc-figure-9", "--seeds", "2", "--compare", str(tmp_path))
    assert headgate(*compared) == 0
    page, plot = tmp_path / "evidence.md", tmp_path / "evidence" / "vtc-figure-9a.svg"
    shown, drawn = page.read_text(), plot.read_text()
    for path, text in ((page, shown.replace("vtc-figure-9", "vtc-figure-99")), (plot, drawn + " ")):
        path.write_text(text)
        assert headgate(*compared) == 1
        assert "vtc-figure-9: " in capsys.readouterr().out
        page.write_text(shown)
        plot.write_text(drawn)
    plot.unlink()
    assert headgate(*compared) == 1
    assert headgate("reproduce", "--only", "vtc-figure-9", "--seeds", "2", "--update", str(tmp_path)) == 0
    assert page.read_text() == shown
    assert plot.read_text() == drawn


def test_comparing_needs_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("reproduce", "--only", "vtc-adversary", "--compare", str(tmp_path)) == 2
    assert "there is no evidence.md in" in capsys.readouterr().err


def test_experiments_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("reproduce", "--only", "vtc-adversary,vtc-figure-9", "--without", "vtc-figure-9") == 0
    shown = capsys.readouterr().out
    assert "vtc-adversary:" in shown
    assert "vtc-figure-9:" not in shown
    assert headgate("reproduce", "--without", "bogus") == 2
    assert "unknown experiment 'bogus'" in capsys.readouterr().err


def test_a_claim_that_does_not_hold_is_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(setting: Setting) -> Section:
        return Section("Broken", "no source", checks=[Check("the moon is made of cheese", False, "rock")])

    def known(setting: Setting) -> Section:
        return Section("Known", "no source", checks=[Check("the moon is square", False, "round", "nobody cut it")])

    monkeypatch.setitem(EXPERIMENTS, "broken", broken)
    monkeypatch.setitem(EXPERIMENTS, "known", known)
    assert headgate("reproduce", "--only", "known", "--check") == 0
    assert "✘ the moon is square: round" in capsys.readouterr().out
    assert headgate("reproduce", "--only", "broken") == 0
    assert headgate("reproduce", "--only", "broken", "--check") == 1
    assert "✘ the moon is made of cheese: rock" in capsys.readouterr().out


def test_without_traces_their_experiments_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("--only", "vtc-real,vtc-overload", "--check")
    assert headgate("reproduce", *arguments, "--out", str(tmp_path / "docs")) == 0
    assert "2 of 2 experiments were skipped" in capsys.readouterr().out
    assert "Skipped:" in (tmp_path / "docs" / "evidence.md").read_text()


def test_an_unknown_experiment_lists_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("reproduce", "--only", "bogus") == 2
    assert "vtc-real" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "vtc-real", "--without", "vtc-real"), "--without leaves out every experiment that --only names"),
        (("--only", "vtc-real", "--traces", "nowhere"), "--traces: there is no folder nowhere"),
        (("--only", "vtc-adversary", "--out", "a-file"), "a-file is no folder"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    assert headgate("reproduce", *arguments, "--check") == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"headgate: {says}\n")
