"""An HTTP front as a process: `python -m functions.http_api.server --host H --port P`. uvicorn serves the app.

A load balancer keeps idle connections open, and sends its next request on one of them. If the front closed it at that
moment, the caller would get a 502. So behind a load balancer `--idle-s` must be above the load balancer's idle timeout.

Every request leaves lines on standard output, which never wait for their reader (dispatcher/log_lines.py). A front in
Lambda writes them directly: Lambda freezes it after its last byte, and a thread with it.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
from math import ceil

import uvicorn

from dispatcher.log_lines import LogStreams
from functions.http_api.protocol import IDLE_S, BoundedHeads


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m functions.http_api.server", description="An HTTP front.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="close a connection that is idle for so long")
    arguments = parser.parse_args()
    BoundedHeads.idle_s = arguments.idle_s
    _raise_open_files()
    if os.environ.get("HEADGATE_FRONT") == "lambda":
        _serve(arguments)
        return
    with LogStreams() as streams:

        def end(number: int, _: object) -> None:
            """Write the last log lines, and end by the signal, which uvicorn raises again after its shutdown."""
            streams.finish()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

        signal.signal(signal.SIGTERM, end)
        _serve(arguments)


def _serve(arguments: argparse.Namespace) -> None:
    uvicorn.run(
        "functions.http_api.app:app",
        host=arguments.host,
        port=arguments.port,
        http=BoundedHeads,
        ws="none",
        timeout_keep_alive=ceil(arguments.idle_s),
        access_log=False,
        log_level="warning",
    )


def _raise_open_files() -> None:
    """Allow as many open files as the system lets this process have: often only 1,024 are allowed at first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
