"""Turns the body of a tenant's request into a `Request`, by the table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.fields.contradictions import check, without_idle_tools
from dispatcher.fields.kinds import Kind
from dispatcher.fields.metadata import part_of
from dispatcher.fields.objects import read_fields
from dispatcher.fields.reading import Reading
from dispatcher.fields.tables import TABLES
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Endpoint, Request

_BODIES = {endpoint: table.names(Kind.PASSED, Kind.BOUNDED) for endpoint, table in TABLES.items()}
_INPUTS = {endpoint.prompt_field: endpoint for endpoint in Endpoint}


@dataclass(frozen=True, slots=True)
class Parsed:
    request: Request
    dropped: tuple[str, ...] = ()
    """The places of unknown fields that the pool's configuration drops."""


def parse_request(body: Mapping[str, Any], endpoint: Endpoint | None = None) -> Request:
    """Return OpenAI's body as a Request. If `endpoint` is None, the body's input names it: `messages`, `prompt` or
    `input`.

    Raises InvalidRequest, which names the field and never repeats a value.
    """
    return parse(body, endpoint).request


def parse(body: Mapping[str, Any], endpoint: Endpoint | None = None, *, drop_unknown: bool = False) -> Parsed:
    """Return the Request, and the unknown fields that were dropped. Raises InvalidRequest."""
    if endpoint is None:
        body = {name: value for name, value in body.items() if value is not None or name not in _INPUTS}
        endpoint = _endpoint_of(body)
    reading = Reading(drop_unknown)
    kept = without_idle_tools(read_fields(body, TABLES[endpoint], "", reading))
    check(kept)
    request = Request(
        model=kept["model"],
        endpoint=endpoint,
        body=_normal({name: value for name, value in kept.items() if name in _BODIES[endpoint]}),
        max_tokens=kept.get("max_completion_tokens", kept.get("max_tokens")),
        choices=kept.get("n", 1),
        stream=kept.get("stream", False),
        include_usage=kept.get("stream_options", {}).get("include_usage", False),
        **part_of(kept.get("metadata"), reading),
    )
    return Parsed(request, tuple(reading.dropped))


def _endpoint_of(body: Mapping[str, Any]) -> Endpoint:
    found = [endpoint for name, endpoint in _INPUTS.items() if name in body]
    if len(found) != 1:
        message = "Send exactly one of `messages` (chat), `prompt` (completion) and `input` (embeddings)."
        raise InvalidRequest(message, "messages")
    return found[0]


def _normal(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with one form for values that have two: a prompt, or a list with this prompt alone.

    In-process engines read one text, or one list of token ids, as the prompt. `stop` becomes a list.
    """
    if isinstance(stop := body.get("stop"), str):
        body["stop"] = [stop]
    if isinstance(prompt := body.get("prompt"), list) and isinstance(prompt[0], str | list):
        body["prompt"] = prompt[0]
    return body
