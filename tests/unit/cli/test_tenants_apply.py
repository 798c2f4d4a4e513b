"""`headgate tenants apply FILE` shows a difference and makes it; `audit` lists what was made, and by whom."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from headgate.serve.folder import DataFolder
from tests.unit.cli.command import headgate
from tests.unit.cli.gate_log import make_folder

Output = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data").path


def apply(data: Path, text: str, *options: str) -> int:
    file = data.parent / "tenants.yaml"
    file.write_text(text)
    return headgate("tenants", "apply", str(file), "--data", str(data), *options)


def applied(capsys: Output, data: Path, text: str, *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert apply(data, text, "--json", *options) == 0
    return dict(json.loads(capsys.readouterr().out))


def stored(capsys: Output, data: Path) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert headgate("tenants", "list", "--json", "--data", str(data)) == 0
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["tenants"]}


def test_a_file_is_applied_and_then_changes_nothing(capsys: Output, data: Path) -> None:
    first = "tenants:\n  a: {weight: 2, models: [m]}\n  b: {rate_per_s: 10, burst: 5}\n"
    made = applied(capsys, data, first, "--yes")
    assert set(made["created"]) == set(made["api_keys"]) == {"a", "b"}
    again = applied(capsys, data, first)
    assert (again["created"], again["changed"], again["api_keys"]) == ({}, {}, {})
    changed = applied(capsys, data, "tenants:\n  a: {weight: 3, models: [m]}\n", "--yes")
    assert changed["changed"] == {"a": {"weight": {"before": 2.0, "after": 3.0}}}
    assert changed["others"] == ["b"]
    now = stored(capsys, data)
    assert (now["a"]["terms"]["weight"], now["a"]["models"]) == (3.0, ["m"])
    assert now["b"]["terms"]["rate_per_s"] == 10.0


def test_what_the_file_leaves_out_gets_its_default(capsys: Output, data: Path) -> None:
    applied(capsys, data, "tenants:\n  a: {tier: premium, queue_max: 5, models: [m]}\n", "--yes")
    changed = applied(capsys, data, "tenants:\n  a: {}\n", "--yes")["changed"]["a"]
    assert set(changed) == {"tier", "queue_max", "models"}
    assert (stored(capsys, data)["a"]["tier"], stored(capsys, data)["a"]["models"]) == ("standard", None)


def test_a_tenant_may_have_a_class_that_only_the_server_has(capsys: Output, data: Path) -> None:
    """As with `headgate serve --fleet`, where the fleet's file has the classes."""
    text = "tenants:\n  a: {slo_class: soon}\n"
    assert apply(data, text, "--yes") == 2
    assert "there are: none" in capsys.readouterr().err
    DataFolder(data).keep_settings({"HEADGATE_ORDER": "bwfq", "HEADGATE_SLO_CLASSES": '{"soon": {"first_token_s": 5}}'})
    assert set(applied(capsys, data, text, "--yes")["created"]) == {"a"}
    assert stored(capsys, data)["a"]["slo_class"] == "soon"


def test_the_difference_is_printed_and_a_dry_run_changes_nothing(capsys: Output, data: Path) -> None:
    applied(capsys, data, "tenants:\n  a: {weight: 2}\n  c: {}\n", "--yes")
    assert apply(data, "tenants:\n  a: {weight: 1}\n  b: {tier: premium}\n", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "~ a: weight 2.0 → 1.0" in out
    assert "+ b: weight 1.0, tier premium" in out
    assert "left as they are: c" in out
    assert set(stored(capsys, data)) == {"a", "c"}


def test_without_a_terminal_nothing_is_changed_unless_yes(capsys: Output, data: Path) -> None:
    assert apply(data, "tenants:\n  a: {}\n") == 2
    assert "--yes" in capsys.readouterr().err
    assert stored(capsys, data) == {}


def test_a_wrong_file_is_refused_with_its_place(capsys: Output, data: Path) -> None:
    assert apply(data, "tenants:\n  a: {wieght: 2}\n", "--yes") == 2
    assert "wieght" in capsys.readouterr().err


def test_the_audit_names_actor_action_and_change(capsys: Output, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    applied(capsys, data, "tenants:\n  a: {}\n  b: {}\n", "--yes")
    key = applied(capsys, data, "tenants:\n  a: {weight: 4}\n  c: {}\n", "--yes")["api_keys"]["c"]
    assert headgate("tenants", "audit", "a", "--json", "--data", str(data)) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["action"] for record in records] == ["tenant.create", "key.create", "tenant.change"]
    assert all(record["actor"].startswith(f"local:{getpass.getuser()}@") for record in records)
    assert (records[-1]["before"]["weight"], records[-1]["after"]["weight"]) == (1.0, 4.0)
    assert headgate("tenants", "audit", "--data", str(data)) == 0
    shown = capsys.readouterr().out
    assert "weight: 1.0 → 4.0" in shown
    assert key not in shown
    assert headgate("tenants", "audit", "--month", "2026-13", "--data", str(data)) == 2
    assert "2026-11" in capsys.readouterr().err
