"""What the models of a YAML workload share: the base model, its errors, and small field types.

Times are seconds of the workload, lengths are tokens of a language model, and rates are arrivals per second or per
minute, by the name of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from headgate.workloads.traces.rows import TOKENS_MAX

DURATION_S_MAX = 100_000_000.0
RATE_PER_S_MAX = 1_000_000.0
CALLS_MAX = 1_000
BURST_MAX = 100_000
CV_MAX = 20.0
SIGMA_MAX = 10.0
INTEGER_MAX = 2**63 - 1


def at_key(key: str, what: str) -> PydanticCustomError:
    """Return an error about one key of the mapping that is being validated."""
    return PydanticCustomError("at_key", "{what}", {"key": key, "what": what})


class Model(BaseModel):
    """Frozen and strict. An unknown key is an error that names the nearest known key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        known = list(cls.model_fields)
        if not isinstance(value, Mapping):
            raise PydanticCustomError("no_mapping", "should be a mapping of {known}", {"known": ", ".join(known)})
        for key in value:
            if key not in known:
                close = get_close_matches(str(key), known, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
                raise at_key(key, f"is not known ({hint})")
        return value


def _range(value: Any) -> Any:
    """Accept a whole number, or [lowest, highest]."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if isinstance(value, tuple) and len(value) == 2 and all(type(one) is int for one in value) and value[0] <= value[1]:
        return value
    raise PydanticCustomError("no_range", "should be a whole number, or [lowest, highest]")


Seconds = Annotated[float, Field(ge=0, le=DURATION_S_MAX)]
PositiveSeconds = Annotated[float, Field(gt=0, le=DURATION_S_MAX)]
Tokens = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
Weight = Annotated[float, Field(gt=0, le=1e9)]
_BurstSize = Annotated[int, Field(ge=1, le=BURST_MAX)]
_Calls = Annotated[int, Field(ge=1, le=CALLS_MAX)]
BurstRange = Annotated[tuple[_BurstSize, _BurstSize], BeforeValidator(_range)]
CallsRange = Annotated[tuple[_Calls, _Calls], BeforeValidator(_range)]
