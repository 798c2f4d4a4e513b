"""What vLLM calls in each of its processes, by the entry point `vllm.general_plugins`. It only registers.

A server without our scheduler does not change: our KV connector gets a name that nothing uses.
"""

from __future__ import annotations

from contextlib import suppress

_CONNECTOR = "SwapConnector"
_CONNECTOR_MODULE = "gpu_worker.engines.vllm.swap"


def register() -> None:
    """Register the connector of the swap. Must not raise: that would end a server that does not use us."""
    with suppress(ImportError, AttributeError, TypeError, ValueError):  # ValueError: it has the name already
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        KVConnectorFactory.register_connector(_CONNECTOR, _CONNECTOR_MODULE, _CONNECTOR)
