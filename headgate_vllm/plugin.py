"""What vLLM calls in each of its processes, by the entry point `vllm.general_plugins`. It only registers.

A server without our scheduler and middleware does not change: the swap gets a name that nothing uses, and the
environment a secret that nothing reads.
"""

from __future__ import annotations

import os
from contextlib import suppress
from secrets import token_hex

from gpu_worker.engines.vllm.identity import SECRET_VARIABLE

_CONNECTOR = "SwapConnector"
_CONNECTOR_MODULE = "gpu_worker.engines.vllm.swap"


def register() -> None:
    """Register. Must not raise: that would end a server that does not use us. The first process of a server makes the
    secret, and its children inherit it."""
    os.environ.setdefault(SECRET_VARIABLE, token_hex(16))
    with suppress(ImportError, AttributeError, TypeError, ValueError):  # ValueError: it has the name already
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        KVConnectorFactory.register_connector(_CONNECTOR, _CONNECTOR_MODULE, _CONNECTOR)
