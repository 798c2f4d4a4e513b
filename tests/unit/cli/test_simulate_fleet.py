"""`headgate simulate --fleet`: for each option a scene whose verdict it changes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from headgate.simulator.engines.profile import FittedOn, load_profile
from headgate.simulator.report.fleet_page import verdict
from tests.unit.cli.command import headgate

FLEET = """
kinds: {k: {m: {engine: a10g-llama2-7b, swap_s: 5}}}
workers: [{name: a, kind: k, loaded: m}, {name: b, kind: k, loaded: m}]
classes: {interactive: {first_token_s: 10}}
"""
HEADER = "arrival_s,tenant,input_tokens,output_tokens"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet of two workers, and two files: a flood with a small tenant beside it, and a light load."""
    made = tmp_path_factory.mktemp("fleet")
    flood = [(0.02 * number, "flood") for number in range(400)] + [
        (5.0 + 0.5 * number, "small") for number in range(60)
    ]
    rows = [f"{at:g},{tenant},128,128" for at, tenant in sorted(flood)]
    (made / "flood.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (made / "light.csv").write_text("\n".join([HEADER, *(f"{number},only,128,80" for number in range(60))]) + "\n")
    (made / "fleet.yaml").write_text(FLEET)
    return made


def run(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str, fleet: str = "fleet.yaml") -> dict[str, Any]:
    workload, *others = arguments
    where = ("--fleet", str(folder / fleet), "--planner", "plan", "--json", "--processes", "1")
    assert headgate("simulate", str(folder / workload), *where, *others) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    return dict(found)


def test_weights_and_guarantees_and_the_order_decide_who_is_in_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "guaranteed.yaml").write_text("tenants: {flood: {weight: 50}, small: {rate_per_s: 900, burst: 4000}}\n")
    (folder / "heavy.yaml").write_text("tenants: {flood: {weight: 50}, small: {}}\n")
    usual = run(folder, capsys, "flood.csv")["tenants"]["small"]["in_time"]
    heavy = run(folder, capsys, "flood.csv", "--weights", "flood=50")["tenants"]["small"]["in_time"]
    assert (
        run(folder, capsys, "flood.csv", "--tenants", str(folder / "heavy.yaml"))["tenants"]["small"]["in_time"]
        == heavy
    )
    guaranteed = run(folder, capsys, "flood.csv", "--tenants", str(folder / "guaranteed.yaml"))
    by_arrival = run(folder, capsys, "flood.csv", "--order", "fcfs")["tenants"]["small"]["in_time"]
    assert usual > 0.95
    assert guaranteed["tenants"]["small"]["in_time"] > 0.95
    assert heavy < 0.5
    assert by_arrival < 0.5


def test_weights_decide_also_while_no_planner_makes_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "no-plan", "--json", "--processes", "1")
    in_time = []
    for weights in ("small=1", "flood=50"):
        assert headgate("simulate", str(folder / "flood.csv"), *where, "--weights", weights) == 0
        printed = capsys.readouterr()
        in_time.append(json.loads(printed.out)["runs"][0]["tenants"]["small"]["in_time"])
        assert "Shares matter only" not in printed.err
    assert in_time[0] > in_time[1] + 0.3
    usual = ("--fleet", str(folder / "fleet.yaml"), "--planner", "qlm", "--processes", "1")
    assert headgate("simulate", str(folder / "light.csv"), *usual, "--weights", "only=2") == 0
    assert "Shares matter only to the planners no-plan and plan." in capsys.readouterr().err


def test_the_gate_of_a_fleet_cannot_be_switched_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` always has it, and no other planner can have it. The option was taken without a word."""
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "qlm,plan", "--json", "--processes", "1")
    printed = []
    for gate in ("off", "on"):
        assert headgate("simulate", str(folder / "light.csv"), *where, "--gate", gate) == 0
        printed.append(capsys.readouterr())
    assert printed[0].out == printed[1].out
    assert [each.err for each in printed] == [
        "", "note: --gate changes nothing with --fleet: only no-plan and plan have the gate, and always.\n",
    ]  # fmt: skip


def test_the_class_of_a_tenant_is_that_of_its_requests_without_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of tenants is also that of `headgate serve --fleet`. Its own classes stand in place of the fleet's."""
    classes = (
        "classes: {soon: {first_token_s: 5}, later: {first_token_s: 50}, night: {first_token_s: 90, deferred: true}}\n"
    )
    (folder / "classes.yaml").write_text(FLEET.replace("classes: {interactive: {first_token_s: 10}}\n", classes))
    file, rows = folder / "classed.yaml", "0,a,9,9,\n0,b,9,9,night\n0,c,9,9,\n"
    (folder / "named.csv").write_text(f"{HEADER},slo_class\n{rows}")
    file.write_text("tenants: {a: {slo_class: soon}, b: {slo_class: soon}, c: {}}\n")

    def classes_of(*arguments: str) -> dict[str, int]:
        found = run(folder, capsys, "named.csv", *arguments, fleet="classes.yaml")["classes"]
        return {name: each["requests"] for name, each in found.items()}

    assert classes_of() == {"later": 2, "night": 1}
    assert classes_of("--tenants", str(file)) == {"later": 1, "night": 1, "soon": 1}
    file.write_text("tenants: {a: {slo_class: x}}\nslo_classes: {x: {first_token_s: 1}, night: {first_token_s: 2}}\n")
    assert classes_of("--tenants", str(file)) == {"night": 2, "x": 1}
    file.write_text("tenants: {a: {slo_class: x}}\n")
    where = ("--fleet", str(folder / "classes.yaml"), "--planner", "plan", "--tenants", str(file))
    assert headgate("simulate", str(folder / "named.csv"), *where) == 2
    assert "which slo_classes lacks; there are: soon, later, night" in capsys.readouterr().err


def test_guarantees_above_what_the_fleet_computes_are_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "static", "--processes", "1")
    for rate, is_said in ((1_000, False), (20_000, True)):
        (folder / "rates.yaml").write_text(f"tenants: {{only: {{rate_per_s: {rate}, burst: 4000}}}}\n")
        assert headgate("simulate", str(folder / "light.csv"), *where, "--tenants", str(folder / "rates.yaml")) == 0
        said = f"The guarantees sum to {rate:,} service units per second, and the fleet computes"
        assert (said in capsys.readouterr().err) is is_said


def test_shares_and_lateness_by_tenant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the last arrival only the flood is left, so its part of the whole run's service is above its share."""
    (folder / "heavy.yaml").write_text("tenants: {flood: {weight: 50}, small: {}}\n")
    usual = run(folder, capsys, "flood.csv")["tenants"]
    heavy = run(folder, capsys, "flood.csv", "--tenants", str(folder / "heavy.yaml"))["tenants"]
    for tenants in (usual, heavy):
        assert sum(each["share"] for each in tenants.values()) == pytest.approx(1.0)
    service = {name: each["service"] for name, each in usual.items()}
    assert usual["flood"]["share"] < service["flood"] / sum(service.values()) - 0.05
    assert heavy["small"]["share"] < usual["small"]["share"] - 0.1
    assert usual["small"]["lateness_s"] < 1.0
    assert heavy["small"]["lateness_s"] > 5.0
    assert run(folder, capsys, "light.csv")["tenants"]["only"]["lateness_s"] == 0.0
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "plan", "--processes", "1")
    assert headgate("simulate", str(folder / "flood.csv"), *where) == 0
    printed = capsys.readouterr().out
    (small,) = (line.split() for line in printed.splitlines() if line.strip().startswith("small"))
    assert f"{100 * usual['small']['share']:.1f}%" in small
    (folder / "single.csv").write_text(f"{HEADER}\n0,a,10,20\n0,b,10,5\n")
    assert run(folder, capsys, "single.csv")["tenants"]["a"]["share"] == pytest.approx(50 / 70)


def test_why_requests_were_not_served_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "large.csv").write_text(f"{HEADER}\n0,a,10,20\n0,b,100000,5\n")
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "fcfs", "--processes", "1")
    assert headgate("simulate", str(folder / "large.csv"), *where) == 0
    assert "fcfs rejected: 1 too_large (longer than" in capsys.readouterr().out


def test_a_worker_that_fails_makes_requests_late(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "failing.yaml").write_text(
        FLEET + "failures: [{worker: a, at_s: 20, for_s: 30}, {worker: b, at_s: 22, for_s: 30}]\n"
    )
    assert run(folder, capsys, "light.csv")["all"]["in_time"] == 1.0
    failing = run(folder, capsys, "light.csv", fleet="failing.yaml")
    assert failing["all"]["served"] == 60
    assert failing["all"]["in_time"] < 0.7
    (folder / "failing.yaml").write_text(
        FLEET + "failures: [{worker: a, at_s: 59, for_s: 3}, {worker: b, at_s: 60, for_s: 3}]\n"
    )
    where = ("--fleet", str(folder / "failing.yaml"), "--planner", "edf", "--processes", "1")
    assert headgate("simulate", str(folder / "light.csv"), *where) == 0
    assert capsys.readouterr().err == "note: Worker 'b' fails at 60 s, and the last request arrives at 59 s.\n"


TWO_MODELS = """
kinds: {k: {m: {engine: a10g-llama2-7b, swap_s: 2}, n: {engine: a10g-llama2-7b, swap_s: 2}}}
workers: [{name: a, kind: k, loaded: m}]
classes: {interactive: {first_token_s: 10}}
"""


def test_swaps_that_take_longer_than_believed_make_requests_late(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{at},t,64,16,{'mn'[at // 30 % 2]}" for at in range(240)]
    (folder / "turns.csv").write_text("\n".join([f"{HEADER},model", *rows]) + "\n")
    (folder / "believed.yaml").write_text(TWO_MODELS)
    (folder / "slower.yaml").write_text(TWO_MODELS.replace("swap_s: 2", "swap_s: 2, actual_swap_s: 20"))
    believed, slower = (run(folder, capsys, "turns.csv", fleet=f"{name}.yaml") for name in ("believed", "slower"))
    assert believed["swapping_s"] == 2.0 * believed["swaps"]
    assert sum(each["loads"] for each in believed["models"].values()) == believed["swaps"]
    assert {name: each["requests"] for name, each in believed["models"].items()} == {"m": 120, "n": 120}
    assert all(each["loads"] >= believed["swaps"] // 2 for each in believed["models"].values())
    assert slower["swapping_s"] == 20.0 * slower["swaps"]
    assert believed["all"]["in_time"] > 0.95
    assert slower["all"]["in_time"] < 0.6


def test_a_drain_that_ends_sooner_than_believed_brings_others_in_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = "".join(f"{5 + at / 10},short,64,16,n\n" for at in range(6))
    (folder / "drains.csv").write_text(f"{HEADER},model\n0,long,64,900,m\n{short}")
    (folder / "waits.yaml").write_text(TWO_MODELS)
    (folder / "gives-up.yaml").write_text(TWO_MODELS + "actual_drain_s: 1\n")
    waits, gives_up = (run(folder, capsys, "drains.csv", fleet=f"{name}.yaml") for name in ("waits", "gives-up"))
    assert waits["tenants"]["short"]["in_time"] == 0.0
    assert gives_up["tenants"]["short"]["in_time"] == 1.0


def test_what_plans_forecast_stands_beside_what_followed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "turning.yaml").write_text(TWO_MODELS)
    rows = [f"{at * 0.5:g},t{at % 2},64,64,{'mn'[at // 40 % 2]}" for at in range(400)]
    (folder / "turning.csv").write_text("\n".join([f"{HEADER},model", *rows]) + "\n")
    forecasts = run(folder, capsys, "turning.csv", fleet="turning.yaml")["forecasts"]
    assert forecasts
    for each in forecasts.values():
        assert each["error"] >= abs(each["forecast_in_time"] - each["in_time"]) - 1e-9
        assert 0 <= each["in_time"] <= 1
    where = ("--fleet", str(folder / "turning.yaml"), "--planner", "plan,static", "--processes", "1")
    assert headgate("simulate", str(folder / "turning.csv"), *where) == 0
    assert capsys.readouterr().out.count("The plans forecast") == 1
    assert "forecasts" not in run(folder, capsys, "light.csv")


def test_what_a_tenant_pays_for_swaps_and_for_which_model_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page has it too. A planner without the production's gate charges nobody."""
    (folder / "charged.yaml").write_text(TWO_MODELS)
    rows = [f"{at},both,64,16,{'mn'[at // 30 % 2]}" for at in range(240)]
    (folder / "charged.csv").write_text("\n".join([f"{HEADER},model", *rows]) + "\n")
    found = run(folder, capsys, "charged.csv", fleet="charged.yaml")
    page = folder / "charged.html"
    where = ("--fleet", str(folder / "charged.yaml"), "--planner", "plan,static", "--processes", "1")
    assert headgate("simulate", str(folder / "charged.csv"), *where, "--report", str(page)) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    charge, shown = f"{found['swap_charges']['both']:,.0f}", page.read_text()
    assert next(line for line in lines if line[:2] == ["both", "plan"])[-1] == charge
    assert next(line for line in lines if line[:2] == ["n", "plan"])[-1] == str(found["models"]["n"]["loads"])
    assert f">{charge}</td>" in shown
    assert "<h2>Models</h2>" in shown
    assert "static (vtc): Not served: 120 no_worker (no worker loads the model)." in shown


def test_planners_that_serve_their_worst_off_tenant_equally_well_share_the_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "two-models.yaml").write_text(TWO_MODELS)
    rows = [f"{at},{'ab'[at % 2]},64,16,{'mn'[at % 2]}" for at in range(0, 60, 5)]
    (folder / "few.csv").write_text("\n".join([f"{HEADER},model", *rows]) + "\n")
    page = folder / "few.html"
    where = ("--fleet", str(folder / "two-models.yaml"), "--report", str(page), "--processes", "1", "--planner")
    assert headgate("simulate", str(folder / "few.csv"), *where, "plan,static,qlm") == 0
    capsys.readouterr()
    assert (
        "Under plan (vtc) and qlm (vtc) every first token of every tenant is in time; under static (vtc) b has 0.0%."
        in page.read_text()
    )


def test_parts_that_look_equal_are_equal() -> None:
    def of(planner: str, in_time: float) -> list[Any]:
        return [SimpleNamespace(planner=planner, policy="vtc", tenants={"t": SimpleNamespace(in_time=in_time)})]

    assert verdict([of("edf", 0.9796), of("plan", 0.98)]) == (
        "Under edf (vtc) and plan (vtc) the worst-off tenant, t, has 98.0% of its first tokens in time."
    )
    assert verdict([of("edf", 0.9996), of("plan", 1.0)]) == (
        "Under plan (vtc) every first token of every tenant is in time; under edf (vtc) t has 99.9%."
    )
    assert verdict([of("edf", 0.978), of("plan", 0.98)]).startswith(
        "Under plan (vtc) the worst-off tenant, t, has 98.0%"
    )


def test_announced_waits_stand_beside_what_followed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waits = run(folder, capsys, "flood.csv")["waits"]
    assert 0 < waits["long_announced"] <= waits["announced"] <= waits["queued"] < 460
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "plan,fcfs", "--processes", "1")
    assert headgate("simulate", str(folder / "flood.csv"), *where) == 0
    printed = capsys.readouterr().out
    assert printed.count("had a wait announced") == 1
    assert f"plan: Of {waits['queued']} queued requests " in printed


def test_seeds_with_jitter_have_a_spread(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(folder, capsys, "light.csv", "--seeds", "3", "--jitter", "0.1")
    assert found["spread"]["total_time_s"]["sd"] > 0.0
    assert found["spread"]["tenants.only.in_time"] == {"mean": 1.0, "sd": 0.0}
    assert "spread" not in run(folder, capsys, "light.csv")
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "plan", "--seeds", "2")
    assert headgate("simulate", str(folder / "light.csv"), *where) == 0
    printed = capsys.readouterr()
    assert "over 2 seeds" in printed.out
    assert "Without --jitter, seeds differ only" in printed.err


def test_columns_of_other_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "light.csv").read_text().replace("arrival_s", "began").replace("input_tokens", "in")
    (folder / "named.csv").write_text(text)
    named = run(folder, capsys, "named.csv", "--columns", "arrival=began,input_tokens=in")
    assert named["tenants"] == run(folder, capsys, "light.csv")["tenants"]


def test_the_report_has_the_verdict_and_the_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    page = folder / "report.html"
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "fcfs,plan", "--report", str(page))
    assert headgate("simulate", str(folder / "flood.csv"), *where) == 0
    text = page.read_text()
    assert "Under plan (vtc) the worst-off tenant, flood, has" in text
    assert "the most of 2 planners: under fcfs (vtc)" in text
    assert text.count("<figure>") == 3
    assert "\nplan,vtc,0,small,60,60," in text
    assert "The load is above what the fleet can serve: it was busy after the last arrival for" in text
    assert headgate("simulate", str(folder / "light.csv"), *where) == 0
    text = page.read_text()
    assert "above what the fleet can serve" not in text
    assert "Under fcfs (vtc) and plan (vtc) every first token of every tenant is in time." in text
    assert "tenant,planner,first tokens in time (%),&quot;time to first token, p99 (s)&quot;" in text


def test_work_that_is_held_back_is_no_load_above_capacity(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a plan three deferred requests wait for an hour, and the page said that the fleet was too small."""
    pytest.importorskip("matplotlib")
    usual, deferred = "interactive: {first_token_s: 10}", "batch: {first_token_s: 3600, deferred: true}"
    (folder / "holding.yaml").write_text(TWO_MODELS.replace(usual, f"{usual}, {deferred}"))
    chat = [(float(at), f"{at},chat,100,20,m,interactive") for at in range(60)]
    night = [(10.5 + at, f"{10.5 + at},night,100,20,n,batch") for at in range(3)]
    rows = [row for _, row in sorted(chat + night)]
    (folder / "holding.csv").write_text("\n".join([f"{HEADER},model,slo_class", *rows]) + "\n")
    page = folder / "holding.html"
    where = ("--fleet", str(folder / "holding.yaml"), "--report", str(page), "--processes", "1", "--json")
    assert headgate("simulate", str(folder / "holding.csv"), *where, "--planner", "no-plan,plan") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert runs[0]["total_time_s"] > 3_000
    assert "above what the fleet can serve" not in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "fleet", "says"),
    [
        (("--tenants", "none.yaml"), FLEET, "none.yaml"),
        (("--order", "royal"), FLEET, "unknown order 'royal'"),
        (("--weights", "nobody=2"), FLEET, "the workload has no tenant 'nobody'"),
        (("--jitter", "7"), FLEET, "--jitter must be between 0 and 1"),
        (("--report", "/nowhere/f.html"), FLEET, "there is no folder /nowhere"),
        (("--gate", "maybe"), FLEET, "--gate must be on or off, not 'maybe'"),
        (("--shards", "2"), FLEET, "--shards does not apply with --fleet"),
        (
            (),
            FLEET + "failures: [{worker: z, at_s: 1, for_s: 1}]\n",
            "key 'failures': a failure is of 'z', which is no worker; there are a, b",
        ),
        ((), FLEET + "failures: [{worker: a, at_s: -1, for_s: 1}]\n", "at_s"),
        ((), FLEET.replace("swap_s: 5", "swap_s: 5, actual_swap_s: -1"), "actual_swap_s"),
        ((), FLEET.replace("swap_s: 5", "swap_s: 5, actual_swap_s: .inf"), "actual_swap_s"),
        ((), FLEET + "actual_drain_s: 0\n", "key 'actual_drain_s': should be greater than or equal to 1"),
        (
            (),
            FLEET + "failures: [{worker: a, at_s: 5, for_s: 9}, {worker: a, at_s: 6, for_s: 1}]\n",
            "worker 'a' fails at 6 s, while it is already gone",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    folder: Path, arguments: tuple[str, ...], fleet: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "wrong.yaml").write_text(fleet)
    where = ("--fleet", str(folder / "wrong.yaml"), "--planner", "fcfs")
    assert headgate("simulate", str(folder / "light.csv"), *where, *arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert says in printed.err


def test_throttling_does_not_apply(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "throttled.yaml").write_text("tenants: {only: {}}\nthrottling: {user: 5, app: 9}\n")
    where = ("--fleet", str(folder / "fleet.yaml"), "--planner", "fcfs", "--tenants", str(folder / "throttled.yaml"))
    assert headgate("simulate", str(folder / "light.csv"), *where) == 2
    assert "throttling does not apply with --fleet" in capsys.readouterr().err


def test_a_fleet_says_where_it_leaves_what_its_profile_was_fitted_to(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = load_profile("a10g-llama2-7b")
    fitted_on = FittedOn(
        log="server.csv", requests=60, seconds=60.0, batch_max=1, input_tokens_min=100, input_tokens_max=127,
        output_tokens_min=64, output_tokens_max=64, policy="fcfs", admission="assumed", first_token_errors_s={},
        whole_answer_errors_s={},
    )  # fmt: skip
    written = profile.model_copy(update={"name": "mine", "fitted_on": fitted_on}).model_dump(mode="json")
    (folder / "mine.yaml").write_text(yaml.safe_dump(written))
    (folder / "fitted.yaml").write_text(FLEET.replace("a10g-llama2-7b", str(folder / "mine.yaml")))
    found = run(folder, capsys, "light.csv", fleet="fitted.yaml")
    batch, prompts = found["outside_fit"]
    assert batch.startswith("mine: 2 requests ran at once, and the profile was fitted to at most 1 (server.csv)")
    assert prompts.startswith("mine: 60 of 60 prompts are outside 100 to 127 tokens")
    page = folder / "fleet.html"
    where = ("--fleet", str(folder / "fitted.yaml"), "--planner", "plan,edf", "--report", str(page))
    assert headgate("simulate", str(folder / "light.csv"), *where) == 0
    assert capsys.readouterr().err.count("note: mine: 60 of 60") == 1
    shown = page.read_text()
    assert shown.count("60 of 60 prompts are outside") == 1
    assert "Engines: mine, fitted to server.csv." in shown
    assert "outside_fit" not in run(folder, capsys, "light.csv")
