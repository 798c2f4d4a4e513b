"""vLLM's OpenAI server as a child of the worker: `python -m gpu_worker.engines.vllm.server --uds PATH …`.

This module hides how the server is started. `vllm serve` and vLLM's api_server module read the same options, but
`vllm serve` does not start in the CPU build for tests, and starts more than one API server in some set-ups. Both end in
the `main` that this module calls. It runs before anything of vLLM is imported in this process:

- the server ends with the worker, also if the worker is killed;
- it ends at once, with a sentence, if vLLM lacks a name that our code uses;
- it names the scheduler, which chooses and refuses as for a server without a worker (scheduler_choice.py), and adds
  the options that the CPU build needs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from gpu_worker.engines.vllm.arguments import Arguments
from gpu_worker.engines.vllm.compatibility import IncompatibleVllm, require_vllm
from gpu_worker.engines.vllm.names import VllmPart

_PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "HEADGATE_WORKER_PID"
_CPU_CACHE_GIB = "1"
"""Otherwise the CPU build takes most of the memory."""
_SCHEDULER = "gpu_worker.engines.vllm.scheduler_choice.ChosenScheduler"


def main() -> None:
    _end_with_worker()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        require_vllm([VllmPart.SCHEDULER, VllmPart.SWAP, VllmPart.STATISTICS, VllmPart.WORKER])
    except IncompatibleVllm as error:
        sys.exit(str(error))
    from vllm.platforms import current_platform

    words = sys.argv[1:]
    if current_platform.is_cpu():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", _CPU_CACHE_GIB)
        words += _cpu_words(Arguments(words))
    words += ["--scheduler-cls", _SCHEDULER]
    sys.argv[1:] = words
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


def _cpu_words(arguments: Arguments) -> list[str]:
    """Return the options that the CPU build needs and the operator has not set. `block-size`: a multiple of 32."""
    words: list[str] = []
    if "--dtype" not in arguments:
        words += ["--dtype", "float32"]
    if "--enforce-eager" not in arguments:
        words += ["--enforce-eager"]
    if "--block-size" not in arguments:
        words += ["--block-size", "32"]
    return words


def _end_with_worker() -> None:
    """Let the kernel end this process when the worker dies. The worker may have died before that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(os.environ.get(PARENT_VARIABLE, os.getppid())):
        sys.exit("the worker is gone")


if __name__ == "__main__":
    main()
