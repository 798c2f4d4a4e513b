"""The objects in a response's body: input items, their content parts, tools, and the form of the answer. Pure."""

from __future__ import annotations

from dispatcher.fields.chat_objects import NO_FIELDS
from dispatcher.fields.common import label, refused
from dispatcher.fields.kinds import Field, FieldTable, Kind
from dispatcher.fields.limits import (
    DESCRIPTION_CHARS_MAX,
    MESSAGES_MAX,
    NAME_CHARS_MAX,
    PARTS_MAX,
    TEXT_CHARS_MAX,
    TOOLS_MAX,
)
from dispatcher.fields.shapes import Anything, Either, Flag, Form, Items, Tagged, Text, Word

_ID = Field(Kind.READ, Text(NAME_CHARS_MAX, 1))
_NAME = Field(Kind.READ, Text(NAME_CHARS_MAX, 1), required=True)
_TEXT = Field(Kind.BOUNDED, Text(TEXT_CHARS_MAX), required=True)
_CACHE = label("It configures OpenAI's cache.")
_STATUS = label("The gate sets it.")
_DIRECT = refused("The gate runs no programs.", {"type": "direct"})
_FETCHED = "The gate accepts text, and images as `data:` URLs."

TEXT = FieldTable("text of a response", {"text": _TEXT, "prompt_cache_breakpoint": _CACHE})
_OUTPUT_TEXT = FieldTable(
    "output_text of a response",
    {
        "text": _TEXT,
        "annotations": label("Sources of an earlier answer; the model does not read them."),
        "logprobs": label("The model does not read them."),
        "parsed": label("The OpenAI SDK's `parse()` adds it."),
    },
)
_REFUSAL = FieldTable("refusal of a response", {"refusal": _TEXT})
_IMAGE = FieldTable(
    "input_image of a response",
    {
        "image_url": Field(Kind.BOUNDED, Text(TEXT_CHARS_MAX, 1), "A `data:` URL.", required=True),
        "detail": Field(Kind.PASSED, Text(NAME_CHARS_MAX)),
        "file_id": refused("The gate stores no files; send a `data:` URL."),
        "prompt_cache_breakpoint": _CACHE,
    },
)
_REFUSED_PARTS = {name: Form(NO_FIELDS, refused=_FETCHED) for name in ("input_file", "input_audio", "input_video")}
_TEXTS = {
    "input_text": Form(TEXT),
    "text": Form(TEXT),
    "output_text": Form(_OUTPUT_TEXT),
    "refusal": Form(_REFUSAL),
    **_REFUSED_PARTS,
}
_PARTS = Items(Tagged("type", {**_TEXTS, "input_image": Form(_IMAGE)}), PARTS_MAX)
_OF_A_TOOL = {**_TEXTS, "input_image": Form(NO_FIELDS, refused="Only a message has images.")}

_MESSAGE_ITEM = FieldTable(
    "message of a response",
    {
        "id": _ID,
        "role": Field(Kind.READ, Word(("user", "assistant", "system", "developer")), required=True),
        "content": Field(Kind.BOUNDED, Either({str: Text(TEXT_CHARS_MAX), list: _PARTS}), required=True),
        "status": _STATUS,
        "phase": label("The chat has one kind of answer."),
    },
)
_FUNCTION_CALL = FieldTable(
    "function_call of a response",
    {
        "id": _ID,
        "call_id": _NAME,
        "name": _NAME,
        "arguments": _TEXT,
        "status": _STATUS,
        "parsed_arguments": label("The OpenAI SDK's `parse()` adds it."),
        "namespace": refused("Send the function without a namespace."),
        "caller": _DIRECT,
        "async": refused("The model waits for each result.", False),
    },
)
_FUNCTION_CALL_OUTPUT = FieldTable(
    "function_call_output of a response",
    {
        "id": _ID,
        "call_id": _NAME,
        "output": Field(
            Kind.BOUNDED,
            Either({str: Text(TEXT_CHARS_MAX), list: Items(Tagged("type", _OF_A_TOOL), PARTS_MAX)}),
            required=True,
        ),
        "status": _STATUS,
        "name": label("The `call_id` names the call."),
        "namespace": refused("Send the function without a namespace."),
        "caller": _DIRECT,
        "created_by": label("The gate does not read it."),
    },
)
_WRITTEN = FieldTable("part of a reasoning item", {"text": _TEXT})
_REASONING_ITEM = FieldTable(
    "reasoning of a response",
    {
        "id": _ID,
        "summary": Field(Kind.BOUNDED, Items(Tagged("type", {"summary_text": Form(_WRITTEN)}), PARTS_MAX)),
        "content": Field(Kind.BOUNDED, Items(Tagged("type", {"reasoning_text": Form(_WRITTEN)}), PARTS_MAX)),
        "encrypted_content": label("The gate encrypts no reasoning, and ignores that of other servers."),
        "status": _STATUS,
    },
)
_REFERENCE = FieldTable(
    "item_reference of a response", {"id": Field(Kind.READ, Text(NAME_CHARS_MAX, 1), required=True)}
)

INPUT = Either(
    {
        str: Text(TEXT_CHARS_MAX),
        list: Items(
            Tagged(
                "type",
                {
                    "message": Form(_MESSAGE_ITEM),
                    "function_call": Form(_FUNCTION_CALL),
                    "function_call_output": Form(_FUNCTION_CALL_OUTPUT),
                    "reasoning": Form(_REASONING_ITEM),
                    "item_reference": Form(_REFERENCE),
                },
                usual="message",
            ),
            MESSAGES_MAX,
        ),
    }
)

_RESPONSE_TOOL = FieldTable(
    "function tool of a response",
    {
        "name": _NAME,
        "description": Field(Kind.BOUNDED, Text(DESCRIPTION_CHARS_MAX)),
        "parameters": Field(Kind.BOUNDED, Anything(), "A JSON schema, checked as that of a chat's tool."),
        "strict": Field(Kind.PASSED, Flag()),
        "output_schema": label("The model does not read it."),
        "defer_loading": refused("The model gets all tools.", False),
        "allowed_callers": refused("The gate runs no programs.", ["direct"]),
        "async": refused("The model waits for each result.", False),
    },
)
_HOSTED = "The gate runs no tools: define a tool with the type `function`, and call it in the client."
_NOT_OURS = (
    *("web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "shell"),
    *("local_shell", "computer", "computer_use_preview", "apply_patch", "custom", "namespace", "tool_search"),
)
RESPONSE_TOOLS = Items(
    Tagged(
        "type", {"function": Form(_RESPONSE_TOOL), **{name: Form(NO_FIELDS, refused=_HOSTED) for name in _NOT_OURS}}
    ),
    TOOLS_MAX,
)
_CHOSEN_FUNCTION = FieldTable("function of tool_choice", {"name": _NAME})
_ALLOWED_TOOLS = FieldTable(
    "allowed_tools of tool_choice",
    {
        "mode": Field(Kind.READ, Word(("auto", "required")), required=True),
        "tools": Field(
            Kind.READ, Items(Tagged("type", {"function": Form(_CHOSEN_FUNCTION)}), TOOLS_MAX, 1), required=True
        ),
    },
)
RESPONSE_TOOL_CHOICE = Either(
    {
        str: Word(("none", "auto", "required")),
        dict: Tagged("type", {"function": Form(_CHOSEN_FUNCTION), "allowed_tools": Form(_ALLOWED_TOOLS)}),
    }
)
_TEXT_SCHEMA = FieldTable(
    "text.format json_schema",
    {
        "name": _NAME,
        "schema": Field(Kind.BOUNDED, Anything(), "A JSON schema, checked as that of a chat's.", required=True),
        "description": Field(Kind.BOUNDED, Text(DESCRIPTION_CHARS_MAX)),
        "strict": Field(Kind.PASSED, Flag()),
    },
)
TEXT_FORMAT = Tagged(
    "type", {"text": Form(NO_FIELDS), "json_object": Form(NO_FIELDS), "json_schema": Form(_TEXT_SCHEMA)}
)
OBJECTS = (
    _MESSAGE_ITEM,
    _FUNCTION_CALL,
    _FUNCTION_CALL_OUTPUT,
    _REASONING_ITEM,
    _REFERENCE,
    TEXT,
    _OUTPUT_TEXT,
    _REFUSAL,
    _IMAGE,
    _RESPONSE_TOOL,
    _CHOSEN_FUNCTION,
    _ALLOWED_TOOLS,
    _TEXT_SCHEMA,
)
