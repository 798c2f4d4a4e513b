"""What the models of a YAML workload share: small field types and their bounds.

Times are seconds of the workload, lengths are tokens of a language model, and rates are arrivals per second or per
minute, by the name of the key.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from headgate.workloads.traces.rows import TOKENS_MAX

DURATION_S_MAX = 100_000_000.0
RATE_PER_S_MAX = 1_000_000.0
CALLS_MAX = 1_000
BURST_MAX = 100_000
CV_MAX = 20.0
SIGMA_MAX = 10.0
INTEGER_MAX = 2**63 - 1


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
