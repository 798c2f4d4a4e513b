"""Engines by name. Each is imported only when it is made: `modelled` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_worker.engines.interface import Engine
from gpu_worker.policies.fairness.tiered import make_queue

ENGINES = ("transformers", "modelled", "vllm", "openai")
DTYPES = ("auto", "float32", "bfloat16", "float16")
HANG_S = {"openai": 300.0}
"""How long an engine may make no progress, by kind: a server elsewhere may be busy with a long prompt."""
HANG_USUAL_S = 60.0


class EngineUnavailable(Exception):
    """This engine cannot run here. The message says what to do."""


def make_engine(
    kind: str,
    *,
    policy: str,
    model: str | None,
    batch: int,
    home: Path,
    tiers: Mapping[str, Any] | None = None,
    applications: Mapping[str, str] | None = None,
    swap_bytes: int = 0,
    server: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    modelled: Mapping[str, Any] | None = None,
    transformers: Mapping[str, Any] | None = None,
    sleep_level: int = 0,
) -> Engine:
    """Make an engine, not started. `batch`: sequences in a batch at most. `home`: folder for a built model. `tiers`:
    fields of TierSettings as plain values, for a policy with tiers. `applications`: of tenants, for `wsc`.
    `swap_bytes`: host memory for swapped KV, for engines that swap. `server`: fields of the openai engine's
    ServerOptions. `arguments`: of vLLM's server. `modelled`: times and memory of the modelled engine (`load_s`,
    `sleep_bytes`, `wake_s`, and `steps`: fields of its PagedProfile, in place of its own). `transformers`: sizes of the
    transformers engine (`kv_tokens`, `step_tokens`), and its `dtype`, one of DTYPES. `sleep_level`: of vLLM's server
    (vllm/process.py); 0: it cannot sleep.

    Raises EngineUnavailable; ValueError for an unknown policy; FileNotFoundError for a model that does not exist.
    """
    queue = make_queue(policy, tiers, applications)
    if kind == "modelled":
        from gpu_worker.engines.modelled.engine import INSTANT, PROFILE, ModelledEngine

        fields = {**(modelled or {}), **({} if model is None else {"model": model})}
        steps = fields.pop("steps", None)
        profile = PROFILE if steps is None else replace(INSTANT, **steps)
        return ModelledEngine(queue, profile=replace(profile, batch_max=batch), **fields)
    if kind == "transformers":
        try:
            from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape
        except ImportError as error:
            needed = f"the transformers engine needs torch and transformers ({error.name} is missing)"
            raise EngineUnavailable(f"{needed}: pip install 'headgate[transformers]'") from None
        sizes = dict(transformers or {})
        dtype = sizes.pop("dtype", DTYPES[0])
        shape = TransformersShape(batch=batch, swap_bytes=swap_bytes, calibrate=True, **sizes)
        return TransformersEngine.load(queue, model=model, home=home, shape=shape, dtype=dtype)
    if kind == "vllm":
        if find_spec("vllm") is None:
            raise EngineUnavailable(
                "the vllm engine needs vLLM: docs/quick-start.md says how to install it; or use --engine transformers"
            )
        from gpu_worker.engines.vllm.engine import VllmEngine, VllmShape

        vllm_shape = VllmShape(batch=batch, swap_bytes=swap_bytes, arguments=arguments, sleep_level=sleep_level)
        return VllmEngine(
            model=model, home=home, policy=policy, tiers=tiers, applications=applications, shape=vllm_shape
        )
    if kind == "openai":
        from gpu_worker.engines.openai.engine import OpenAiEngine
        from gpu_worker.engines.openai.server_api import ServerOptions

        if not server or not server.get("url"):
            raise EngineUnavailable("--engine openai needs --url, such as http://127.0.0.1:8000/v1")
        return OpenAiEngine(queue, ServerOptions(model=model, **server), places=batch)
    raise EngineUnavailable(f"unknown engine {kind!r}; there are {', '.join(ENGINES)}")
