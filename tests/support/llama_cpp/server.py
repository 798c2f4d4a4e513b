"""llama.cpp's server in a process of its own: `python -m tests.support.llama_cpp.server FILE PORT`."""

from __future__ import annotations

import signal
import sys

CONTEXT_TOKENS = 2048
SLOTS = 4


def main() -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.port = int(sys.argv[2])
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * CONTEXT_TOKENS
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
