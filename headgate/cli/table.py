"""`headgate table create` makes the table of a service outside AWS, in DynamoDB Local. On AWS the stack makes it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from dispatcher.model.errors import ConfigurationError
from dispatcher.settings.config import load_config

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Create the table of a service outside AWS.")
_READ_S = 2.0


@app.callback()
def table() -> None:
    """Create the table of a service outside AWS."""


@app.command()
def create(
    wait_s: Annotated[
        float, typer.Option("--wait-s", min=0, max=600, help="Wait so long for DynamoDB to answer.")
    ] = 10.0,
) -> None:
    """Create the table that HEADGATE_TABLE names, at AWS_ENDPOINT_URL. A table that exists is left as it is."""
    from botocore.exceptions import BotoCoreError, ClientError

    from dispatcher.stores.dynamodb.store import create_table

    name = load_config().table
    try:
        client = _client(wait_s)
        if name in client.list_tables(Limit=100)["TableNames"]:
            sys.stdout.write(f"the table {name} exists\n")
            return
        create_table(client, name)
    except (BotoCoreError, ClientError) as error:
        reason = " ".join(str(error).split()).removesuffix(".")
        raise ConfigurationError(
            f"cannot create the table {name!r}: {reason}; check AWS_ENDPOINT_URL and AWS_DEFAULT_REGION"
        ) from None
    sys.stdout.write(f"created the table {name}\n")


def _client(wait_s: float) -> Any:
    """Return a client that repeats a request, with growing pauses, for about `wait_s` seconds."""
    import boto3
    from botocore.config import Config

    attempts = 1 + round(wait_s / _READ_S)
    limits = Config(
        connect_timeout=_READ_S, read_timeout=_READ_S, retries={"total_max_attempts": attempts, "mode": "standard"}
    )
    return boto3.client("dynamodb", config=limits)
