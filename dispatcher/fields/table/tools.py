"""Fields about tools: their definitions, the choice among them, and the calls in a message. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, FieldTable, Kind
from dispatcher.fields.limits import DESCRIPTION_CHARS_MAX, NAME_CHARS_MAX, TEXT_CHARS_MAX, TOOL_CALLS_MAX, TOOLS_MAX
from dispatcher.fields.shapes.containers import Either, Form, Items, Record, Tagged
from dispatcher.fields.shapes.scalars import Flag, Text, Word
from dispatcher.fields.shapes.schemas import Schema
from dispatcher.fields.table.ours import ANTHROPIC, LITELLM, label, refused
from dispatcher.fields.table.sampling import VLLM
from dispatcher.model.fleet import Capability

TOOLS_NEED = (Capability.TOOLS,)
NAME = Field(Kind.PASSED, Text(NAME_CHARS_MAX, 1), required=True)
NO_FIELDS = FieldTable("", {})
ONLY_FUNCTIONS = "Define a tool with the type `function`."

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
TOOL_CALLS = Items(
    Tagged("type", {"function": Form(TOOL_CALL), "custom": Form(NO_FIELDS, refused=ONLY_FUNCTIONS)}, usual="function"),
    TOOL_CALLS_MAX,
)

TOOLS: Mapping[str, Field] = {
    "tools": Field(
        Kind.BOUNDED,
        Items(
            Tagged(
                "type", {"function": Form(TOOL), "custom": Form(NO_FIELDS, refused=ONLY_FUNCTIONS)}, usual="function"
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
                        "custom": Form(NO_FIELDS, refused=ONLY_FUNCTIONS),
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
