"""moto behind a recorder. A request's signature names an access key, and each process has the key of its role."""

from __future__ import annotations

import io
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.moto_api._internal.models import moto_api_backend

from headgate.local.moto_server import make_server
from tests.support.iam.policies import Call
from tests.support.iam.requests import calls_of

ACCESS_KEY = re.compile(r"Credential=([^/,\s]+)/")
OWN_KEY = "any"
"""The access key of the test itself. Its calls are not recorded."""


class Recorder:
    """A WSGI application around moto's. `calls`: by access key."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app, self._lock = app, threading.Lock()
        self.calls: dict[str, set[Call]] = defaultdict(set)
        self.unread: list[str] = []
        """Requests that could not be read. A complete recording has none."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        environ["wsgi.input"] = io.BytesIO(body)
        if len(body) == int(environ.get("CONTENT_LENGTH") or 0):  # a killed process leaves a part of a request
            self._record(environ, body)
        return self._app(environ, start_response)

    def _record(self, environ: dict[str, Any], body: bytes) -> None:
        found = ACCESS_KEY.search(environ.get("HTTP_AUTHORIZATION", ""))
        role = found[1] if found else "unsigned"
        if role == OWN_KEY:
            return
        method, path, target = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_X_AMZ_TARGET", "")
        try:
            calls = calls_of(method, path, environ.get("QUERY_STRING", ""), target, body)
        except Exception as error:
            self.unread.append(f"{role}: {method} {path} {target}: {error!r}")
            return
        with self._lock:
            self.calls[role].update(calls)


@contextmanager
def recording_moto() -> Iterator[tuple[str, Recorder]]:
    """Serve moto in a thread until the block ends; yield its URL and the recorder. At the end forget all resources:
    every moto of this process has the same ones."""
    server = make_server("127.0.0.1", 0)
    recorder = Recorder(server.app)
    server.app = recorder
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}", recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        moto_api_backend.reset()
