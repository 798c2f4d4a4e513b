"""Engines by name, each loaded only when it is asked for: `modelled` needs no torch."""

from __future__ import annotations

from pathlib import Path

from gpu_worker.engines.base import Engine
from gpu_worker.policies.queue_policy import make_policy

ENGINES = ("transformers", "modelled", "vllm")


class EngineUnavailable(Exception):
    """This engine cannot be had here. The message says what to do."""


def make_engine(kind: str, *, policy: str, model: str | None, batch: int, home: Path) -> Engine:
    """An engine that has not been started. `batch`: most sequences at once; `home`: where a built model is kept.

    Raises EngineUnavailable, ValueError for an unknown policy, FileNotFoundError for a model that is not there.
    """
    queue = make_policy(policy)
    if kind == "modelled":
        from gpu_worker.engines.modelled import ModelledEngine, Shape

        return ModelledEngine(queue, shape=Shape(batch=batch))
    if kind == "transformers":
        try:
            from gpu_worker.engines.transformers import Shape as TransformersShape
            from gpu_worker.engines.transformers import TransformersEngine
        except ImportError as error:
            needed = f"the transformers engine needs torch and transformers ({error.name} is missing)"
            raise EngineUnavailable(f"{needed}: pip install 'headgate[transformers]'") from None
        return TransformersEngine.load(queue, model=model, home=home, shape=TransformersShape(batch=batch))
    if kind == "vllm":
        raise EngineUnavailable("the vllm engine is not part of this release; use --engine transformers")
    raise EngineUnavailable(f"unknown engine {kind!r}; there are {', '.join(ENGINES)}")
