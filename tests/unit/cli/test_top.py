"""`headgate top` and `headgate usage` on the log of a data folder: exact counts, stable keys, one line for mistakes."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.usage import HOUR_S
from dispatcher.monitor.follower import LogFollower
from dispatcher.processes.bootstrap import RealClock
from dispatcher.shard.settings import ShardSettings
from headgate.cli.gate import _stream
from headgate.cli.usage import _hours
from headgate.serve.folder import DataFolder
from tests.support.world.memory_store import MemoryStore
from tests.unit.cli.command import headgate
from tests.unit.cli.gate_log import FIRST_TOKEN_S, SLOTS, make_folder, write_history

Output = pytest.CaptureFixture[str]
TENANT_KEYS = {
    "tenant", "identity", "tier", "weight", "guarantee_per_s", "burst", "waiting", "running", "reserved", "spent",
    "credit", "clocks", "share", "service_per_s", "wait_p50_s", "wait_p99_s", "first_token_p50_s", "first_token_p99_s",
}  # fmt: skip
TOP_KEYS = {"at", "position", "leader", "epoch", "capacity_per_s", "guaranteed_per_s", "tenants", "workers"}


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return make_folder(tmp_path / "data")


def output(capsys: Output, *arguments: str) -> dict[str, Any]:
    assert headgate(*arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def top(capsys: Output, folder: DataFolder) -> dict[str, Any]:
    return output(capsys, "top", "--once", "--json", "--data", str(folder.path))


def usage(capsys: Output, folder: DataFolder, *options: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = output(capsys, "usage", "--json", "--data", str(folder.path), *options)["usage"]
    return rows


class AwayOnce(LogFollower):
    """A follower of an empty log that does not answer the first time; the third reading ends the test."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(RealClock()).log("default"), ShardSettings(), RealClock(), "default")
        self._readings = 0

    async def catch_up(self) -> None:
        self._readings += 1
        if self._readings == 1:
            raise StoreUnavailable()
        if self._readings == 3:
            raise asyncio.CancelledError


class TestTop:
    def test_a_stream_goes_on_when_the_store_is_back(self, capsys: Output) -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(_stream([AwayOnce()], RealClock(), 0.0))
        printed = capsys.readouterr()
        assert set(json.loads(printed.out)) == TOP_KEYS
        assert printed.err == "headgate: not up to date: The tenant store cannot be reached.\n"

    def test_a_data_folder_does_not_depend_on_variables(
        self, capsys: Output, folder: DataFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are for a gate on AWS: the log of its pool would be empty in this folder."""
        write_history(folder)
        monkeypatch.setenv("HEADGATE_POOL", "production")
        assert len(top(capsys, folder)["workers"]) == 1

    def test_tenants_and_workers_as_the_log_has_them(self, capsys: Output, folder: DataFolder) -> None:
        """The call that runs costs more than its tenant earns in the longest time that this test may take."""
        write_history(folder, cost=1e6)
        found = top(capsys, folder)
        assert set(found) == TOP_KEYS
        a, b = found["tenants"]
        assert set(a) == TENANT_KEYS
        assert (a["tenant"], a["waiting"], a["running"], a["spent"]) == ("a", 1, 1, 18.0)
        assert (b["tenant"], b["waiting"], b["running"], b["tier"]) == ("b", 0, 1, "premium")
        assert (a["share"], b["share"]) == (1.0, 0.0)
        assert a["first_token_p99_s"] == pytest.approx(a["wait_p99_s"] + FIRST_TOKEN_S)
        assert a["credit"] is not None
        assert a["credit"] < 0.0
        assert b["credit"] is None
        (worker,) = found["workers"]
        assert (worker["worker"], worker["running"], worker["slots"], worker["state"]) == ("w-1", 2, SLOTS, "serving")
        assert (found["capacity_per_s"], found["guaranteed_per_s"], found["leader"]) == (90.0, 50.0, None)

    def test_an_empty_log(self, capsys: Output, folder: DataFolder) -> None:
        found = top(capsys, folder)
        assert (found["position"], found["tenants"], found["workers"]) == (0, [], [])

    def test_for_people(self, capsys: Output, folder: DataFolder) -> None:
        write_history(folder)
        assert headgate("top", "--once", "--data", str(folder.path)) == 0
        shown = capsys.readouterr().out
        assert "log position" in shown
        assert "w-1" in shown
        assert "…" not in shown, "eighty columns hold it"
        assert headgate("top", "--once", "--data", str(make_folder(folder.path / "other").path)) == 0
        assert "The log is empty" in capsys.readouterr().out


class TestUsage:
    def test_exact_to_the_token(self, capsys: Output, folder: DataFolder) -> None:
        hours = [_hour()]
        write_history(folder)
        hours.append(_hour())
        (row,) = usage(capsys, folder)
        counts = {"requests", "input_tokens", "cached_tokens", "output_tokens", "service"}
        assert set(row) == {"hour", "tenant", "identity", "application"} | counts
        assert [row[key] for key in ("tenant", "application", "requests")] == ["a", "chat", 1]
        assert [row[key] for key in ("input_tokens", "output_tokens", "service")] == [10, 4, 18.0]
        assert row["hour"] in hours
        assert usage(capsys, folder, "--tenant", "a") == [row]
        assert usage(capsys, folder, "--tenant", "b") == []

    def test_csv(self, capsys: Output, folder: DataFolder) -> None:
        write_history(folder)
        assert headgate("usage", "--csv", "--data", str(folder.path)) == 0
        (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert (row["tenant"], row["input_tokens"], row["output_tokens"]) == ("a", "10", "4")

    def test_for_people(self, capsys: Output, folder: DataFolder) -> None:
        write_history(folder)
        assert headgate("usage", "--data", str(folder.path)) == 0
        assert "total" in capsys.readouterr().out

    def test_a_span_without_calls(self, capsys: Output, folder: DataFolder) -> None:
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        write_history(folder)
        assert usage(capsys, folder, "--from", "2020-01-01", "--to", "2020-01-02") == []
        assert len(usage(capsys, folder, "--from", today)) == 1

    def test_only_hours_that_can_have_usage_are_read(self, capsys: Output, folder: DataFolder) -> None:
        """DynamoDB has a partition for each day: the span of this command has 3,652,059."""
        now = datetime.now(UTC).timestamp()
        first, last = _hours("0001-01-01", "9999-12-31", now)
        assert (last - first) / 24 < 402
        assert first * HOUR_S <= now < last * HOUR_S
        write_history(folder)
        assert len(usage(capsys, folder, "--from", "0001-01-01", "--to", "9999-12-31")) == 1
        assert usage(capsys, folder, "--from", "0001-01-01", "--to", "0001-01-02") == []

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (("--from", "soon"), "soon"),
            (("--from", "2026-02-30"), "2026-02-30"),
            (("--from", "2026-11-22", "--to", "2026-11-21"), "before"),
            (("--csv", "--json"), "--csv"),
        ],
    )
    def test_mistakes(self, capsys: Output, folder: DataFolder, options: tuple[str, ...], expected: str) -> None:
        assert headgate("usage", "--data", str(folder.path), *options) == 2
        ended = capsys.readouterr()
        assert (ended.out, ended.err.count("\n")) == ("", 1)
        assert expected in ended.err


@pytest.mark.parametrize("command", [("top", "--once"), ("usage",), ("tenants", "list"), ("tenants", "show", "a")])
def test_a_folder_without_a_database(capsys: Output, tmp_path: Path, command: tuple[str, ...]) -> None:
    assert headgate(*command, "--data", str(tmp_path)) == 2
    ended = capsys.readouterr()
    assert (ended.out, ended.err.count("\n")) == ("", 1)
    assert "headgate serve --data" in ended.err
    assert list(tmp_path.iterdir()) == []


def _hour() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:00:00Z")


def test_a_damaged_database_is_one_line_with_the_reason(folder: DataFolder) -> None:
    """In a process of its own: without pytest's handlers, the store's log line would be a second line."""
    with closing(sqlite3.connect(folder.database)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = folder.database.read_bytes()
    folder.database.write_bytes(data[:8192] + b"\xff" * (len(data) - 8192))
    command = [sys.executable, "-m", "headgate.cli", "top", "--once", "--data", str(folder.path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "database disk image is malformed" in ended.stderr
