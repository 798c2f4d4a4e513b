"""How planners are judged over draws of arrivals, and the survey of many scenes: its file, its key and its summary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks import planner_survey
from benchmarks.planner_dominance import PLANNERS, Played
from benchmarks.planner_draws import LOSS, Counts, Drawn, Verdict, base_rates, judge_draws, wilson
from benchmarks.planner_survey import code_digest, read_lines, summary, survey

EACH = 1000
"""Requests of each tenant in a draw."""


def drawn(planner: str, *in_time: float, requests: Mapping[str, int] | None = None) -> Played:
    """Return a run of tenants a, b, … with these parts in time."""
    names = "abcd"[: len(in_time)]
    return Played(planner, dict(zip(names, in_time, strict=True)), 1.0, 0, requests or dict.fromkeys(names, EACH))


def judge(plan: Sequence[tuple[float, ...]], **others: Sequence[tuple[float, ...]]) -> Verdict:
    """Judge `plan` with these parts of tenants by draw. A planner that is not named has no request in time."""
    runs = {name: [drawn(name, *each) for each in found] for name, found in ({"plan": plan} | others).items()}
    nothing = [tuple(0.0 for _ in each) for each in plan]
    runs |= {name: [drawn(name, *each) for each in nothing] for name in PLANNERS if name not in runs}
    return judge_draws(runs, set(runs["plan"][0].in_time))["plan"]


def shifted(plan: Sequence[tuple[float, ...]], *by: float) -> list[tuple[float, ...]]:
    return [tuple(part + more for part, more in zip(each, by, strict=True)) for each in plan]


EASY_AND_HARD = [(0.9, 0.9), (0.1, 0.2), (0.5, 0.4), (0.8, 0.7), (0.2, 0.1), (0.6, 0.9)] * 2
"""Draws that differ far more than planners do."""


def test_a_rival_that_is_better_in_each_draw_is_shown_although_draws_differ() -> None:
    """Resamples take a draw with all its planners. Resamples of each planner alone would leave it open."""
    found = judge(EASY_AND_HARD, qlm=shifted(EASY_AND_HARD, 0.05, 0.0))
    (gain,) = found.gains
    assert (gain.rival, gain.what) == ("qlm", "tenant")
    assert (gain.points, gain.low, gain.high) == pytest.approx((5, 5, 5))
    assert found.is_shown
    assert not found.is_ruled_out


def test_a_rival_that_is_better_in_one_draw_of_many_is_open() -> None:
    plan = [(0.5, 0.9)] * 12
    found = judge(plan, qlm=[(1.0, 0.9), *plan[1:]])
    assert [round(gain.points, 1) for gain in found.gains] == [4.2, 4.2]
    assert not found.is_shown
    assert not found.is_ruled_out
    assert judge(plan, qlm=plan).is_ruled_out


def test_the_same_luck_for_both_planners_is_no_domination() -> None:
    found = judge(EASY_AND_HARD, qlm=EASY_AND_HARD)
    assert (found.gains, found.support) == ([], 0.0)


def test_a_rival_may_lose_a_little_and_no_more() -> None:
    plan = [(0.5, 0.9)] * 10
    assert [gain.what for gain in judge(plan, edf=shifted(plan, 0.1, -LOSS / 2)).gains] == ["tenant", "worst"]
    assert [gain.what for gain in judge(plan, edf=shifted(plan, 0.1, -2 * LOSS)).gains] == ["worst"]


def test_the_worst_off_is_the_worst_over_all_draws() -> None:
    """In each draw the plan has a tenant with 50 %; over both draws each has 75 %, and the rival's worst 60 %."""
    plan, rival = [(0.5, 1.0), (1.0, 0.5)] * 5, [(0.6, 0.6)] * 10
    found = judge(plan, qlm=rival)
    assert found.worst_off == pytest.approx(0.75)
    assert found.gains == []


def test_a_part_is_of_all_requests_and_a_draw_without_any_counts_for_nothing() -> None:
    draws = [drawn("plan", 1.0, requests={"a": 3}), drawn("plan", 0.0, requests={"a": 1}), Played("plan", {}, 1.0, 0)]
    counts = Counts({"plan": draws}, {"a", "b"})
    assert counts.parts(range(3))["plan"].in_time == {"a": 0.75}
    assert counts.parts([2, 2])["plan"].in_time == {}


def test_what_only_the_partition_dominates_is_counted_apart() -> None:
    plan = [(0.5, 0.9)] * 10
    better = shifted(plan, 0.1, 0.0)
    assert judge(plan, static=better).only_by_static
    assert not judge(plan, static=better, qlm=better).only_by_static
    assert not judge(plan, qlm=better).only_by_static


def test_each_planner_is_judged_by_the_same_rules() -> None:
    runs = {name: [drawn(name, part)] * 3 for name, part in zip(PLANNERS, (0.4, 0.3, 0.2, 0.1), strict=True)}
    verdicts = judge_draws(runs, {"a"})
    assert {name: sorted({gain.rival for gain in each.gains}) for name, each in verdicts.items()} == {
        "static": [],
        "qlm": ["static"],
        "edf": ["qlm", "static"],
        "plan": ["edf", "qlm", "static"],
    }
    strict = {"static": 0.0, "qlm": 10.0, "edf": 20.0, "plan": 30.0}
    rows = base_rates([Drawn("one", {"a"}, [], verdicts, strict)] * 2).splitlines()
    assert [row.split(" | ")[1] for row in rows[2:]] == ["0 (0.00)", "2 (10.00)", "2 (20.00)", "2 (30.00)"]
    assert [row.split(" | ")[2][0] for row in rows[2:]] == ["0", "2", "2", "2"]


def test_the_interval_of_a_number_of_scenes() -> None:
    assert wilson(10, 100) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert wilson(0, 50)[0] == pytest.approx(0.0)


def test_a_survey_goes_on_after_a_run_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.jsonl"
    first = list(survey([2, 3], path, 1))
    whole = path.read_text()
    path.write_text(whole[:-9])  # killed while it wrote the second line
    assert read_lines(path) == first[:1]
    assert [line["seed"] for line in survey([2, 3], path, 1)] == [3]
    assert path.read_text() == whole
    assert list(survey([2, 3], path, 1)) == []


def test_the_key_of_a_survey_follows_the_code_of_the_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_survey, "_CODE", ("planning", "rule.py"))
    (tmp_path / "planning").mkdir()
    (tmp_path / "rule.py").write_text("MARGIN = 2")
    (tmp_path / "planning" / "choice.py").write_text("WEIGHT = 1")
    before = code_digest(tmp_path)
    (tmp_path / "planning" / "notes.md").write_text("a note")
    (tmp_path / "rule.py").write_text('"""Says something."""\nMARGIN = 2  # points\n"""Points."""')
    assert code_digest(tmp_path) == before
    (tmp_path / "planning" / "choice.py").write_text("WEIGHT = 2")
    assert code_digest(tmp_path) != before


def test_a_summary_says_where_scenes_are_dominated() -> None:
    def line(seed: int, swap: float, *found: tuple[str, str, float]) -> dict[str, object]:
        return {"seed": seed, "dominated": [list(each) for each in found], "worst_off": 0.5, "features": features(swap)}

    def features(swap: float) -> dict[str, object]:
        return {"swap": swap, "models": int(swap > 2), "requests": 3 if swap > 2 else 4}

    lines = [
        line(7, 40.0, ("static", "worst", 30.0), ("static", "tenant", 10.0)),
        line(8, 40.0, ("qlm", "worst", 6.0), ("static", "worst", 4.0)),
        line(9, 2.0),
        line(10, 2.0),
    ]
    text = summary(json.loads(json.dumps(lines)), "abc")
    assert "seeds 7 to 10" in text
    assert "Dominated: 2 (50.0%" in text
    assert "by 9.00 points in the mean" in text
    assert "it alone dominates 1." in text
    rows = [row for row in text.splitlines() if row.startswith("| swap")]
    assert [row.split(" | ")[:3] for row in rows] == [["| swap 2 s", "2", "0%"], ["| swap 40 s", "2", "100%"]]
    assert "| requests to 3 | 2 | 100% |" in text
    assert "| requests to 10 | 2 | 0% |" in text
    assert "| 1 | 0 of 0 | 2 of 2 |" in text
    assert "7 (30), 8 (6)" in text
