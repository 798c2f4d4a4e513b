"""moto as a server: `python -m headgate.local.moto.server [--host H] [--port P]`; port 0 takes a free port.

It prints one line of JSON, `{"url": ...}`, once it listens. Its DynamoDB is exact (patches.py), and connections stay
open: werkzeug's server closes each connection after one answer, and waits 10 ms for more data before that.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import ThreadedWSGIServer

from headgate.local.moto import patches


class KeepAliveRequestHandler(MotoRequestHandler):  # type: ignore[misc]  # moto is untyped
    """HTTP/1.1 with persistent connections. The body is read whole before the application sees it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: an answer is one packet, not a packet for each header

    def run_wsgi(self) -> None:
        self.environ = environ = self.make_environ()
        # Read to its end even if the application does not: the rest would look like the next request.
        environ["wsgi.input"] = io.BytesIO(self._read_body(environ))
        environ.pop("wsgi.input_terminated", None)
        self._send(*self._answer(environ))

    def _read_body(self, environ: dict[str, Any]) -> bytes:
        if environ.get("wsgi.input_terminated"):  # chunked: werkzeug's input ends by itself
            body = bytes(environ["wsgi.input"].read())
            environ["CONTENT_LENGTH"] = str(len(body))
            return body
        return bytes(self.rfile.read(int(environ.get("CONTENT_LENGTH") or 0)))

    def _answer(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:  # noqa: ARG001 - WSGI's signature
            started.append((status, headers))

        chunks = self.server.app(environ, start_response)
        try:
            body = b"".join(chunks)
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        status, headers = started[-1]
        return status, headers, body

    def _send(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if code not in ("204", "304"):
            self.send_header("Content-Length", self._content_length(headers, body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _content_length(self, headers: list[tuple[str, str]], body: bytes) -> str:
        """Return the body's length; for a HEAD answer the application's header, which is that of a GET."""
        header = {name.lower(): value for name, value in headers}.get("content-length")
        return header if header is not None and self.command == "HEAD" else str(len(body))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log no requests: at hundreds a second they would hide everything else."""


class MotoServer(ThreadedWSGIServer):
    """Serves each connection in a daemon thread."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256


def make_server(host: str, port: int) -> MotoServer:
    """Bind a server that does not serve yet; `server.port` is its port. Raises SystemExit if the port is in use."""
    patches.install()
    app = DomainDispatcherApplication(create_backend_app)
    return MotoServer(host, port, app, handler=KeepAliveRequestHandler)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m headgate.local.moto.server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(argv)
    server = make_server(options.host, options.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdout.write(json.dumps({"url": f"http://{options.host}:{server.port}"}) + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
