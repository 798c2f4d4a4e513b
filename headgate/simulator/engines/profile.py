"""Engine profiles: how long a step takes, how much fits, and when requests are admitted. One file for each machine and
model.

The formulas are those of the VTC artifact's own profile (OSDI 2024), in seconds, tokens and requests:

    prefill = prefill_base_s + prefill_per_token_s x prompt tokens of the mini-batch
    decode  = decode_base_s + decode_per_request_s x requests in the batch + decode_per_kv_token_s x KV tokens held

plus `overhead_s` for either. With `chunk_tokens`, prompts are not prefilled in steps of their own but together with the
decodes (chunked_prefill.py), and a step costs the sum of both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from dispatcher.model.errors import ConfigurationError
from dispatcher.settings.strict import Strict
from dispatcher.settings.yaml_file import read_document

_Seconds = Annotated[float, Field(ge=0, le=3600)]
_Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
DEFAULT_ENGINE = "a10g-llama2-7b"


class FittedOn(Strict):
    """The log that a profile was fitted to, or several together, and the ranges in which it may be trusted. `headgate
    simulate --fit` writes it."""

    log: str
    """Name of the file."""
    requests: Annotated[int, Field(ge=1)]
    unserved: Annotated[int, Field(ge=0)] = 0
    """Requests of the log without a first token and an end, which were left out."""
    seconds: Annotated[float, Field(ge=0)]
    """From the first arrival to the last end."""
    batch_max: Annotated[int, Field(ge=1)]
    """Most requests that ran at once."""
    input_tokens_min: Annotated[int, Field(ge=0)]
    input_tokens_max: Annotated[int, Field(ge=0)]
    output_tokens_min: Annotated[int, Field(ge=0)]
    output_tokens_max: Annotated[int, Field(ge=0)]
    admission: str
    """When the engine is assumed to admit: the rules were not fitted."""
    policy: str
    """The order of the queue with which the fit was compared with the log."""
    first_token_errors_s: dict[str, _Seconds]
    """Quantiles (`p50`, `p90`, `p99`) of the difference between log and simulation, over requests; empty if they were
    not compared one by one."""
    whole_answer_errors_s: dict[str, _Seconds]


class EngineProfile(Strict):
    """One engine. `fitted`: whether the step times were fitted to measurements of this machine and model."""

    name: str
    fitted: bool
    source: str
    """Where the numbers come from."""
    pool_tokens: _Tokens
    """Size of the KV cache. A request fits if the peak of all future use stays below it."""
    prefill_base_s: _Seconds
    prefill_per_token_s: _Seconds
    prefill_curve: tuple[tuple[_Tokens, _Seconds], ...] = ()
    """Prompt tokens of a mini-batch, ascending, and the seconds of its prefill: a matrix product is computed in tiles,
    so a prefill of 257 tokens can take far longer than one of 256. Other sizes lie on the lines between, and beyond the
    last on its line. It has two points or more, and replaces `prefill_base_s` and `prefill_per_token_s`; empty: these
    two count. Only for prefill in steps of its own."""
    decode_base_s: _Seconds
    decode_per_request_s: _Seconds
    decode_per_kv_token_s: _Seconds
    overhead_s: _Seconds = 0.0
    """Added to each step."""
    warm_up_s: _Seconds = 0.0
    """Added to the first prefill, of a server that was just started. Only for prefill in steps of its own."""
    steps_between_admissions: Annotated[int, Field(ge=1)] = 1
    """Decode steps between two attempts to admit while requests run."""
    repeats_failed_attempts: bool = False
    """An attempt that admits nothing is repeated after each further decode step; else after `steps_between_admissions`
    again. Only for prefill in steps of its own."""
    minibatch_tokens_max: _Tokens = 1_000_000_000
    """Most prompt tokens admitted in one attempt. A longer prompt is prefilled alone."""
    prompt_extra_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens that the server adds to each prompt. They are computed and held, but charged to no tenant."""
    tenant_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """KV tokens that each tenant with a request in the batch takes from the pool: the room that the VTC artifact's
    server keeps for the tenant's adapter. Only for prefill in steps of its own."""
    batch_max: _Tokens | None = None
    """Most requests that run at once; None: as many as fit the pool."""
    chunk_tokens: _Tokens | None = None
    """Tokens in one step, decodes and parts of prompts together; None: prefill and decode are separate steps."""
    block_tokens: _Tokens = 16
    """Tokens in one KV block; only for the paged engine (paged.py)."""
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Share of the blocks that an admission leaves free for running requests to grow; only for the paged engine."""
    kv_bytes_per_token: Annotated[float, Field(ge=0)] = 0.0
    """Layers x KV heads x head size x 2 x bytes per number, all GPUs together; 0: unknown, and the engine does not
    swap."""
    copy_out_bytes_per_s: Annotated[float, Field(ge=0)] = 0.0
    """Speed of copying KV to host memory, all GPUs together; 0: the engine does not swap."""
    copy_in_bytes_per_s: Annotated[float, Field(ge=0)] = 0.0
    copy_base_s: _Seconds = 0.0
    """Fixed time of each copy."""
    swap_bytes: Annotated[float, Field(ge=0)] = 0.0
    """Size of the host memory for swapped KV."""
    prefix_cache_tokens: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Size of a prefix cache beside the pool; 0: there is none. Only for the paged engine."""
    max_loras: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """LoRA adapters in use at once; None: an adapter is served as its model. With it, the engine is the paged one."""
    adapter_load_s: Annotated[float, Field(ge=0, le=60)] = 0.05
    """Time for which the load of an adapter stops the batch."""
    fitted_on: FittedOn | None = None
    """The log that the step times come from; None: `source` says where they come from."""

    @model_validator(mode="after")
    def _has_an_ascending_curve(self) -> Self:
        sizes = [tokens for tokens, _ in self.prefill_curve]
        if len(sizes) == 1 or sizes != sorted(set(sizes)):
            raise ValueError("prefill_curve needs two points or more, with more tokens in each than in the last")
        return self

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds of a prefill of so many prompt tokens, without `overhead_s`."""
        if self.prefill_curve:
            return on_curve(self.prefill_curve, tokens)
        return self.prefill_base_s + self.prefill_per_token_s * tokens


def on_curve(curve: Sequence[tuple[int, float]], tokens: float) -> float:
    """Return the seconds at so many tokens, on the lines between the points of the curve."""
    weights = knot_weights([known for known, _ in curve], tokens)
    return max(0.0, sum(weight * seconds for weight, (_, seconds) in zip(weights, curve, strict=True)))


def knot_weights(knots: Sequence[int], tokens: float) -> tuple[float, ...]:
    """Return how much of each knot's value is in the value at so many tokens: two neighbours have all. Below the first
    knot its own value holds, and beyond the last its line goes on."""
    after = min(bisect_right(knots, tokens), len(knots) - 1)
    weights = [0.0] * len(knots)
    if not after:
        weights[0] = 1.0
    else:
        below, above = knots[after - 1], knots[after]
        weights[after] = (tokens - below) / (above - below)
        weights[after - 1] = 1.0 - weights[after]
    return tuple(weights)


def engine_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _profiles().iterdir() if entry.name.endswith(".yaml"))


def load_profile(name_or_path: str = DEFAULT_ENGINE) -> EngineProfile:
    """Load a profile that comes with headgate, or a file. Raises ConfigurationError."""
    if name_or_path.endswith((".yaml", ".yml")):
        return read_document(Path(name_or_path)).parse(EngineProfile)
    if name_or_path not in engine_names():
        known = ", ".join(engine_names())
        raise ConfigurationError(f"unknown engine {name_or_path!r}; there are {known}, or name a .yaml file")
    with as_file(_profiles() / f"{name_or_path}.yaml") as path:
        return read_document(path).parse(EngineProfile)


def _profiles() -> Traversable:
    return files("headgate.simulator.engines") / "profiles"
