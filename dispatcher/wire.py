"""Validates a tenant's request: turns OpenAI's body into a `Request`.

headgate reads the fields that it supports. A field that changes nothing at its neutral value (n = 1, top_p = 1 …) is
accepted at that value (dispatcher/neutral_fields.py). Any other field or value is refused by name, because ignoring it
would give a wrong answer without a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.worker_protocol import SEED_MAX
from dispatcher.neutral_fields import MESSAGE, REQUEST, without_labels, without_neutral

MESSAGES_MAX = 256
STOPS_MAX = 4
STOP_CHARS_MAX = 200
PROMPT_CHARS_MAX = 400_000

METADATA_PREFIX = "headgate_"
"""headgate reads the keys of `metadata` with this prefix and ignores all others. They name the request's application,
interaction and stage. A client cannot set the tenant, tier, weight, deadline or cache salt."""
STAGE_MAX = 1000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _TextPart(_Strict):
    type: Literal["text"]
    text: str = Field(max_length=PROMPT_CHARS_MAX)


class _Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_TextPart]
    name: str | None = Field(default=None, max_length=64)
    """Accepted and dropped: the model reads only the role and the content."""

    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class _StreamOptions(_Strict):
    include_usage: bool | None = False
    include_obfuscation: bool | None = False


_Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


class _Metadata(_Strict):
    """Values are strings, as in OpenAI's API; a stage may also be a number."""

    headgate_application: _Label = ""
    headgate_stage: Annotated[int, Field(ge=0, le=STAGE_MAX)] = 0
    headgate_interaction: _Label = ""

    @field_validator("headgate_stage", mode="before")
    @classmethod
    def _digits(cls, value: Any) -> Any:
        return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,4}", value) else value


class _Common(_Strict):
    model: str = Field(min_length=1, max_length=200)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: int | None = Field(default=None, ge=-SEED_MAX, le=SEED_MAX)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    metadata: _Metadata | None = None

    @field_validator("temperature", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        """Turn a whole number into a float. A number that is too large for a float stays, and is refused later."""
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return float(value) if is_whole and abs(value) <= SEED_MAX else value

    @field_validator("metadata", mode="before")
    @classmethod
    def _own_keys(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ValueError("an object of strings is required")
        own = {name: each for name, each in value.items() if name.startswith(METADATA_PREFIX)}
        return {name: each for name, each in own.items() if each is not None or name not in _Metadata.model_fields}

    @field_validator("stop")
    @classmethod
    def _bounded_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        stops = [value] if isinstance(value, str) else value or []
        if len(stops) > STOPS_MAX or any(not 1 <= len(stop) <= STOP_CHARS_MAX for stop in stops):
            raise ValueError(f"at most {STOPS_MAX} stop strings of 1 to {STOP_CHARS_MAX} characters")
        return value

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class _Chat(_Common):
    messages: list[_Message] = Field(min_length=1, max_length=MESSAGES_MAX)
    max_completion_tokens: int | None = Field(default=None, ge=1)


class _Completion(_Common):
    prompt: str = Field(max_length=PROMPT_CHARS_MAX)


def parse_request(body: Mapping[str, Any], endpoint: Endpoint | None = None) -> Request:
    """Return OpenAI's body as a Request. If `endpoint` is None, the request is a chat if the body has `messages`.

    Raises InvalidRequest, which names the field.
    """
    if endpoint is None:
        body = {name: value for name, value in body.items() if value is not None or name not in ("messages", "prompt")}
        endpoint = Endpoint.CHAT if _is_chat(body) else Endpoint.COMPLETION
    fields = without_neutral(without_labels(body), REQUEST)
    if isinstance(messages := fields.get("messages"), list):
        fields["messages"] = [_message(each, number) for number, each in enumerate(messages)]
    try:
        parsed = (_Chat if endpoint is Endpoint.CHAT else _Completion).model_validate(fields)
    except ValidationError as error:
        raise _first_error(error) from None
    return _reduced(parsed)


def _is_chat(body: Mapping[str, Any]) -> bool:
    if ("messages" in body) == ("prompt" in body):
        raise InvalidRequest("Give either `messages` (chat) or `prompt` (completion).", "messages")
    return "messages" in body


def _message(fields: Any, number: int) -> Any:
    """Return a message without its neutral fields. An assistant's message without content gets the empty text.

    OpenAI allows null content only beside tool calls or a refusal. But a client must be able to send an answer with
    null content back in the next turn, and the empty text keeps the order of the turns.
    """
    if not isinstance(fields, dict):
        return fields
    kept = without_neutral(fields, MESSAGE, f"messages.{number}.")
    if kept.get("role") == "assistant" and kept.get("content") is None:
        kept["content"] = ""
    return kept


def _reduced(parsed: _Chat | _Completion) -> Request:
    part_of = parsed.metadata or _Metadata()
    max_tokens = (parsed.max_completion_tokens or parsed.max_tokens) if isinstance(parsed, _Chat) else parsed.max_tokens
    return Request(
        model=parsed.model,
        endpoint=Endpoint.CHAT if isinstance(parsed, _Chat) else Endpoint.COMPLETION,
        body=_passed(parsed),
        max_tokens=max_tokens,
        stream=bool(parsed.stream),
        include_usage=bool(parsed.stream_options and parsed.stream_options.include_usage),
        app=part_of.headgate_application,
        stage=part_of.headgate_stage,
        interaction=part_of.headgate_interaction,
    )


def _passed(parsed: _Chat | _Completion) -> dict[str, Any]:
    """Return the fields that the engine gets."""
    if isinstance(parsed, _Chat):
        given: dict[str, Any] = {
            "messages": [{"role": each.role, "content": each.text()} for each in parsed.messages],
        }
    else:
        given = {"prompt": parsed.prompt}
    given |= {"temperature": parsed.temperature, "seed": parsed.seed, "stop": list(parsed.stops()) or None}
    return {name: value for name, value in given.items() if value is not None}


def _first_error(error: ValidationError) -> InvalidRequest:
    """Return the first finding as a sentence. It never repeats the value, which may be a prompt."""
    finding = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = ".".join(str(part) for part in finding["loc"] if part not in ("str", "list[_TextPart]", "list[str]"))
    if finding["type"] == "extra_forbidden":
        return InvalidRequest(f"Unknown parameter: `{param[:100]}`.", param[:100], "unknown_parameter")
    if finding["type"] == "missing":
        return InvalidRequest(f"Missing required parameter: `{param}`.", param, "missing_required_parameter")
    reason = finding["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"Invalid `{param}`: {reason}.", param, "invalid_value")
