"""Commands over a store with the logs of two pools: those that take one, and those that go through all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.model.commands import End, Report
from tests.unit.cli.command import headgate
from tests.unit.cli.gate_log import WRITER, accept, add_older_tenant, write

Output = pytest.CaptureFixture[str]
MODELS = {"chat": "m", "code": "n"}
CAPACITY_PER_S = {"chat": 90.0, "code": 10.0}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each pool's log are a worker, and a call of the tenant acme that ended (10 input, 4 output tokens)."""
    for pool, model in MODELS.items():
        write(
            tmp_path / "headgate.sqlite",
            Report(f"w-{pool}", f"http://{pool}", model, 2, 4096, 4.0, CAPACITY_PER_S[pool], False, 0.1, 0, ()),
            accept(1, "acme", model=model),
            End(f"{WRITER}-1", 1, "done", 10, 4, "acme", "", 0.25),
            pool=pool,
        )
    monkeypatch.setenv("HEADGATE_STORE", f"sqlite:{tmp_path}/headgate.sqlite")
    monkeypatch.setenv("HEADGATE_POOLS", json.dumps({name: {"models": [model]} for name, model in MODELS.items()}))
    monkeypatch.setenv("HEADGATE_WORKER_SECRET", "s" * 16)


def printed(capsys: Output, *arguments: str) -> dict[str, Any]:
    assert headgate(*arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_top_and_plan_take_the_pool(capsys: Output) -> None:
    for pool, model in MODELS.items():
        top = printed(capsys, "top", "--once", "--pool", pool)
        assert [worker["worker"] for worker in top["workers"]] == [f"w-{pool}"]
        plan = printed(capsys, "plan", "--pool", pool)
        assert [each["model"] for each in plan["models"]] == [model]


@pytest.mark.parametrize("command", [("top", "--once"), ("plan",)])
def test_without_a_pool_they_name_the_pools(capsys: Output, command: tuple[str, ...]) -> None:
    assert headgate(*command) != 0
    assert "there are several pools: name one of chat, code (--pool, or HEADGATE_POOL)" in capsys.readouterr().err
    assert headgate(*command, "--pool", "none") != 0
    assert "there is no pool 'none': HEADGATE_POOLS has chat, code" in capsys.readouterr().err


def test_usage_adds_the_pools_up(capsys: Output) -> None:
    (row,) = printed(capsys, "usage")["usage"]
    assert (row["tenant"], row["requests"], row["input_tokens"], row["output_tokens"]) == ("acme", 2, 20, 8)


def test_a_tenant_is_shown_in_each_pool(capsys: Output, tmp_path: Path) -> None:
    add_older_tenant(tmp_path / "headgate.sqlite", "acme")
    shown = printed(capsys, "tenants", "show", "acme")
    assert {pool: now["spent"] for pool, now in shown["pools"].items()} == {"chat": 18.0, "code": 18.0}
    assert "now" not in shown
    assert headgate("tenants", "show", "acme") == 0
    assert {"spent in chat: 18.0", "spent in code: 18.0"} <= set(capsys.readouterr().out.splitlines())


def test_guarantees_are_compared_with_each_pools_workers(capsys: Output) -> None:
    """Only `code` is overbooked, and not by the guarantee of a tenant that may not use its model."""
    assert headgate("tenants", "create", "narrow", "--rate", "50", "--model", "m") == 0
    assert "overbooked" not in capsys.readouterr().err
    assert headgate("tenants", "create", "wide", "--rate", "20") == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "overbooked" in line]
    assert warning.startswith("headgate: overbooked in pool code: the guarantees add up to 20 service units per second")


def test_doctor_checks_each_pool(capsys: Output) -> None:
    assert headgate("doctor", "after", "--json") == 0
    found = {each["check"]: each["seen"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert {"log of chat", "log of code", "workers of chat", "workers of code"} <= set(found)
    assert (found["workers of chat"], found["workers of code"]) == ("1 with 2 slots; m", "1 with 2 slots; n")
