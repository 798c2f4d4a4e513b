"""Everything that enters the gate from a tenant, validated: OpenAI's request bodies, reduced to one `Request`.

A field that headgate honours is read; one that changes nothing at its neutral value (n = 1, top_p = 1 …) is accepted
at that value; one that is known but not offered, or unknown, is refused by name: silence would be a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Request

MESSAGES_MAX = 256
STOPS_MAX = 4
STOP_CHARS_MAX = 200
PROMPT_CHARS_MAX = 400_000
SEED_MAX = 2**63 - 1

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "echo": (False,),
    "logit_bias": ({},),
    "store": (False,),
    "tools": ([],),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "suffix": ("",),
}
"""Fields accepted where they ask for nothing; null always does."""
_IGNORED = frozenset({"user", "safety_identifier", "prompt_cache_key"})
"""Fields about the tenant's own users: accepted, never trusted, never forwarded."""
METADATA_PREFIX = "headgate_"
"""Of `metadata` these keys are read, the others are as ignored. They say what a request is part of, and order the
tenant's own requests; tenant, tier, weight, deadline and cache salt are nobody's word but the gate's."""
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

    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class _StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool = False


_Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


class _Metadata(_Strict):
    """Values are strings, as OpenAI's are; a stage may be a number too."""

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
        """A whole number is a number too; one too large for a float is left to be refused as it is."""
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return float(value) if is_whole and abs(value) <= SEED_MAX else value

    @field_validator("metadata", mode="before")
    @classmethod
    def _ours(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return {name: each for name, each in value.items() if name.startswith(METADATA_PREFIX)}

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


def parse_request(body: Mapping[str, Any], *, chat: bool | None = None) -> Request:
    """OpenAI's body as a Request. `chat` None takes the form that the body has (`messages` or `prompt`).

    Raises InvalidRequest, which names the field.
    """
    fields = _without_neutral(body)
    if chat is None:
        chat = _is_chat(fields)
    try:
        parsed = (_Chat if chat else _Completion).model_validate(fields)
    except ValidationError as error:
        raise _first_error(error) from None
    return _reduced(parsed)


def _is_chat(fields: Mapping[str, Any]) -> bool:
    if ("messages" in fields) == ("prompt" in fields):
        raise InvalidRequest("Give either `messages` (chat) or `prompt` (completion).", "messages")
    return "messages" in fields


def _reduced(parsed: _Chat | _Completion) -> Request:
    chat = isinstance(parsed, _Chat)
    part_of = parsed.metadata or _Metadata()
    max_tokens = (parsed.max_completion_tokens or parsed.max_tokens) if isinstance(parsed, _Chat) else parsed.max_tokens
    return Request(
        model=parsed.model,
        chat=chat,
        prompt=parsed.prompt if isinstance(parsed, _Completion) else None,
        messages=tuple({"role": m.role, "content": m.text()} for m in parsed.messages)
        if isinstance(parsed, _Chat)
        else None,
        max_tokens=max_tokens,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        seed=parsed.seed,
        stop=parsed.stops(),
        stream=bool(parsed.stream),
        include_usage=bool(parsed.stream_options and parsed.stream_options.include_usage),
        app=part_of.headgate_application,
        stage=part_of.headgate_stage,
        interaction=part_of.headgate_interaction,
    )


def _without_neutral(body: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name in _IGNORED:
            continue
        if name not in _NEUTRAL:
            kept[name] = value
        elif value is not None and not any(_same(value, neutral) for neutral in _NEUTRAL[name]):
            message = f"`{name}` is not supported here beyond its neutral value."
            raise InvalidRequest(message, name, "unsupported_parameter")
    return kept


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and not merely True == 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _first_error(error: ValidationError) -> InvalidRequest:
    """The first finding, in words: the value itself is never repeated (it may be a prompt)."""
    finding = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = ".".join(str(part) for part in finding["loc"] if part not in ("str", "list[_TextPart]", "list[str]"))
    if finding["type"] == "extra_forbidden":
        return InvalidRequest(f"Unknown parameter: `{param[:100]}`.", param[:100], "unknown_parameter")
    if finding["type"] == "missing":
        return InvalidRequest(f"Missing required parameter: `{param}`.", param, "missing_required_parameter")
    return InvalidRequest(f"Invalid `{param}`: {finding['msg']}.", param, "invalid_value")
