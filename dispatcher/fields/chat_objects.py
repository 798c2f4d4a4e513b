"""The objects in a chat's body: tools, their calls, messages, their content parts, the form of the answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.common import ANTHROPIC, LITELLM, VLLM, label, refused
from dispatcher.fields.images import ImageUrl
from dispatcher.fields.kinds import Field, FieldTable, Kind
from dispatcher.fields.limits import (
    ALTERNATIVES_MAX,
    DESCRIPTION_CHARS_MAX,
    GRAMMAR_CHARS_MAX,
    MESSAGES_MAX,
    NAME_CHARS_MAX,
    PARTS_MAX,
    TEXT_CHARS_MAX,
    TOOL_CALLS_MAX,
    TOOLS_MAX,
)
from dispatcher.fields.schemas import PatternShape, Schema
from dispatcher.fields.shapes import Either, Flag, Form, Items, Record, Tagged, Text, Word
from dispatcher.model.fleet import Capability

TOOLS_NEED = (Capability.TOOLS,)
NAME = Field(Kind.PASSED, Text(NAME_CHARS_MAX, 1), required=True)
NO_FIELDS = FieldTable("", {})
_ONLY_FUNCTIONS = "Define a tool with the type `function`."

FUNCTION = FieldTable(
    "function of a tool",
    {
        "name": NAME,
        "description": Field(Kind.BOUNDED, Text(DESCRIPTION_CHARS_MAX)),
        "parameters": Field(Kind.BOUNDED, Schema()),
        "strict": Field(Kind.PASSED, Flag()),
        "defer_loading": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    },
)
TOOL = FieldTable(
    "tool",
    {
        "function": Field(Kind.PASSED, Record(FUNCTION), required=True),
        "defer_loading": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
        "cache_control": ANTHROPIC,
    },
)
NAMED = FieldTable("name of a function", {"name": NAME})
NAMED_TOOL = FieldTable("named tool", {"function": Field(Kind.PASSED, Record(NAMED), required=True)})

CALLED = FieldTable(
    "function of a tool call",
    {
        "name": NAME,
        "arguments": Field(Kind.BOUNDED, Text(TEXT_CHARS_MAX), required=True),
        "parsed_arguments": label("The OpenAI SDK's `parse()` adds it; `arguments` has the same value as text."),
        "provider_specific_fields": LITELLM,
    },
)
TOOL_CALL = FieldTable(
    "tool call",
    {
        "id": Field(Kind.PASSED, Text(NAME_CHARS_MAX, 1)),
        "function": Field(Kind.PASSED, Record(CALLED), required=True),
        "index": label("The place of the call in a stream."),
        "provider_specific_fields": LITELLM,
        "extra_content": label("Gemini's servers add it to calls; the model does not read it."),
        "cache_control": ANTHROPIC,
    },
)
_TOOL_CALLS = Items(
    Tagged("type", {"function": Form(TOOL_CALL), "custom": Form(NO_FIELDS, refused=_ONLY_FUNCTIONS)}, usual="function"),
    TOOL_CALLS_MAX,
)

TOOLS: Mapping[str, Field] = {
    "tools": Field(
        Kind.BOUNDED,
        Items(
            Tagged(
                "type", {"function": Form(TOOL), "custom": Form(NO_FIELDS, refused=_ONLY_FUNCTIONS)}, usual="function"
            ),
            TOOLS_MAX,
        ),
        "Their text counts as input.",
        neutral=([],),
        capability=TOOLS_NEED,
    ),
    "tool_choice": Field(
        Kind.PASSED,
        Either(
            {
                str: Word(("none", "auto", "required")),
                dict: Tagged(
                    "type",
                    {
                        "function": Form(NAMED_TOOL),
                        "allowed_tools": Form(NO_FIELDS, refused="Send only these tools in `tools`."),
                        "custom": Form(NO_FIELDS, refused=_ONLY_FUNCTIONS),
                    },
                ),
            }
        ),
        'Without `tools`, "none" and "auto" change nothing, and the other values are refused.',
    ),
    "parallel_tool_calls": Field(Kind.PASSED, Flag(), "Without `tools` it changes nothing."),
    "functions": refused("Use `tools`.", []),
    "function_call": refused("Use `tool_choice`.", "none", "auto"),
}


_CACHE = label("It configures OpenAI's cache.")
_SOURCES = label("Sources of an earlier answer; the model does not read them.")
_THEIRS = label("Engines and gateways add it to answers; the model does not read it.")
TEXT_PART = FieldTable(
    "text part",
    {
        "text": Field(Kind.BOUNDED, Text(TEXT_CHARS_MAX), required=True),
        "prompt_cache_breakpoint": _CACHE,
        "cache_control": ANTHROPIC,
        "annotations": _SOURCES,
    },
)
IMAGE_URL = FieldTable(
    "image_url",
    {
        "url": Field(Kind.BOUNDED, ImageUrl(), required=True),
        "detail": Field(Kind.PASSED, Word(("auto", "low", "high", "original"))),
    },
)
IMAGE_PART = FieldTable(
    "image part",
    {
        "image_url": Field(Kind.BOUNDED, Record(IMAGE_URL), required=True),
        "prompt_cache_breakpoint": _CACHE,
        "cache_control": ANTHROPIC,
        "uuid": Field(Kind.OURS, Text(1), "An engine would share the image between tenants by this name."),
    },
)
_FETCHED = "The gate accepts text, and images as `data:` URLs."
_REFUSED_PARTS = {
    name: Form(NO_FIELDS, refused=_FETCHED)
    for name in (
        *("input_audio", "audio_url", "audio_embeds", "video_url", "file", "input_file", "image_embeds", "image_pil"),
        *("prompt_embeds", "input_image", "input_text", "output_text", "refusal", "thinking"),
    )
}
_TEXT_ONLY = {"text": Form(TEXT_PART), "image_url": Form(NO_FIELDS, refused="Only a user's message has images.")}
_TEXTS = Tagged("type", {**_TEXT_ONLY, **_REFUSED_PARTS})
_TEXTS_AND_IMAGES = Tagged(
    "type", {"text": Form(TEXT_PART), "image_url": Form(IMAGE_PART, (Capability.IMAGES,)), **_REFUSED_PARTS}
)
_TEXT = Text(TEXT_CHARS_MAX)
_WRITTEN = Either({str: _TEXT, list: Items(_TEXTS, PARTS_MAX, 1)})

_NAME = Field(Kind.PASSED, Text(NAME_CHARS_MAX), neutral=("",))
_CONTENT = Field(Kind.BOUNDED, _WRITTEN, required=True)
_REASONING = Field(Kind.BOUNDED, _TEXT, "The model's chat template decides whether the model reads it.", neutral=("",))

INSTRUCTIONS = FieldTable(
    "system or developer message", {"content": _CONTENT, "name": _NAME, "cache_control": ANTHROPIC}
)
USER = FieldTable(
    "user message",
    {
        "content": Field(
            Kind.BOUNDED, Either({str: _TEXT, list: Items(_TEXTS_AND_IMAGES, PARTS_MAX, 1)}), required=True
        ),
        "name": _NAME,
        "cache_control": ANTHROPIC,
    },
)
TOOL_RESULT = FieldTable(
    "tool message",
    {
        "content": _CONTENT,
        "tool_call_id": Field(Kind.PASSED, Text(NAME_CHARS_MAX, 1), required=True),
        "name": _NAME,
        "cache_control": ANTHROPIC,
    },
)
ASSISTANT = FieldTable(
    "assistant message",
    {
        "content": Field(Kind.BOUNDED, _WRITTEN, "Without content, the message has the empty text.", neutral=([],)),
        "name": _NAME,
        "tool_calls": Field(Kind.BOUNDED, _TOOL_CALLS, neutral=([],), capability=TOOLS_NEED),
        "reasoning": _REASONING,
        "reasoning_content": _REASONING,
        "refusal": _REASONING,
        "audio": refused("The gate accepts text.", {}),
        "function_call": refused("Use `tool_calls`.", {}),
        "tool_call_id": refused("Only a tool message has it."),
        "annotations": _SOURCES,
        "citations": _SOURCES,
        "provider_specific_fields": _THEIRS,
        "extra_content": _THEIRS,
        "reasoning_details": _THEIRS,
        "thinking_blocks": _THEIRS,
        "cache_control": ANTHROPIC,
        "parsed": label("The OpenAI SDK's `parse()` adds it; the content has the same value as text."),
    },
)
"""An answer's message with its null fields, as an SDK sends it back in the next turn, is such a message."""

MESSAGE = Tagged(
    "role",
    {
        "system": Form(INSTRUCTIONS),
        "developer": Form(INSTRUCTIONS),
        "user": Form(USER),
        "assistant": Form(ASSISTANT, defaults={"content": ""}),
        "tool": Form(TOOL_RESULT, TOOLS_NEED),
        "function": Form(NO_FIELDS, refused="Use the role `tool`."),
    },
)
MESSAGES = Items(MESSAGE, MESSAGES_MAX, 1)


_STRUCTURED_NEED = (Capability.STRUCTURED,)

JSON_SCHEMA = FieldTable(
    "json_schema",
    {
        "name": NAME,
        "description": Field(Kind.BOUNDED, Text(DESCRIPTION_CHARS_MAX)),
        "schema": Field(Kind.BOUNDED, Schema(), required=True),
        "strict": Field(Kind.PASSED, Flag()),
    },
)
JSON_SCHEMA_FORMAT = FieldTable(
    "response_format json_schema", {"json_schema": Field(Kind.PASSED, Record(JSON_SCHEMA), required=True)}
)
STRUCTURAL_TAG = FieldTable(
    "response_format structural_tag",
    {
        "format": Field(Kind.BOUNDED, Schema()),
        "structures": Field(Kind.BOUNDED, Items(Schema(), ALTERNATIVES_MAX)),
        "triggers": Field(Kind.BOUNDED, Items(Text(200, 1), ALTERNATIVES_MAX)),
    },
)
STRUCTURED_OUTPUTS = FieldTable(
    "structured_outputs",
    {
        "json": Field(Kind.BOUNDED, Schema()),
        "regex": Field(Kind.BOUNDED, PatternShape()),
        "choice": Field(Kind.BOUNDED, Items(Text(1_000, 1), ALTERNATIVES_MAX, 1)),
        "grammar": Field(Kind.BOUNDED, Text(GRAMMAR_CHARS_MAX, 1)),
        "json_object": Field(Kind.PASSED, Flag()),
        "disable_any_whitespace": Field(Kind.PASSED, Flag(), neutral=(False,)),
        "disable_additional_properties": Field(Kind.PASSED, Flag(), neutral=(False,)),
        "whitespace_pattern": Field(Kind.BOUNDED, PatternShape()),
        "structural_tag": refused("Use `response_format` with the type `structural_tag`."),
        "_backend": refused("The operator configures the engine."),
        "_backend_was_auto": refused("The operator configures the engine."),
    },
)

FORMATS: Mapping[str, Field] = {
    "response_format": Field(
        Kind.BOUNDED,
        Tagged(
            "type",
            {
                "text": Form(NO_FIELDS),
                "json_object": Form(NO_FIELDS, _STRUCTURED_NEED),
                "json_schema": Form(JSON_SCHEMA_FORMAT, _STRUCTURED_NEED),
                "structural_tag": Form(STRUCTURAL_TAG, VLLM),
            },
        ),
        neutral=({"type": "text"},),
    ),
    "structured_outputs": Field(Kind.BOUNDED, Record(STRUCTURED_OUTPUTS), neutral=({},), capability=VLLM),
}
