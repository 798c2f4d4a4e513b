"""An unmodified boto3 client for an endpoint on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config

from tests.support.hang_guard import HANG_S


def aws_client(service: str, url: str, **config: Any) -> Any:
    """Make a client that tries each call once. `config`: further settings of botocore's Config."""
    make: Callable[..., Any] = boto3.client  # its overloads take a service's name as a literal only
    return make(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="thing",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=HANG_S, **config),
    )
