"""A Lambda function's configuration, one invocation of it, and the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

ACCOUNT_ID = "123456789012"
REGION = "us-east-1"
INIT_TIMEOUT_S = 60.0
"""Lambda allows 10 s and then tries again under the function's timeout. Here one longer try, for a busy laptop."""


@dataclass(frozen=True)
class FunctionSpec:
    """Configuration of a function.

    `handler`: importable module, a dot, and the callable. `timeout_s`: seconds from the moment when the handler gets
    the event. `concurrency`: most environments; further callers get 429. `environment`: added to the variables that
    Lambda sets. `memory_mb`: reported to the handler, not enforced. `init_timeout_s`: seconds to load the handler.
    """

    name: str
    handler: str
    timeout_s: float = 3.0
    concurrency: int = 10
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 512
    init_timeout_s: float = INIT_TIMEOUT_S

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{self.name}"


@dataclass(frozen=True)
class LambdaRequest:
    """One invocation of a function. `client_context`: JSON text, or None."""

    request_id: str
    payload: bytes
    qualifier: str | None = None
    trace_id: str | None = None
    client_context: str | None = None


@dataclass(frozen=True)
class LambdaAnswer:
    """The answer of a function. `function_error`: None, or Lambda's name of a fault ("Unhandled").

    `reusable`: the environment can serve the next invocation. `log_tail`: the end of the log of this invocation.
    """

    payload: bytes
    function_error: str | None = None
    reusable: bool = True
    log_tail: bytes = b""


def fault(error_type: str, message: str, *, reusable: bool = False) -> LambdaAnswer:
    """Make the answer to an invocation that Lambda itself ended."""
    payload = json.dumps({"errorType": error_type, "errorMessage": message}).encode()
    return LambdaAnswer(payload, function_error="Unhandled", reusable=reusable)
