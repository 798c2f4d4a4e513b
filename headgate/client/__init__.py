"""The tenant client: one statement a call, over HTTP or over lambda.invoke, for threads or for asyncio.

    Headgate(base_url="http://…/v1", api_key="hg-…").chat("hello").text
    await AsyncHeadgate(…).chat("hello")
    LambdaHeadgate(api_key="hg-…", model="…").chat("hello").text

It is a layer over the official openai client. It raises openai's errors (openai.RateLimitError and so on), over
lambda.invoke too; HeadgateClientError is an openai.OpenAIError for what openai has no class for. Every call carries an
idempotency key, yours or a new one, so a retry of the same call is the same invocation: one charge, the same answer. A
call is tried again only as far as `patience` allows (over_http.py). To continue after a connection broke, give
`idempotency_key` and call again with the same key.

Importing this package loads neither openai nor boto3; the first use of a class does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.client.answers import Answer, HeadgateClientError, Outcome
    from headgate.client.over_http import AsyncHeadgate, Headgate, Patience
    from headgate.client.over_lambda import AsyncLambdaHeadgate, LambdaHeadgate

__all__ = [
    "Answer",
    "AsyncHeadgate",
    "AsyncLambdaHeadgate",
    "Headgate",
    "HeadgateClientError",
    "LambdaHeadgate",
    "Outcome",
    "Patience",
]
_MODULES = {"AsyncHeadgate": "over_http", "AsyncLambdaHeadgate": "over_lambda", "Headgate": "over_http",
           "LambdaHeadgate": "over_lambda", "Patience": "over_http"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a class when it is first used. Raises ImportError, with what to install, without the package openai."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'answers')}"), name)
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        raise ImportError("the tenant client needs the package openai: pip install 'headgate[client]'") from None
