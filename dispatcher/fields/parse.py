"""Turns the body of a tenant's request into a `Request`, and compares a Request with what workers support. Pure.

1. The table reads each field by itself (kinds.py).
2. Fields that contradict each other are refused: each is valid alone, and the request is not.
3. `metadata` names what the request is a part of: its application, interaction, stage and SLO class. headgate reads the
   keys with the prefix `headgate_` and ignores all others. A client cannot set the tenant, tier, weight, deadline or
   cache salt.
4. A field is refused if a worker of the request's model lacks the capability that the field needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from dispatcher.fields.kinds import Kind, Need, Reading, invalid, needs_of, read_fields, unsupported
from dispatcher.fields.shapes import Text, Whole
from dispatcher.fields.tables import TABLES
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.fleet import Capability
from dispatcher.model.requests import Endpoint, Request

_BODIES = {endpoint: table.names(Kind.PASSED, Kind.BOUNDED) for endpoint, table in TABLES.items()}
_INPUTS = {endpoint.prompt_field: endpoint for endpoint in Endpoint}
_FORMS = ("json", "regex", "choice", "grammar", "json_object")
_PREFIX = "headgate_"
_NAMES = ("headgate_application", "headgate_stage", "headgate_interaction", "headgate_slo_class")
_STAGE_MAX = 1000
_LABEL = Text(64, 1, r"[A-Za-z0-9._:-]+", "letters, digits or any of . _ : -")
_STAGE = Whole(0, _STAGE_MAX)


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
    kept = _without_idle_tools(read_fields(body, TABLES[endpoint], "", reading))
    check(kept)
    request = Request(
        model=kept["model"],
        endpoint=endpoint,
        body=_normal({name: value for name, value in kept.items() if name in _BODIES[endpoint]}),
        max_tokens=kept.get("max_completion_tokens", kept.get("max_tokens")),
        choices=kept.get("n", 1),
        stream=kept.get("stream", False),
        include_usage=kept.get("stream_options", {}).get("include_usage", False),
        **_part_of(kept.get("metadata"), reading),
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


# Contradictions


def check(kept: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if two fields contradict each other. `kept` has no neutral values."""
    for error in (*_lengths(kept), *_tools(kept), *_logprobs(kept), *_formats(kept)):
        raise error


def _without_idle_tools(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without those that change nothing because the request has no tools."""
    if "tools" in kept:
        return kept
    idle = {"parallel_tool_calls"} | ({"tool_choice"} if kept.get("tool_choice") in ("none", "auto") else set())
    return {name: value for name, value in kept.items() if name not in idle}


def _lengths(kept: Mapping[str, Any]) -> Iterator[InvalidRequest]:
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in kept]
    if len({kept[name] for name in names}) > 1:
        yield invalid(names[-1], "it differs from `max_tokens`; send one of them")
    if names and kept.get("min_tokens", 0) > kept[names[-1]]:
        yield invalid("min_tokens", f"it is above `{names[-1]}`")


def _tools(kept: Mapping[str, Any]) -> Iterator[InvalidRequest]:
    names = [tool["function"]["name"] for tool in kept.get("tools", ())]
    if len(set(names)) < len(names):
        yield invalid("tools", "two tools have the same name")
    choice = kept.get("tool_choice")
    if choice is None:
        return
    if not names:
        yield invalid("tool_choice", "it needs `tools`")
    elif isinstance(choice, dict) and choice["function"]["name"] not in names:
        yield invalid("tool_choice.function.name", "it is no name of a tool in `tools`")


def _logprobs(kept: Mapping[str, Any]) -> Iterator[InvalidRequest]:
    for name in ("top_logprobs", "logprob_token_ids"):
        if name in kept and "logprobs" not in kept:
            yield invalid(name, "it needs `logprobs`")


def _formats(kept: Mapping[str, Any]) -> Iterator[InvalidRequest]:
    if "response_format" in kept and "structured_outputs" in kept:
        yield invalid("structured_outputs", "`response_format` asks for another form; send one of them")
    forms = [name for name in _FORMS if name in kept.get("structured_outputs", ())]
    if len(forms) > 1:
        yield invalid("structured_outputs", f"`{forms[0]}` and `{forms[1]}` ask for two forms; send one of them")


# What the request is a part of


class RequestPart(TypedDict, total=False):
    """What a request is a part of, by the names of the attributes of Request."""

    app: str
    stage: int
    interaction: str
    slo_class: str


def _part_of(metadata: Any, reading: Reading) -> RequestPart:
    """Return what `metadata` names. Values are texts, as in OpenAI's API; a stage may also be a number.

    Raises InvalidRequest.
    """
    part = RequestPart()
    if metadata is None:
        return part
    if not isinstance(metadata, dict):
        raise invalid("metadata", "an object of strings is required")
    for name, value in metadata.items():
        at = f"metadata.{name}"
        if not name.startswith(_PREFIX):
            continue
        if name not in _NAMES:
            Reading().unknown(at)
        elif value is None:
            continue
        elif name == "headgate_application":
            part["app"] = _LABEL.read(value, at, reading)
        elif name == "headgate_stage":
            part["stage"] = _STAGE.read(_number(value), at, reading)
        elif name == "headgate_slo_class":
            part["slo_class"] = _LABEL.read(value, at, reading)
        else:
            part["interaction"] = _LABEL.read(value, at, reading)
    return part


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,4}", value) else value


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
    fields, body = TABLES[request.endpoint].fields, request.body
    usual = [name for name in body if fields[name].is_usual(body[name])]
    return frozenset(name for name in usual if not any(each in capabilities for each in fields[name].capability))


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
