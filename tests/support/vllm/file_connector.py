"""vLLM's example of a connector between two engines, by files, with one mistake mended.

The example looks for the file of a preempted request by its prompt and its output, but saved it by its prompt. So vLLM
ends at the first request that is resumed, with any scheduler. This one computes such a request again.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector


class FileConnector(ExampleConnector):  # type: ignore[misc]
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if request.num_preemptions:
            return 0, False
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return found


def files_transfer(folder: object, role: str) -> dict[str, Any]:
    """Return the configuration of an engine that hands KV over by files in a folder."""
    return {
        "kv_connector": "FileConnector",
        "kv_connector_module_path": __name__,
        "kv_role": role,
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
