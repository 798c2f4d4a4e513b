"""The benchmark runs and says what it promises; its figures are for reading, not for passing."""

from __future__ import annotations

import gc
import json
import sys
from itertools import product

import pytest

from benchmarks import bwfq_decision


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # it steadies figures, and takes long beside other tests
    monkeypatch.setattr(bwfq_decision, "MEMORY_TENANTS", 500)
    monkeypatch.setattr(bwfq_decision, "ROUNDS", 5)
    monkeypatch.setattr(sys, "argv", ["bwfq_decision", *arguments])
    return bwfq_decision.main()


def test_json_has_a_row_for_each_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--sizes", "10", "50", "--decisions", "400", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["tenants"], row["way"]) for row in report["rows"]] == list(
        product([10, 50], ["order", "fcfs", "bwfq"])
    )
    assert all(row["ratio"] == row["mean_us"] / row["bare_mean_us"] for row in report["rows"])
    assert min(report["bytes_per_waiting_tenant"], report["bytes_per_tenant"]) > report["paper"]["bytes_per_tenant"]


@pytest.mark.parametrize("arguments", [("--sizes", "0"), ("--sizes", "many"), ("--decisions", "1")])
def test_sizes_that_are_none_are_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(monkeypatch, *arguments)
    assert left.value.code == 2
    assert "error:" in capsys.readouterr().err
