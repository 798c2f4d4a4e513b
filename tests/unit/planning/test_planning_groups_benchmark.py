"""The benchmark of groups and entitlement runs; its figures are for reading, not for passing."""

from __future__ import annotations

import gc
import json
import sys

import pytest

from benchmarks import planning_groups


def test_json_has_a_row_for_each_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(planning_groups, "REQUESTS", 200)
    monkeypatch.setattr(planning_groups, "ROUNDS", 1)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # it steadies figures, and takes long beside other tests
    monkeypatch.setattr(sys, "argv", ["planning_groups", "--sizes", "2", "20", "--json"])
    assert planning_groups.main() == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["tenants"] for row in rows] == [2, 20]
    assert all(value > 0 for row in rows for value in row.values())


def test_a_size_of_zero_is_bad_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["planning_groups", "--sizes", "0"])
    with pytest.raises(SystemExit) as left:
        planning_groups.main()
    assert left.value.code == 2
    assert "sizes must be at least 1" in capsys.readouterr().err
