"""AWS on this machine: an unmodified boto3 client, moto in a thread, and Amazon's DynamoDB Local as a process."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import httpx
from botocore.config import Config

from headgate.local import dynamodb_local
from headgate.local.moto_server import make_server
from headgate.machine.places import usable
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


@contextmanager
def moto_server(around: Callable[[Any], Any] = lambda app: app) -> Iterator[str]:
    """Serve the local DynamoDB, SQS and CloudWatch in a thread until the block ends; yield the URL.

    `around`: what stands before moto's WSGI application.
    """
    server = make_server("127.0.0.1", 0)
    server.app = around(server.app)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def dynamodb_local_process() -> Iterator[str]:
    """Serve until the block ends; yield the URL once it answers. It must be installed (dynamodb_local.find)."""
    jar, port = dynamodb_local.find(), usable("127.0.0.1", 0)
    assert jar is not None
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        dynamodb_local.command(jar, port), cwd=jar.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _await_answer(url)
            yield url
        finally:
            process.kill()


def _await_answer(url: str) -> None:
    until = time.monotonic() + HANG_S
    while True:
        try:
            httpx.get(url, trust_env=False)
            return
        except httpx.TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
