"""The Lambda functions of the local stack: those that the CDK app deploys."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.local.aws_lambda.invocation import INIT_TIMEOUT_S, FunctionSpec

INVOKE_CONCURRENCY = 6
"""Each environment is a process that waits with its caller: more of them cost memory and serve nothing sooner."""


def function_specs(environment: Mapping[str, str], init_timeout_s: float = INIT_TIMEOUT_S) -> tuple[FunctionSpec, ...]:
    """Return the functions. `environment`: variables that every handler gets."""

    def spec(name: str, module: str, timeout_s: float, concurrency: int) -> FunctionSpec:
        return FunctionSpec(
            name=f"headgate-{name}",
            handler=f"functions.{module}.handler.handler",
            timeout_s=timeout_s,
            concurrency=concurrency,
            environment=dict(environment),
            init_timeout_s=init_timeout_s,
        )

    return (
        spec("invoke", "invoke", 300.0, INVOKE_CONCURRENCY),
        spec("result", "result", 30.0, 2),
        spec("execute", "execute", 300.0, 2),
        spec("sweep", "sweep", 60.0, 1),
        spec("admin", "admin", 30.0, 1),
    )
