"""Amazon's DynamoDB Local as a process, for tests that are not asynchronous."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from headgate.local import dynamodb_local
from headgate.machine.places import usable
from tests.support.hang_guard import HANG_S


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
