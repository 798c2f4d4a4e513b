"""The local DynamoDB, SQS and CloudWatch, served by a thread of the test's process or by a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.local.moto.server import make_server


@contextmanager
def moto_server() -> Iterator[str]:
    """Serve until the block ends; yield the URL."""
    server = make_server("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def moto_process() -> Iterator[str]:
    """Serve in another process, for a test that is busy itself, until the block ends; yield the URL."""
    command = (sys.executable, "-m", "headgate.local.moto.server", "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
