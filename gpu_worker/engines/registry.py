"""Engines by name, each loaded only when it is asked for: `modelled` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_worker.engines.interface import Engine
from gpu_worker.policies.configured import make_queue

ENGINES = ("transformers", "modelled", "vllm")


class EngineUnavailable(Exception):
    """This engine cannot be had here. The message says what to do."""


def make_engine(
    kind: str,
    *,
    policy: str,
    model: str | None,
    batch: int,
    home: Path,
    tiers: Mapping[str, Any] | None = None,
    swap_bytes: int = 0,
) -> Engine:
    """An engine that has not been started. `batch`: most sequences at once; `home`: where a built model is kept;
    `tiers`: fields of TierSettings as plain values, of a policy that has tiers; `swap_bytes`: host memory for requests
    that were swapped out, of engines that can.

    Raises EngineUnavailable, ValueError for an unknown policy, FileNotFoundError for a model that is not there.
    """
    queue = make_queue(policy, tiers)
    if kind == "modelled":
        from gpu_worker.engines.modelled.engine import PROFILE, ModelledEngine

        return ModelledEngine(queue, profile=replace(PROFILE, batch_max=batch))
    if kind == "transformers":
        try:
            from gpu_worker.engines.transformers.engine import Shape as TransformersShape
            from gpu_worker.engines.transformers.engine import TransformersEngine
        except ImportError as error:
            needed = f"the transformers engine needs torch and transformers ({error.name} is missing)"
            raise EngineUnavailable(f"{needed}: pip install 'headgate[transformers]'") from None
        shape = TransformersShape(batch=batch, swap_bytes=swap_bytes, calibrate=True)
        return TransformersEngine.load(queue, model=model, home=home, shape=shape)
    if kind == "vllm":
        try:
            from gpu_worker.engines.vllm.engine import Shape as VllmShape
            from gpu_worker.engines.vllm.engine import VllmEngine
        except ImportError as error:
            needed = f"the vllm engine needs vLLM ({error.name} is missing)"
            raise EngineUnavailable(f"{needed}: pip install 'headgate[vllm]', or use --engine transformers") from None
        vllm_shape = VllmShape(batch=batch, swap_bytes=swap_bytes)
        return VllmEngine.load(model=model, home=home, policy=policy, tiers=tiers or {}, shape=vllm_shape)
    raise EngineUnavailable(f"unknown engine {kind!r}; there are {', '.join(ENGINES)}")
