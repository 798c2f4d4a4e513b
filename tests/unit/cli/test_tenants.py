"""`headgate tenants` against a served stand-in for DynamoDB, from creation to deletion."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import boto3
import pytest

from dispatcher.stores.dynamodb.store import create_table
from tests.support.local.aws import moto_server
from tests.unit.cli.command import headgate
from tests.unit.cli.gate_log import add_older_tenant, make_folder, write_history

JSON_KEYS = {
    "name", "identity", "line", "terms", "tier", "models", "queue_items_max", "max_tokens_max", "version", "keys",
    "now", "slo_class", "adapters", "prefix_group",
}  # fmt: skip
"""Of `tenants show --json`: a public face, whatever the fields of the class are called."""
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def endpoint_url() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(autouse=True)
def table(endpoint_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An empty table for each test, named by environment variables, as an operator names it."""
    name = f"headgate-{request.node.name[:60].replace('[', '-').replace(']', '')}"
    variables = {"AWS_ENDPOINT_URL": endpoint_url, "AWS_DEFAULT_REGION": "us-east-1", "HEADGATE_TABLE": name}
    for variable, value in {**variables, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}.items():
        monkeypatch.setenv(variable, value)
    create_table(boto3.client("dynamodb"), name)
    return name


def output(capsys: Output, *arguments: str) -> dict[str, object]:
    """Run a command with --json and return the object that it prints. Standard output holds nothing else."""
    assert headgate("tenants", *arguments, "--json") == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_tenants_life(capsys: Output) -> None:
    created = output(capsys, "create", "acme", "--rate", "100", "--burst", "50", "--model", "m", "--tier", "premium")
    first = str(created["api_key"])
    assert created["tenant"] == "acme"
    shown = output(capsys, "show", "acme")
    assert shown["terms"] == {"weight": 1.0, "rate_per_s": 100.0, "burst": 50.0}
    assert (shown["tier"], shown["models"], shown["now"]) == ("premium", ["m"], None)
    assert set(shown) == JSON_KEYS
    assert first not in json.dumps(shown)

    changed = output(capsys, "set", "acme", "--weight", "2", "--prefix-group", "partners")
    assert (shown["prefix_group"], changed["prefix_group"]) == ("", "partners")
    assert changed["terms"] == {"weight": 2.0, "rate_per_s": 100.0, "burst": 50.0}
    assert (changed["tier"], changed["version"]) == ("premium", int(str(shown["version"])) + 1)

    second = str(output(capsys, "rotate-key", "acme")["api_key"])
    third = str(output(capsys, "rotate-key", "acme")["api_key"])
    valid = output(capsys, "show", "acme")["keys"]
    assert isinstance(valid, list)
    assert {key for key in (first, second, third) if key.startswith(tuple(valid))} == {second, third}

    listed = output(capsys, "list")["tenants"]
    assert isinstance(listed, list)
    assert [tenant["name"] for tenant in listed] == ["acme"]
    deleted = {"tenant": "acme", "deleted": True, "identity": shown["identity"], "erased": True}
    assert output(capsys, "delete", "acme") == deleted
    assert output(capsys, "list") == {"tenants": []}


def test_keys_expire_and_are_revoked_one_by_one(capsys: Output) -> None:
    first = str(output(capsys, "create", "acme")["api_key"])
    other = str(output(capsys, "create", "other")["api_key"])
    second = str(output(capsys, "rotate-key", "acme", "--expires-in", "90d")["api_key"])
    listed = cast("list[dict[str, Any]]", output(capsys, "keys", "acme")["keys"])
    assert [first.startswith(listed[0]["prefix"]), second.startswith(listed[1]["prefix"])] == [True, True]
    assert [key["expires_at"] and round(key["expires_at"] - key["created_at"]) for key in listed] == [None, 90 * 86_400]
    assert first not in json.dumps(listed)

    theirs = cast("list[dict[str, Any]]", output(capsys, "keys", "other")["keys"])[0]["prefix"]
    assert other.startswith(theirs)
    said = []
    for prefix in (theirs, "hg-absent"):
        assert headgate("tenants", "revoke-key", "acme", prefix) == 2
        said.append(capsys.readouterr().err.replace(prefix, "PREFIX"))
    assert said[0] == said[1], "another tenant's key looks like one that does not exist"

    assert output(capsys, "revoke-key", "acme", listed[0]["prefix"])["revoked"] == listed[0]["prefix"]
    assert output(capsys, "keys", "acme")["keys"] == [listed[1]]
    assert headgate("tenants", "keys", "acme") == 0
    assert f"{listed[1]['prefix']}…" in capsys.readouterr().out


def test_for_people(capsys: Output) -> None:
    assert headgate("tenants", "create", "acme") == 0
    assert capsys.readouterr().out.startswith("acme: hg-")
    assert headgate("tenants", "show", "acme") == 0
    shown = capsys.readouterr().out.splitlines()
    assert {"name: acme", "weight: 1.0", "models: all", "now: idle"} <= set(shown)
    assert headgate("tenants", "list") == 0
    assert "acme" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("show", "absent"), "no tenant 'absent'"),
        (("set", "absent", "--weight", "1"), "no tenant 'absent'"),
        (("rotate-key", "absent"), "no tenant 'absent'"),
        (("delete", "absent"), "no tenant 'absent'"),
        (("keys", "absent"), "no tenant 'absent'"),
        (("revoke-key", "absent", "hg-x"), "no tenant 'absent'"),
        (("rotate-key", "absent", "--expires-in", "90"), "--expires-in"),
        (("rotate-key", "absent", "--expires-in", "9999999d"), "--expires-in"),
        (("rotate-key", "absent", "--expires-in", "0d"), "--expires-in"),
        (("create", "a", "--weight", "nan"), "weight"),
        (("create", "a", "--prefix-group", "a b"), "--prefix-group: a group has up to 64 of A-Z a-z 0-9"),
        (("create", "a", "--weight", "1e-306"), "weight should be a number from 0.01 to 100, not 1e-306"),
        (("create", "a", "--weight", "101"), "weight should be a number from 0.01 to 100, not 101.0"),
        (("create", "a", "--rate", "1e-308"), "rate_per_s should be 0 or a number from 0.001 to 1e+07, not 1e-308"),
        (("create", "a", "--burst", "1e13"), "burst should be a number from 0 to 1e+12"),
        (("create", "a", "--rate", "inf"), "rate_per_s"),
        (("create", "a", "--burst", "-1"), "burst"),
        (("create", "a", "--queue-max", "-1"), "--queue-max"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(capsys: Output, arguments: tuple[str, ...], expected: str) -> None:
    assert headgate("tenants", *arguments) == 2
    ended = capsys.readouterr()
    assert (ended.out, ended.err.count("\n")) == ("", 1)
    assert expected in ended.err
    assert output(capsys, "list") == {"tenants": []}


def test_a_name_can_be_used_again_and_names_another_tenant(capsys: Output) -> None:
    first = output(capsys, "create", "acme", "--weight", "3")
    identity = str(output(capsys, "show", "acme")["identity"])
    assert identity.startswith("acme.")
    assert output(capsys, "show", identity) == output(capsys, "show", "acme")
    assert headgate("tenants", "delete", "acme") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{identity}: deleted. The name can be used again")
    said = "\n".join(lines)
    for what in ("keys: refused within 60 s", "end within 30 s", "tenant_deleted (403)", "running requests: end whole",
                 "files and batches are deleted", "24 h", "kept for 400 days", "never deleted"):  # fmt: skip
        assert what in said
    second = output(capsys, "create", "acme")
    assert second["api_key"] != first["api_key"]
    shown = output(capsys, "show", "acme")
    assert shown["identity"] != identity
    assert cast("dict[str, Any]", shown["terms"])["weight"] == 1.0
    assert headgate("tenants", "show", identity) == 2
    assert f"no tenant '{identity}'" in capsys.readouterr().err
    records = cast("list[dict[str, Any]]", output(capsys, "audit", "acme")["records"])
    assert [each["action"] for each in records].count("tenant.create") == 2
    assert {each["tenant"] for each in records} == {identity, shown["identity"]}
    own = cast("list[dict[str, Any]]", output(capsys, "audit", identity)["records"])
    assert [each["action"] for each in own] == ["tenant.create", "key.create", "tenant.delete"]


@pytest.mark.parametrize("name", ["acme.1", "acme.", ".x", "acme~1"])
def test_no_name_looks_like_an_identity(capsys: Output, name: str) -> None:
    assert headgate("tenants", "create", name) == 2
    assert "a-z, 0-9 and -" in capsys.readouterr().err


def test_the_same_name_twice(capsys: Output) -> None:
    first = output(capsys, "create", "acme", "--weight", "3")
    assert headgate("tenants", "create", "acme") == 2
    assert "already" in capsys.readouterr().err
    shown = output(capsys, "show", "acme")
    assert shown["terms"] == {"weight": 3.0, "rate_per_s": 0.0, "burst": 0.0}
    assert str(first["api_key"]).startswith(str(shown["keys"][0]))  # type: ignore[index]


def test_a_table_that_is_not_there(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_TABLE", "headgate-elsewhere")
    assert headgate("tenants", "list") == 2
    error = capsys.readouterr().err
    assert "'headgate-elsewhere'" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("variable", "value", "expected"), [("AWS_ENDPOINT_URL", "foo", "foo")])
def test_variables_that_lead_nowhere(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert headgate("tenants", "list") == 2
    assert expected in capsys.readouterr().err


class TestDataFolder:
    """`--data`: the folder of `headgate serve`."""

    def test_a_tenants_state_is_live(self, capsys: Output, tmp_path: Path) -> None:
        folder = make_folder(tmp_path)
        data = ("--data", str(tmp_path))
        assert set(output(capsys, "create", "new", "--rate", "50", "--burst", "100", *data)) == {"tenant", "api_key"}
        add_older_tenant(folder.database, "a")
        write_history(folder)
        now = output(capsys, "show", "a", *data)["now"]
        assert isinstance(now, dict)
        assert (now["waiting"], now["running"], now["spent"], now["reserved"]) == (1, 1, 18.0, 20.0)
        assert len(now["clocks"]) == 2
        assert headgate("tenants", "show", "a", *data) == 0
        assert {"waiting: 1", "running: 1", "spent: 18.0"} <= set(capsys.readouterr().out.splitlines())

    def test_overbooking_is_measured_against_the_workers_of_the_log(self, capsys: Output, tmp_path: Path) -> None:
        write_history(make_folder(tmp_path))
        assert headgate("tenants", "create", "big", "--rate", "100", "--data", str(tmp_path)) == 0
        assert "100 service units per second, the workers serve 90" in capsys.readouterr().err

    def test_a_key_is_shown_although_the_log_cannot_be_read(self, capsys: Output, tmp_path: Path) -> None:
        """It is shown only once. The log is read for the warning about overbooking alone."""
        folder = make_folder(tmp_path)
        write_history(folder)
        with closing(sqlite3.connect(folder.database, isolation_level=None)) as database:
            database.execute("DELETE FROM log WHERE position = 2")
        data = ("--data", str(tmp_path))
        assert headgate("tenants", "create", "new", *data) == 0
        created = capsys.readouterr()
        assert created.out.startswith("new: hg-")
        assert "the change was made, but the capacity" in created.err
        assert created.err.count("\n") == 1
        assert headgate("tenants", "set", "new", "--weight", "2", *data) == 0
        assert "new: changed" in capsys.readouterr().out
