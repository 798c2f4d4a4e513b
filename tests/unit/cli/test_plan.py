"""`headgate plan` on the log of a data folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatcher.model.commands import Plan
from dispatcher.model.fleet import GroupPlan, WorkerPlan
from dispatcher.model.shards import shard_name
from dispatcher.processes.bootstrap import RealClock
from headgate.serve.folder import DataFolder
from tests.support.world.lone_shard import swap_report
from tests.unit.cli.command import headgate
from tests.unit.cli.gate_log import accept, make_folder, write, write_history

Output = pytest.CaptureFixture[str]
SWAPS = {"m": 2.0, "n": 3.0}


def written(path: Path) -> DataFolder:
    """Make a folder with a plan: w-1 should exchange its model, on which a call waits, and w-2 drains."""
    folder, now = make_folder(path), RealClock().now()
    group = GroupPlan("a", "n", "normal", 0, 7, now - 5.0, now + 5.0, True)
    write(
        folder.database,
        swap_report("w-1", "m", SWAPS),
        swap_report("w-2", "m", SWAPS, draining=True),
        accept(1, "a", model="n"),
        Plan(now, (WorkerPlan("w-1", "n", (0,)), WorkerPlan("w-2", "m", ())), (group,)),
    )
    return folder


def test_the_plan_as_json(tmp_path: Path, capsys: Output) -> None:
    folder = written(tmp_path / "data")
    assert headgate("plan", "--json", "--data", str(folder.path)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["is_fresh"]
    assert found["late_requests"] == 7
    assert [(each["model"], each["waiting"], each["loaded_on"]) for each in found["models"]] == [
        ("m", 0, ["w-1", "w-2"]),
        ("n", 1, []),
    ]
    first, second = found["workers"]
    assert (first["worker"], first["model"], first["planned"], first["order"]) == ("w-1", "m", "n", [0])
    assert first["swap_s"]["n"] == 3.0
    assert (second["state"], second["planned"], second["ordered"]) == ("draining", "m", None)
    (group,) = found["groups"]
    assert (group["tenant"], group["model"], group["requests"], group["late_s"]) == ("a", "n", 7, 10.0)
    assert found["workers_needed"] == 1


def test_the_plan_as_a_page(tmp_path: Path, capsys: Output) -> None:
    folder = written(tmp_path / "data")
    assert headgate("plan", "--data", str(folder.path)) == 0
    page = capsys.readouterr().out
    assert "7 requests late" in page
    assert "workers: 2, needed: 1" in page


def test_a_fleet_of_one_model_has_no_plan(tmp_path: Path, capsys: Output) -> None:
    folder = make_folder(tmp_path / "data")
    write_history(folder)
    assert headgate("plan", "--json", "--data", str(folder.path)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"] is None
    assert found["groups"] == []
    assert [(each["model"], each["waiting"]) for each in found["models"]] == [("m", 1)]


def test_an_empty_log_has_a_page(tmp_path: Path, capsys: Output) -> None:
    folder = make_folder(tmp_path / "data")
    assert headgate("plan", "--data", str(folder.path)) == 0
    assert "plan: none" in capsys.readouterr().out


def test_each_shard_of_a_pool_has_a_plan(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "data")
    write(folder.database, swap_report("w-1", "other", {"other": 1.0}), pool=shard_name("default", 1))
    monkeypatch.setenv("HEADGATE_SHARDS", "2")
    monkeypatch.setenv("HEADGATE_STORE", folder.store)
    assert headgate("plan", "--json") == 0
    found = list(map(json.loads, capsys.readouterr().out.splitlines()))
    models = {each["shard"]: [model["model"] for model in each["models"]] for each in found}
    assert models == {"default": ["m", "n"], "default~1": ["other"]}
    assert headgate("plan") == 0
    assert "shard default~1" in capsys.readouterr().out
