"""An HTTP front as a process: `python -m functions.http_api.server --host H --port P`. uvicorn serves the app.

uvicorn waits for ever for the head of a request. Connections that send none would use up the process's file
descriptors, and no tenant could connect any more. They are closed here after `--idle-s`. What follows the head is
bounded in functions/http_api/connections.py.

A load balancer keeps idle connections open, and sends its next request on one of them. If the front closed it at that
moment, the caller would get a 502. So behind a load balancer `--idle-s` must be above the load balancer's idle timeout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
from math import ceil

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dispatcher.model.errors import InvalidRequest
from dispatcher.processes.bootstrap import RealIds
from functions.http_api.log_lines import take_standard_streams
from functions.http_api.refusals import ID_HEADER

IDLE_S = 10.0


class BoundedHeads(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's protocol of one connection. `cycle` is its last request; None before the first one."""

    idle_s = IDLE_S
    """A connection that brings no whole head of a request for this time, or up to twice this time, is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._last_request = None
        self._head_timer = asyncio.get_running_loop().call_later(self.idle_s, self._check_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse a head that is no HTTP, in OpenAI's shape and with an id, and close the connection."""
        error = InvalidRequest(f"The request is not valid HTTP/1.1: {msg}", code="invalid_http")
        body = json.dumps(error.body()).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n{ID_HEADER}: {RealIds().new()}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _check_head(self) -> None:
        """Close the connection if no request is being answered and none began since the last check."""
        request = self.cycle
        is_answered = request is None or request.response_complete
        if is_answered and request is self._last_request:
            self.transport.close()
            return
        self._last_request = request
        self._head_timer = asyncio.get_running_loop().call_later(self.idle_s, self._check_head)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m functions.http_api.server", description="An HTTP front.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="close a connection that is idle for so long")
    arguments = parser.parse_args()
    BoundedHeads.idle_s = arguments.idle_s
    _raise_open_files()
    streams = [] if os.environ.get("HEADGATE_FRONT") == "lambda" else take_standard_streams()

    def end(number: int, _: object) -> None:
        """Write the last log lines, and end by the signal, which uvicorn raises again after its shutdown."""
        for stream in streams:
            stream.finish()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        uvicorn.run(
            "functions.http_api.app:app",
            host=arguments.host,
            port=arguments.port,
            http=BoundedHeads,
            timeout_keep_alive=ceil(arguments.idle_s),
            access_log=False,
            log_level="warning",
        )
    finally:
        for stream in streams:
            stream.finish()


def _raise_open_files() -> None:
    """Allow as many open files as the system lets this process have: often only 1,024 are allowed at first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
