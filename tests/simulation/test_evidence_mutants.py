"""The mutants of the evidence: they are undone, and a claim that stands for a rule notices when the rule is broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.evidence_mutants import code
from benchmarks.evidence_mutants.__main__ import CODES, FOLDER, find_cover, list_jobs, read_held, read_verdicts
from benchmarks.evidence_mutants.code import Codes, digest_file, digest_mutant, play_recorded
from benchmarks.evidence_mutants.jobs import Job, play
from benchmarks.evidence_mutants.mutants import MUTANTS, Mutant, applied
from benchmarks.evidence_mutants.page import find_unnoticed, render_page
from gpu_worker.policies.fairness.registry import POLICIES, all_policies
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.tiers import TierSettings
from headgate.evidence.bwfq.cares import measure
from headgate.evidence.document import Check, Section, Setting
from headgate.evidence.preemption.limits import count_evictions
from headgate.evidence.qlm.scenes import A_MODELS, RequestStream, fleet, fleet_spec, workload
from headgate.evidence.registry import EXPERIMENTS
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate


def test_a_mutant_is_undone_and_never_a_policy_that_can_be_selected() -> None:
    names, methods = set(all_policies()), dict(vars(VirtualTokenCounter))
    made = {name: POLICIES[name].make for name in names}
    for mutant in MUTANTS.values():
        with applied(mutant):
            assert set(all_policies()) == names
    assert dict(vars(VirtualTokenCounter)) == methods
    assert {name: POLICIES[name].make for name in names} == made


def test_a_mutant_that_would_break_nothing_is_refused() -> None:
    gone = Mutant("a rule that was renamed", (), lambda: [(VirtualTokenCounter, "no_such_rule", None)])
    with pytest.raises(AttributeError, match="breaks nothing"), applied(gone):
        pass


def test_a_mutant_runs_with_the_experiments_that_it_names() -> None:
    mutant = Mutant("a rule", ("vtc-", "qlm-figure-1"), list)
    assert mutant.may_change("vtc-figure-3")
    assert mutant.may_change("qlm-figure-1")
    assert not mutant.may_change("qlm-figure-17")


def test_the_experiments_of_a_chapter_are_named_together() -> None:
    jobs = list(list_jobs({"qlm-"}, set(), {"qlm-figure-12-13"}))
    assert {job.experiment for job in jobs} == {
        name for name in EXPERIMENTS if name.startswith("qlm-") and name != "qlm-figure-12-13"
    }
    assert Job("qlm-half", "all entitled") in jobs
    assert list(list_jobs({"qlm-half"}, {"no plan"}, set())) == [Job("qlm-half", ""), Job("qlm-half", "no plan")]


def test_every_mutant_names_experiments_that_exist() -> None:
    named = {name for mutant in MUTANTS.values() for name in mutant.experiments}
    assert [name for name in sorted(named) if not any(each.startswith(name) for each in EXPERIMENTS)] == []


@pytest.mark.parametrize("mutant", ["", "no lift"])
def test_figure_10_notices_a_missing_lift(mutant: str) -> None:
    verdicts = play(Job("vtc-figure-10", mutant))
    claim = "vtc: both receive the same in the second phase within 10% in every run, from 330 to 600 s"
    assert verdicts[claim] is (mutant == "")


def test_the_limit_on_preemptions_notices_its_absence() -> None:
    settings = TierSettings(preemptions_max=2)
    assert count_evictions(settings, rounds=9) == 2
    with applied(MUTANTS["no limit"]):
        assert count_evictions(settings, rounds=9) == 9


def test_a_mutant_takes_the_runs_that_it_does_not_change_from_the_unbroken_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []

    def play_fleet(spec: RunSpec) -> Run:
        planned.append(spec.planner)
        return simulate(spec)

    def tiny(setting: Setting) -> Section:
        requests = workload("tiny", [RequestStream("a", "vicuna", "normal", 5, 1.0)])
        specs = [fleet_spec(requests, fleet(1, A_MODELS), planner) for planner in ("static", "qlm", "plan")]
        served = [run.served for run in setting.map(play_fleet, specs)]
        return Section(checks=[Check("all are served", served == [5, 5, 5], "")])

    monkeypatch.setitem(EXPERIMENTS, "qlm-five-models", tiny)
    for mutant, of_mutant in {
        "": ["static", "qlm", "plan"],
        "no plan": ["plan"],
        "insertion only": ["qlm", "plan"],
        "rpm + 1": ["static", "qlm", "plan"],
    }.items():
        planned.clear()
        assert play(Job("qlm-five-models", mutant, str(tmp_path))) == {"all are served": True}
        assert planned == of_mutant
    planned.clear()
    play(Job("qlm-five-models", "no plan"))
    assert planned == ["static", "qlm", "plan"]


def test_the_page_says_which_mutants_turn_a_claim() -> None:
    found: dict[str, dict[str, dict[str, bool | None]]] = {
        "first": {
            "": {"it holds": True, "unclear": None, "it fails": False},
            "no lift": {"it holds": False, "unclear": None, "it fails": False},
            "no plan": {"it holds": False},
            "no cap": {"it holds": True},
        },
        "second": {"": {"nobody tries": True}},
    }
    page = render_page(found)
    assert "| it holds | no lift, no plan |" in page
    assert "1 of 1 claims are turned" in page
    assert "nobody tries" not in page
    assert "no cap" in find_unnoticed(found)
    assert "no plan" not in find_unnoticed(found)


def test_a_mutant_that_ends_an_experiment_with_an_error_notices_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that no longer fitted the function that it replaced would have turned every claim."""
    monkeypatch.setitem(MUTANTS, "broken", Mutant("a rule", (), lambda: [(VirtualTokenCounter, "_tenant_joins", None)]))
    with pytest.raises(RuntimeError, match="vtc-figure-10 under 'broken' ended with an error"):
        play(Job("vtc-figure-10", "broken"))


def test_the_page_marks_limits_and_counts_the_claims_that_it_does_not_judge() -> None:
    found: dict[str, dict[str, dict[str, bool | None]]] = {
        "first": {"": {"it holds": True, "a limit: none is better": True}, "no lift": {"it holds": False}},
    }
    page = render_page(found, {"first": ["it holds", "a limit: none is better", "with twenty seeds"]})
    assert "| a limit: none is better | none: it states a limit |" in page
    assert "1 of 2 claims are turned by at least one mutant. Of the others, 1 state a limit." in page
    assert "first 1." in page


@pytest.mark.parametrize("mutant", ["", "no wake", "no guarantees"])
def test_a_flood_gets_its_guarantee_only_if_filled_buckets_move_it_forward(mutant: str) -> None:
    with applied(MUTANTS.get(mutant)):
        of_a, of_b = measure(("owed_flood", "bwfq", 1))
    assert (of_a, of_b) == pytest.approx((2.5, 7.5) if mutant else (6.0, 4.0), abs=0.1)


def test_the_fewest_mutants_that_turned_every_claim_are_played() -> None:
    jobs = list(list_jobs({"vtc-figure-10", "qlm-half"}, set(), set()))
    found: dict[str, dict[str, dict[str, bool | None]]] = {
        "vtc-figure-10": {
            "": {"one": True, "two": True, "three": True, "fails": False},
            "round robin": {"one": False, "fails": False},
            "no lift": {"one": False, "two": False},
            "half pool": {"three": False, "fails": False},
        }
    }
    chosen = find_cover(jobs, found)
    of_figure = {job.mutant for job in chosen if job.experiment == "vtc-figure-10"}
    assert {"", "no lift", "half pool"} <= of_figure
    assert "round robin" in of_figure, "it would not be played at all"
    assert [job for job in chosen if job.experiment == "qlm-half"] == [
        job for job in jobs if job.experiment == "qlm-half"
    ]
    found["vtc-figure-10"]["lcf is vtc"] = {"one": False}
    found["vtc-figure-7"] = {"": {"one": True}, "round robin": {"one": False}}
    chosen = find_cover([*jobs, Job("vtc-figure-7", ""), Job("vtc-figure-7", "round robin")], found)
    assert Job("vtc-figure-10", "round robin") not in chosen, "it is played with Figure 7"


# ── The code that a row was played with ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A product of two files, with digests of its own."""
    monkeypatch.setattr(code, "ROOT", tmp_path)
    (tmp_path / "dispatcher").mkdir()
    (tmp_path / "dispatcher" / "rule.py").write_text("def rule() -> int:\n    return 1\n")
    (tmp_path / "dispatcher" / "bounds.py").write_text("MOST = 1\n")
    digest_file.cache_clear()
    yield tmp_path
    digest_file.cache_clear()


def test_a_row_is_stale_after_a_change_of_code_and_not_of_its_docstring(product: Path) -> None:
    path, codes = product / "dispatcher" / "rule.py", Codes({})
    codes.record("first", "", {"dispatcher/rule.py": digest_file(path)})
    codes.record("first", "no lift", {})
    for text, is_stale in {
        '"""A rule."""\n\n\ndef rule() -> int:\n    """Return one."""\n    return 1  # for now\n': False,
        "def rule() -> int:\n    return 2\n": True,
    }.items():
        path.write_text(text)
        digest_file.cache_clear()
        assert [codes.is_stale("first", mutant) for mutant in ("", "no lift")] == [is_stale] * 2
        assert codes.find_changed_files("first") == ["dispatcher/rule.py"] * is_stale
    path.unlink()
    digest_file.cache_clear()
    assert codes.is_stale("first", "")


def test_a_row_that_was_not_played_again_stays_stale(product: Path) -> None:
    path, codes = product / "dispatcher" / "rule.py", Codes({})
    for mutants in (("", "no lift", "no cap"), ("", "no cap")):
        digest_file.cache_clear()
        for mutant in mutants:
            codes.record("first", mutant, {"dispatcher/rule.py": digest_file(path)})
        path.write_text("def rule() -> int:\n    return 2\n")
    assert [codes.is_stale("first", mutant) for mutant in ("", "no lift", "no cap")] == [False, True, False]
    assert codes.is_stale("first", "no wake")
    assert codes.is_stale("second", "")
    codes.write(product / "codes.json")
    assert Codes.read(product / "codes.json") == codes


def test_the_code_of_a_play_is_the_files_that_it_ran_through_and_their_constants() -> None:
    result, files = play_recorded(lambda: count_evictions(TierSettings(preemptions_max=2), rounds=3))
    assert result == 2
    assert {"headgate/evidence/preemption/limits.py", "gpu_worker/policies/tiers.py"} <= set(files)
    assert "dispatcher/policies/bounds.py" in files
    assert not [name for name in files if "planning" in name or name.endswith("mutants.py")]
    assert all(files.values())


def test_a_constant_is_code_and_a_function_that_did_not_run_is_not(product: Path) -> None:
    user = product / "dispatcher" / "user.py"
    user.write_text("from dispatcher.bounds import MOST\nfrom dispatcher.rule import rule\n")
    assert code._with_constants([user]) == {user, product / "dispatcher" / "bounds.py"}


def test_a_row_is_stale_after_a_change_of_its_seeds(product: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = Codes({})
    codes.record("first", "", {"dispatcher/rule.py": digest_file(product / "dispatcher" / "rule.py")})
    assert not codes.is_stale("first", "")
    monkeypatch.setattr(code, "seeds_of", lambda experiment: 7)
    assert codes.is_stale("first", "")


def test_the_digest_of_a_mutant_is_of_what_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, codes = {name: digest_mutant(name) for name in MUTANTS}, Codes({})
    codes.record("first", "rpm halved", {})
    assert not codes.is_stale("first", "rpm halved")
    assert len(set(before.values())) == len(MUTANTS)
    text = code._MUTANTS.read_text("utf-8")
    for old, new, changed in (
        ("VTC lifts no counter when a tenant joins", "no lift", []),
        ("lambda self, request: None", "lambda self, request: 1", ["no lift"]),
        ("FcfsPolicy(spec.service)", "FcfsPolicy(spec)", ["vtc is fcfs"]),
        ("most // 2", "most // 3", ["rpm halved"]),
    ):
        assert old in text
        (tmp_path / "mutants.py").write_text(text.replace(old, new), "utf-8")
        monkeypatch.setattr(code, "_MUTANTS", tmp_path / "mutants.py")
        digest_mutant.cache_clear()
        assert [name for name in MUTANTS if digest_mutant(name) != before[name]] == changed
        assert codes.is_stale("first", "rpm halved") == ("rpm halved" in changed)
    monkeypatch.undo()
    digest_mutant.cache_clear()


def test_the_page_marks_what_is_stale_and_counts_the_claims_that_today_turns() -> None:
    found: dict[str, dict[str, dict[str, bool | None]]] = {
        "first": {
            "": {"it holds": True, "it is old": True, "none turns it": True},
            "no lift": {"it holds": False, "it is old": True},
            "no cap": {"it holds": False, "it is old": False},
        }
    }
    held = {"first": ["it holds", "it is old", "none turns it", "left out"]}
    page = render_page(found, held, lambda _experiment, mutant: mutant == "no cap")
    assert "2 of 3 plays are of the code of this revision." in page
    assert "| it holds | no lift, no cap † |" in page
    assert "| it is old | no cap † |" in page
    assert f"| no lift | {MUTANTS['no lift'].what} | 1 of 3 | 1 |" in page
    assert f"| no cap | {MUTANTS['no cap'].what} | 2 of 3 | 0 |" in page
    assert "4 claims hold in evidence.md. 2 of them are turned by a mutant (1 by one that was played with the" in page
    assert "1 by none, and 1 are not judged." in page
    assert "All 3 plays are of the code of this revision." in render_page(found)


def test_the_committed_page_says_what_is_stale_today() -> None:
    """After a change of code, or of docs/evidence/claims.json: python -m benchmarks.evidence_mutants --page."""
    codes = Codes.read(CODES)
    assert (FOLDER / "mutants.md").read_text("utf-8") == render_page(read_verdicts(), read_held(), codes.is_stale)
