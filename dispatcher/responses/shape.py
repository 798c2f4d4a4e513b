"""The response object: what all states of one response share, and what each state adds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.model.errors import AnsweredError
from dispatcher.model.worker_protocol import Finished
from dispatcher.responses.ids import response_id
from dispatcher.responses.request import Asked

_RATE_LIMIT = 429
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields that every state of one response has."""

    call_id: str
    created: int
    """Unix seconds."""
    model: str
    asked: Asked

    @property
    def id(self) -> str:
        return response_id(self.call_id)

    def response(self, status: str, output: Sequence[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
        """Return the response in a state. `more` replaces fields, such as `usage` and `error`."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": list(output),
            "usage": None,
            **_settings(self.asked.fields),
            "store": self.asked.is_stored,
            **more,
        }


def ended(reason: str) -> tuple[str, dict[str, Any] | None]:
    """Return the status of a response and its `incomplete_details`, by the reason that the worker gives for its end."""
    if reason not in _INCOMPLETE:
        return "completed", None
    return "incomplete", {"reason": _INCOMPLETE[reason]}


def usage(finished: Finished) -> dict[str, Any]:
    """Return the counts in OpenAI's form. No engine counts the tokens that it writes to its cache: they are 0."""
    return {
        "input_tokens": finished.input_tokens,
        "input_tokens_details": {"cached_tokens": finished.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": finished.output_tokens,
        "output_tokens_details": {"reasoning_tokens": finished.reasoning_tokens},
        "total_tokens": finished.input_tokens + finished.output_tokens,
    }


def failure(error: AnsweredError) -> dict[str, Any]:
    """Return the `error` of a failed response. OpenAI's API has few codes; the message has the reason."""
    code = "rate_limit_exceeded" if error.status == _RATE_LIMIT else "server_error"
    return {"code": code, "message": error.message}


def _settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's settings as OpenAI's API repeats them, with its defaults."""
    reasoning = fields.get("reasoning", {})
    return {
        "instructions": fields.get("instructions"),
        "previous_response_id": fields.get("previous_response_id"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": fields.get("metadata") or {},
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "temperature": fields.get("temperature", 1.0),
        "text": {"format": fields.get("text", {}).get("format") or {"type": "text"}},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [
            {"description": None, "parameters": None, "strict": None, **tool} for tool in fields.get("tools", [])
        ],
        "top_logprobs": fields.get("top_logprobs", 0),
        "top_p": fields.get("top_p", 1.0),
        "truncation": "disabled",
        "background": False,
    }
