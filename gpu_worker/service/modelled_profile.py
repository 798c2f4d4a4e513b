"""Step times and memory of a modelled engine: `--profile FILE` with YAML, or `--profile '{…}'` with JSON. Every field
is optional.

    {"pool_tokens": 10000, "prefill_per_token_s": 0.0003, "decode_base_s": 0.031, "decode_per_request_s": 0.0005}

The fields are those of the simulator's profiles (headgate/simulator/engines/profile.py) that the engine knows. A time
that is left out is 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from dispatcher.settings.strict import Strict
from dispatcher.settings.yaml_file import read_document, read_text

_Seconds = Annotated[float, Field(ge=0, le=3600)]
_Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]


class ModelledProfile(Strict):
    pool_tokens: _Tokens = 16_384
    chunk_tokens: _Tokens | None = None
    """None: prompts are computed in steps of their own."""
    minibatch_tokens_max: _Tokens = 1_000_000_000
    steps_between_admissions: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    prompt_extra_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    prefill_base_s: _Seconds = 0.0
    prefill_per_token_s: _Seconds = 0.0
    decode_base_s: _Seconds = 0.0
    decode_per_request_s: _Seconds = 0.0
    decode_per_kv_token_s: _Seconds = 0.0
    overhead_s: _Seconds = 0.0


def load_modelled_profile(given: str) -> ModelledProfile:
    """Read and check the file, or the JSON object. Raises ConfigurationError with one line that names the place and
    its mistake."""
    document = read_text("the profile", given) if given.startswith("{") else read_document(Path(given))
    return document.parse(ModelledProfile)
