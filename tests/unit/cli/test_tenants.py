"""`headgate tenants` against a served stand-in for DynamoDB, from creation to deletion."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import boto3
import pytest

from dispatcher.stores.dynamodb.store import create_table
from headgate.local.moto.server import make_server
from tests.unit.cli.command import headgate

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def endpoint_url() -> Iterator[str]:
    server = make_server("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def table(endpoint_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An empty table for each test, named as an operator names it: by variables."""
    name = f"headgate-{request.node.name[:60].replace('[', '-').replace(']', '')}"
    variables = {"AWS_ENDPOINT_URL": endpoint_url, "AWS_DEFAULT_REGION": "us-east-1", "HEADGATE_TABLE": name}
    for variable, value in {**variables, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}.items():
        monkeypatch.setenv(variable, value)
    create_table(boto3.client("dynamodb"), name)
    return name


def told(capsys: Output, *arguments: str) -> dict[str, object]:
    """What a command says with --json; standard output holds that one object and nothing else."""
    assert headgate("tenants", *arguments, "--json") == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_tenants_life(capsys: Output) -> None:
    created = told(capsys, "create", "acme", "--rate", "100", "--burst", "50", "--model", "m", "--tier", "premium")
    first = str(created["api_key"])
    assert created["tenant"] == "acme"
    shown = told(capsys, "show", "acme")
    assert shown["share"] == {"weight": 1.0, "rate_per_s": 100.0, "burst": 50.0}
    assert (shown["tier"], shown["models"], shown["version"]) == ("premium", ["m"], 1)
    assert first not in json.dumps(shown)

    changed = told(capsys, "set", "acme", "--weight", "2")
    assert changed["share"] == {"weight": 2.0, "rate_per_s": 100.0, "burst": 50.0}
    assert (changed["tier"], changed["version"]) == ("premium", 2)

    second = str(told(capsys, "rotate-key", "acme")["api_key"])
    third = str(told(capsys, "rotate-key", "acme")["api_key"])
    valid = told(capsys, "show", "acme")["keys"]
    assert isinstance(valid, list)
    assert {key for key in (first, second, third) if key.startswith(tuple(valid))} == {second, third}

    listed = told(capsys, "list")["tenants"]
    assert isinstance(listed, list)
    assert [tenant["name"] for tenant in listed] == ["acme"]
    assert told(capsys, "delete", "acme") == {"tenant": "acme", "deleted": True}
    assert told(capsys, "list") == {"tenants": []}


def test_for_people(capsys: Output) -> None:
    assert headgate("tenants", "create", "acme") == 0
    assert capsys.readouterr().out.startswith("acme: hg-")
    assert headgate("tenants", "show", "acme") == 0
    shown = capsys.readouterr().out.splitlines()
    assert {"name: acme", "weight: 1.0", "models: all"} <= set(shown)
    assert headgate("tenants", "list") == 0
    assert "acme" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nobody"), "no tenant 'nobody'"),
        (("set", "nobody", "--weight", "1"), "no tenant 'nobody'"),
        (("rotate-key", "nobody"), "no tenant 'nobody'"),
        (("delete", "nobody"), "no tenant 'nobody'"),
        (("create", "a", "--weight", "nan"), "weight"),
        (("create", "a", "--rate", "inf"), "rate_per_s"),
        (("create", "a", "--burst", "-1"), "burst"),
        (("create", "a", "--queue-max", "-1"), "--queue-max"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(capsys: Output, arguments: tuple[str, ...], said: str) -> None:
    assert headgate("tenants", *arguments) == 2
    ended = capsys.readouterr()
    assert (ended.out, ended.err.count("\n")) == ("", 1)
    assert said in ended.err
    assert told(capsys, "list") == {"tenants": []}


def test_the_same_name_twice(capsys: Output) -> None:
    first = told(capsys, "create", "acme", "--weight", "3")
    assert headgate("tenants", "create", "acme") == 2
    assert "already" in capsys.readouterr().err
    shown = told(capsys, "show", "acme")
    assert shown["share"] == {"weight": 3.0, "rate_per_s": 0.0, "burst": 0.0}
    assert str(first["api_key"]).startswith(str(shown["keys"][0]))  # type: ignore[index]


def test_a_table_that_is_not_there(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_TABLE", "headgate-elsewhere")
    assert headgate("tenants", "list") == 2
    told = capsys.readouterr().err
    assert "'headgate-elsewhere'" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("variable", "value", "said"), [("AWS_ENDPOINT_URL", "foo", "foo")])
def test_variables_that_lead_nowhere(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert headgate("tenants", "list") == 2
    assert said in capsys.readouterr().err
