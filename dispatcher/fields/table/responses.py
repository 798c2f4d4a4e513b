"""The table of `POST /v1/responses`. Pure.

The front translates a response to a chat, and the chat's table checks the result.
"""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, FieldTable, Kind, merged
from dispatcher.fields.limits import (
    DESCRIPTION_CHARS_MAX,
    LOGPROBS_MAX,
    NAME_CHARS_MAX,
)
from dispatcher.fields.shapes.containers import Items, Record
from dispatcher.fields.shapes.scalars import Flag, Text, Whole, Word
from dispatcher.fields.table.chat import EFFORTS, REASONING, TEMPLATE_KWARGS
from dispatcher.fields.table.formats import FORMATS
from dispatcher.fields.table.ours import LABELS, OURS, REFUSED, SERVED_BY_OPENAI, label, refused
from dispatcher.fields.table.response_items import INPUT, RESPONSE_TOOL_CHOICE, RESPONSE_TOOLS, TEXT_FORMAT
from dispatcher.fields.table.sampling import COMMON, VLLM_SAMPLING
from dispatcher.fields.table.tools import TOOLS_NEED

INCLUDES = ("reasoning.encrypted_content", "message.output_text.logprobs")
_TRANSLATED = "Translated to a chat, and checked as one."
_AS_IN_A_CHAT = ("model", "stream", "metadata", "stop", "seed", "temperature", "top_p", "top_k", "min_p")
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
_OF_VLLM = (
    *("ignore_eos", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "watermarking"),
    *("structured_outputs",),
)

STREAM_OPTIONS = FieldTable(
    "stream_options of a response",
    {"include_obfuscation": label("It adds random characters to OpenAI's events; the gate adds none.")},
)
REASONING_OPTIONS = FieldTable(
    "reasoning",
    {
        "effort": Field(Kind.READ, Word(EFFORTS), "Passed as `reasoning_effort`.", capability=REASONING),
        "summary": label("The gate sends the reasoning as the engine writes it."),
        "generate_summary": label("The old name of `summary`."),
        "context": refused("The gate passes the items of `input`.", "auto"),
        "mode": refused("It belongs to OpenAI's models.", "standard"),
    },
)
TEXT_OPTIONS = FieldTable(
    "text",
    {
        "format": Field(Kind.READ, TEXT_FORMAT, "Translated to `response_format`, and checked as it."),
        "verbosity": refused("Say it in the prompt.", "medium"),
    },
)

RESPONSES_ONLY: Mapping[str, Field] = {
    "input": Field(Kind.READ, INPUT, _TRANSLATED),
    "instructions": Field(Kind.READ, Text(DESCRIPTION_CHARS_MAX), "Translated to a system message."),
    "max_output_tokens": Field(Kind.READ, Whole(1), "The name of `max_tokens` here."),
    "max_tool_calls": label("It limits the calls of OpenAI's built-in tools; the gate has none."),
    "previous_response_id": Field(Kind.READ, Text(NAME_CHARS_MAX, 1), "A stored response of the same tenant."),
    "store": Field(Kind.READ, Flag(), "Stored unless it is false."),
    "stream_options": Field(Kind.READ, Record(STREAM_OPTIONS), neutral=({},)),
    "text": Field(Kind.READ, Record(TEXT_OPTIONS), neutral=({},)),
    "reasoning": Field(Kind.READ, Record(REASONING_OPTIONS), neutral=({},)),
    "tools": Field(Kind.READ, RESPONSE_TOOLS, _TRANSLATED, neutral=([],), capability=TOOLS_NEED),
    "tool_choice": Field(Kind.READ, RESPONSE_TOOL_CHOICE, _TRANSLATED),
    "parallel_tool_calls": Field(Kind.READ, Flag(), _TRANSLATED),
    "top_logprobs": Field(Kind.READ, Whole(0, LOGPROBS_MAX), neutral=(0,)),
    "include": Field(Kind.READ, Items(Word(INCLUDES), 16), neutral=([],)),
    "truncation": refused("Shorten `input`.", "disabled"),
    "background": refused("Send the request with the header `Idempotency-Key`, and repeat it.", False),
    "background_options": refused("It belongs to `background`."),
    "context_management": refused("Shorten `input`.", []),
    "conversation": refused("Use `previous_response_id`, or send the items in `input`."),
    "prompt": refused("The gate stores no prompts; use `instructions` and `input`."),
    "image": refused("The gate's answers are text."),
    "access_programs": refused("It belongs to OpenAI's platform."),
    "include_reasoning": Field(Kind.PASSED, Flag(), neutral=(True,), capability=REASONING),
    "chat_template_kwargs": TEMPLATE_KWARGS,
    "enable_response_messages": refused("The gate's answer has no place for its result.", False),
    "previous_input_messages": refused("Send the items in `input`."),
}

_SHARED = {
    name: field
    for name, field in merged(COMMON, VLLM_SAMPLING, FORMATS).items()
    if name in (*_AS_IN_A_CHAT, *_PENALTIES, *_OF_VLLM)
}
RESPONSES: Mapping[str, Field] = merged(OURS, RESPONSES_ONLY, _SHARED, LABELS, SERVED_BY_OPENAI, REFUSED)
