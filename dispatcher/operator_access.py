"""The access of a front to the operator's page: its token, and what reads the pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher.model.errors import ConfigurationError
from dispatcher.operations.context import Context
from dispatcher.settings.config import Config, load_config

if TYPE_CHECKING:
    from dispatcher.monitor.console import Console

TOKEN_CHARS_MIN = 32
"""A random token of this length cannot be guessed, so wrong ones need no limit."""


@dataclass(frozen=True, slots=True)
class OperatorAccess:
    """`token` opens the operator's page, and the console of each pool reads what it shows of the pool."""

    token: bytes
    consoles: Mapping[str, Console]
    """The consoles by pool, in the order of the configuration."""


def make_operator(context: Context, config: Config | None = None) -> OperatorAccess | None:
    """Return the access to the operator's page of a front; None without a token. `config` None: read it from the
    environment. Raises ConfigurationError."""
    config = config or load_config()
    token = _token(config)
    if not token:
        return None
    if len(token) < TOKEN_CHARS_MIN:
        raise ConfigurationError(
            f"HEADGATE_OPERATOR_TOKEN must have at least {TOKEN_CHARS_MIN} characters; `openssl rand -hex 24` makes one"
        )
    from dispatcher.monitor.console import Console  # here: only a front with the page reads the log
    from dispatcher.monitor.follower import open_follower

    tenant_named = context.directory.tenant_of_identity
    consoles = {
        each.pool: Console(
            open_follower(context.store, each, context.clock), context.store, tenant_named, context.clock
        )
        for each in config.each_pool()
    }
    return OperatorAccess(token.encode(), consoles)


def _token(config: Config) -> str:
    """Return the token; empty if the configuration has none."""
    if config.operator_token or not config.operator_token_arn:
        return config.operator_token
    import boto3

    secrets = boto3.client("secretsmanager")
    return str(secrets.get_secret_value(SecretId=config.operator_token_arn)["SecretString"])
