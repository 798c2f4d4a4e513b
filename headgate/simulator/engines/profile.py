"""Engine time models: how long a step takes, what fits, and who may enter when. In files, one a machine and model.

The form is that of the VTC artifact's own profile (OSDI 2024): with seconds, tokens and requests,

    prefill = prefill_base_s + prefill_per_token_s x prompt tokens of the mini-batch
    decode  = decode_base_s + decode_per_request_s x requests in the batch + decode_per_kv_token_s x KV tokens held

and `overhead_s` on top of either. With `chunk_tokens` prompts are not prefilled in steps of their own but ride along
with the decodes (chunked.py), and a step costs both.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher.model.errors import ConfigurationError

Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
DEFAULT_ENGINE = "a10g-llama2-7b"


class EngineProfile(BaseModel):
    """Facts of one engine. `fitted`: whether the step times were fitted to measurements of that machine and model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    fitted: bool
    source: str
    """Where the figures come from."""
    pool_tokens: Tokens
    """KV cache; a request fits when the peak of all future use stays below it."""
    prefill_base_s: Seconds
    prefill_per_token_s: Seconds
    decode_base_s: Seconds
    decode_per_request_s: Seconds
    decode_per_kv_token_s: Seconds
    overhead_s: Seconds = 0.0
    """Of each step, beyond the times above."""
    steps_between_admissions: Annotated[int, Field(ge=1)] = 1
    """Decode steps from one admission attempt to the next while something runs."""
    minibatch_tokens_max: Tokens = 1_000_000_000
    """Prompt tokens admitted in one attempt; a longer prompt is prefilled alone."""
    prompt_extra_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens that the server adds to each prompt: they are computed and held, but nobody's service."""
    batch_max: Tokens | None = None
    """Requests that run at once; none: as many as fit the pool."""
    chunk_tokens: Tokens | None = None
    """Tokens a step, decodes and parts of prompts together; none: prefill and decode are separate steps."""
    block_tokens: Tokens = 16
    """Of a KV block, where the cache is paged (preemptive.py)."""
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Part of the blocks that an admission leaves free, so that those who run can grow; paged only."""
    kv_bytes_per_token: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Layers x KV heads x head size x 2 x bytes of a number, of all GPUs together; 0: unknown, and nothing is
    swapped."""
    copy_out_bytes_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """KV to host memory, all GPUs together; 0: the engine does not swap."""
    copy_in_bytes_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    copy_base_s: Seconds = 0.0
    """Of each copy, beside its bytes."""
    swap_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Host memory for swapped KV."""


def engine_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _profiles().iterdir() if entry.name.endswith(".yaml"))


def load_profile(name_or_path: str = DEFAULT_ENGINE) -> EngineProfile:
    """A profile that comes with headgate, or a file. Raises ConfigurationError."""
    if name_or_path.endswith((".yaml", ".yml")):
        return _read(Path(name_or_path))
    if name_or_path not in engine_names():
        known = ", ".join(engine_names())
        raise ConfigurationError(f"unknown engine {name_or_path!r}: there are {known}, or name a .yaml file")
    return _read(_profiles() / f"{name_or_path}.yaml")


def _read(path: Traversable) -> EngineProfile:
    try:
        return EngineProfile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not YAML ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(f"{path}, key {'.'.join(map(str, first['loc']))!r}: {first['msg']}") from None


def _profiles() -> Traversable:
    return files("headgate.simulator.engines") / "profiles"
