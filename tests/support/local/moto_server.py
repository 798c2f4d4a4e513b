"""The local DynamoDB, SQS and CloudWatch, served by a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.local.moto_server import make_server


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
