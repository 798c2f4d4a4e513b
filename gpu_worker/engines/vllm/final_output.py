"""The last output of a request that our scheduler ended."""

from __future__ import annotations

import numpy as np
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request

from gpu_worker.engines.vllm.ends import ENDED_PREFIX

PLACEHOLDER_TOKEN = 0


def final_output(request: Request, reason: str) -> EngineCoreOutput:
    """Return the output. `reason`: see ends.py.

    vLLM's server sends no chunk, and so no reason, for a choice that ends without any token. So such a choice gets a
    placeholder, with a logprob if the request wants them. The worker raises the reason's error, and neither forwards
    nor charges the placeholder.
    """
    tokens = [] if request.num_output_tokens else [PLACEHOLDER_TOKEN]
    wants_logprobs = request.sampling_params is not None and request.sampling_params.logprobs is not None
    logprobs = None
    if tokens and wants_logprobs:
        logprobs = LogprobsLists(np.array([tokens]), np.zeros((1, 1), np.float32), np.ones(1, np.int64))
    return EngineCoreOutput(
        request.request_id,
        tokens,
        new_logprobs=logprobs,
        finish_reason=FinishReason.ABORT,
        stop_reason=ENDED_PREFIX + reason,
    )
