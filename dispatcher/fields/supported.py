"""Compares a request with what the workers of its model support. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dispatcher.fields.kinds import Need
from dispatcher.fields.objects import needs_of
from dispatcher.fields.reading import unsupported
from dispatcher.fields.tables import TABLES
from dispatcher.model.fleet import Capability
from dispatcher.model.requests import Endpoint, Request

_PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.COMPLETION: "/v1/completions"}


def check_capabilities(request: Request, capabilities: Collection[str]) -> None:
    """Raise InvalidRequest if the request has a field that a worker does not support. The error names the first one.

    `capabilities`: what all workers of the model support.
    """
    for at, options in _needs(request):
        if not any(each in capabilities for each in options):
            raise unsupported(at, _message(request, at, options))


def unread_fields(request: Request, capabilities: Collection[str]) -> frozenset[str]:
    """Return the fields of the body at usual values whose capability the workers lack. The order leaves them out."""
    fields = TABLES[request.endpoint].fields.items()
    usual = {name: field for name, field in fields if name in request.body and field.is_usual(request.body[name])}
    return frozenset(
        name for name, field in usual.items() if not any(each in capabilities for each in field.capability)
    )


def _needs(request: Request) -> Iterator[Need]:
    yield "model", (request.endpoint.value,)
    if request.choices > 1:
        yield "n", (Capability.CHOICES,)
    yield from needs_of(request.body, TABLES[request.endpoint])


def _message(request: Request, at: str, options: tuple[str, ...]) -> str:
    model = request.model[:100]
    if at == "model":
        path = _PATHS.get(request.endpoint, "/v1/embeddings")
        return f"The model `{model}` does not serve {path}. GET /v1/models shows what each model supports."
    names = " or ".join(f"`{name}`" for name in options)
    return (
        f"`{at}` is not supported by the model `{model}`: its workers do not register {names}. Leave it out, or use a "
        "model that supports it (GET /v1/models)."
    )
