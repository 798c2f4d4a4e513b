"""Where a process gets the fleet's secrets from: its environment, or Secrets Manager, which it asks again each hour."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import cache

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.settings.config import Config

_READ_AGAIN_S = 3600.0

logger = logging.getLogger(__name__)


def fleet_secrets(config: Config) -> FleetSecrets:
    """Return the secrets that sign orders and connections. Raises ConfigurationError.

    If they are in Secrets Manager, a thread reads them again every _READ_AGAIN_S seconds, so that they can be rotated
    while the process runs.
    """
    if config.worker_secret:
        return _parse_secrets(config.worker_secret, "HEADGATE_WORKER_SECRET")
    if not config.worker_secret_arn:
        raise ConfigurationError("set HEADGATE_WORKER_SECRET, or HEADGATE_WORKER_SECRET_ARN to a secret's name")
    return _managed_secrets(config.worker_secret_arn)


def read_again(secrets: FleetSecrets, read: Callable[[], str]) -> None:
    """Replace `secrets` by what `read` returns. On any error keep them and log the error."""
    try:
        secrets.replace(read())
    except Exception as error:  # boto3 has many; the process works with the secrets that it has
        logger.warning("The fleet's secrets could not be read again: %s.", type(error).__name__)


@cache
def _managed_secrets(name: str) -> FleetSecrets:
    """Return the secrets that Secrets Manager has under this name: the same object for all parts of the process."""
    read = _reader(name)
    secrets = _parse_secrets(read(), f"the secret {name}")
    threading.Thread(target=_follow, args=(secrets, read), name="fleet-secrets", daemon=True).start()
    return secrets


def _parse_secrets(text: str, name: str) -> FleetSecrets:
    try:
        return FleetSecrets(text)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def _reader(name: str) -> Callable[[], str]:
    import boto3

    client = boto3.client("secretsmanager")
    return lambda: str(client.get_secret_value(SecretId=name)["SecretString"])


def _follow(secrets: FleetSecrets, read: Callable[[], str]) -> None:
    while True:
        time.sleep(_READ_AGAIN_S)
        read_again(secrets, read)
