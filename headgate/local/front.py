"""An HTTP front as a process: `python -m headgate.local.front --host H --port P`. uvicorn serves functions.http_api.

uvicorn waits for ever for the head of a request. Connections that send none would use up the process's file
descriptors, and no tenant could connect any more. They are closed here after HEAD_S. What follows the head is bounded
in functions/http_api/connections.py.
"""

from __future__ import annotations

import argparse
import asyncio
import resource

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_S = 10.0
"""A connection that brings no whole head of a request for this time, or up to twice this time, is closed."""


class BoundedHeads(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's protocol of one connection. `cycle` is its last request; None before the first one."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._last_request = None
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_S, self._check_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)

    def _check_head(self) -> None:
        """Close the connection if no request is being answered and none began since the last check."""
        request = self.cycle
        is_answered = request is None or request.response_complete
        if is_answered and request is self._last_request:
            self.transport.close()
            return
        self._last_request = request
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_S, self._check_head)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headgate.local.front", description="An HTTP front.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    _raise_open_files()
    uvicorn.run(
        "functions.http_api.app:app",
        host=arguments.host,
        port=arguments.port,
        http=BoundedHeads,
        access_log=False,
        log_level="warning",
    )


def _raise_open_files() -> None:
    """Allow as many open files as the system lets this process have: often only 1,024 are allowed at first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
