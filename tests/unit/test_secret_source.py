"""The fleet's secrets come from the environment or from Secrets Manager, and can be rotated while a process runs."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.processes import secret_source
from dispatcher.processes.secret_source import fleet_secrets, read_again
from dispatcher.settings.config import load_config

A, B = "the secret until now", "the secret from now on"


@pytest.fixture
def in_aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    secret_source._managed_secrets.cache_clear()
    with mock_aws():
        yield
    secret_source._managed_secrets.cache_clear()


@pytest.mark.parametrize("text", ["", "short", f"{A},short", f"{A},", f"{A},{B},{A}"])
def test_a_text_that_is_not_one_or_two_long_secrets_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"characters|at most 2"):
        FleetSecrets(text)


def test_no_secret_is_shown() -> None:
    secrets = FleetSecrets(f"{A},{B}")
    assert A not in f"{secrets!r} {secrets}"


def test_the_environment_names_the_variable_that_is_wrong() -> None:
    with pytest.raises(ConfigurationError, match="HEADGATE_WORKER_SECRET: each secret"):
        fleet_secrets(load_config({"HEADGATE_WORKER_SECRET": "short"}))
    with pytest.raises(ConfigurationError, match="set HEADGATE_WORKER_SECRET"):
        fleet_secrets(load_config({}))


def test_a_running_process_reads_a_rotated_secret(in_aws: None) -> None:
    client = boto3.client("secretsmanager")
    client.create_secret(Name="fleet", SecretString=A)
    config = load_config({"HEADGATE_WORKER_SECRET_ARN": "fleet"})
    secrets = fleet_secrets(config)
    assert fleet_secrets(config) is secrets, "all parts of a process have the same secrets"
    assert list(secrets) == [A.encode()]
    read = secret_source._reader("fleet")
    for text, expected in [(f"{A},{B}", [A, B]), (f"{B},{A}", [B, A]), ("broken", [B, A]), (B, [B])]:
        client.put_secret_value(SecretId="fleet", SecretString=text)
        read_again(secrets, read)
        assert [secret.decode() for secret in secrets] == expected


def test_a_failed_read_keeps_the_secrets(in_aws: None, caplog: pytest.LogCaptureFixture) -> None:
    secrets = FleetSecrets(A)
    read_again(secrets, secret_source._reader("absent"))
    assert list(secrets) == [A.encode()]
    assert "could not be read again" in caplog.text
    assert A not in caplog.text
