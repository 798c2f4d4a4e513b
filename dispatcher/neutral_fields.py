"""Fields of OpenAI's and vLLM's bodies that headgate accepts at a neutral value and drops.

A value is neutral if the answer is the same without the field: `n` 1, penalties 0, no tools. Null is neutral for each
field here, because OpenAI's SDKs write null for "not set". Any other value is refused by name. A field at a neutral
value is dropped: it changes neither the request's fingerprint nor what the worker receives.

A new field is one new line in a table. A field that headgate reads (`temperature`, `seed` …) is in dispatcher/wire.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dispatcher.model.errors import InvalidRequest

Accepted = Mapping[str, tuple[Any, ...]]
"""The neutral values of each field, beside null."""

REQUEST: Accepted = {
    # How many answers, and of which tokens
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),  # not 0: a completion with `logprobs` 0 has the log probability of each token it samples
    "top_logprobs": (0,),
    # Sampling
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "logit_bias": ({},),
    # Tools: without a tool to call, these choices ask for text
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    # The form of the answer
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    # How OpenAI serves and keeps it
    "service_tier": ("auto", "default"),
    "store": (False,),
    "moderation": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
}
"""Fields of a chat and of a completion: a client may send the same settings with both."""
MESSAGE: Accepted = {
    "refusal": ("",),
    "annotations": ([],),
    "audio": ({},),
    "tool_calls": ([],),
    "tool_call_id": (),
    "function_call": ({},),
    "parsed": (),  # the OpenAI SDK's `parse()` adds it to the answer's message
    "reasoning": ("",),  # vLLM's answers have it, `reasoning_content` in older versions
    "reasoning_content": ("",),
}
LABELS = frozenset({"user", "safety_identifier", "prompt_cache_key"})
"""Fields about the tenant's own users. Any value is accepted; headgate neither uses nor forwards it."""


def without_neutral(fields: Mapping[str, Any], accepted: Accepted, prefix: str = "") -> dict[str, Any]:
    """Return the fields that are not in the table. `prefix` is their place in the body, for example `messages.1.`.

    Raises InvalidRequest if a field of the table has a value that is not neutral. The error names the field and the
    accepted values, and does not repeat the value.
    """
    for name, value in fields.items():
        if name in accepted and not _is_neutral(value, accepted[name]):
            raise _unsupported(prefix + name, accepted[name])
    return {name: value for name, value in fields.items() if name not in accepted}


def without_labels(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that are not labels."""
    return {name: value for name, value in fields.items() if name not in LABELS}


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return value is None or any(_is_same(value, each) for each in neutral)


def _is_same(value: Any, neutral: Any) -> bool:
    """True for equal values, but not for True and 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _unsupported(param: str, neutral: tuple[Any, ...]) -> InvalidRequest:
    values = " or ".join(["null", *(json.dumps(each) for each in neutral)])
    message = f"`{param}` is not supported at this value: leave it out or send {values}."
    return InvalidRequest(message, param, "unsupported_parameter")
