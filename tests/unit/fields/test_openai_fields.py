"""The table against the openai SDK's own types: a new version that adds a field fails here."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args, get_type_hints

import pytest

from dispatcher.fields.kinds import FieldTable
from dispatcher.fields.shapes.containers import Tagged
from dispatcher.fields.table import formats, messages, responses, sampling, tools
from dispatcher.fields.tables import CHAT_TABLE, COMPLETION_TABLE, EMBEDDINGS_TABLE, RESPONSES_TABLE

pytest.importorskip("openai")

STREAMING = "CompletionCreateParamsStreaming"
OBJECTS = [
    (CHAT_TABLE, "chat.completion_create_params", STREAMING),
    (CHAT_TABLE, "chat.completion_create_params", "CompletionCreateParamsNonStreaming"),
    (COMPLETION_TABLE, "completion_create_params", STREAMING),
    (RESPONSES_TABLE, "responses.response_create_params", "ResponseCreateParamsStreaming"),
    (EMBEDDINGS_TABLE, "embedding_create_params", "EmbeddingCreateParams"),
    (sampling.STREAM_OPTIONS, "chat.chat_completion_stream_options_param", "ChatCompletionStreamOptionsParam"),
    (messages.INSTRUCTIONS, "chat.chat_completion_system_message_param", "ChatCompletionSystemMessageParam"),
    (messages.INSTRUCTIONS, "chat.chat_completion_developer_message_param", "ChatCompletionDeveloperMessageParam"),
    (messages.USER, "chat.chat_completion_user_message_param", "ChatCompletionUserMessageParam"),
    (messages.ASSISTANT, "chat.chat_completion_assistant_message_param", "ChatCompletionAssistantMessageParam"),
    (messages.ASSISTANT, "chat", "ChatCompletionMessage"),
    (messages.ASSISTANT, "chat", "ParsedChatCompletionMessage"),
    (messages.TOOL_RESULT, "chat.chat_completion_tool_message_param", "ChatCompletionToolMessageParam"),
    (messages.TEXT_PART, "chat.chat_completion_content_part_text_param", "ChatCompletionContentPartTextParam"),
    (messages.IMAGE_PART, "chat.chat_completion_content_part_image_param", "ChatCompletionContentPartImageParam"),
    (messages.IMAGE_URL, "chat.chat_completion_content_part_image_param", "ImageURL"),
    (tools.TOOL, "chat.chat_completion_function_tool_param", "ChatCompletionFunctionToolParam"),
    (tools.FUNCTION, "shared_params.function_definition", "FunctionDefinition"),
    (tools.NAMED_TOOL, "chat.chat_completion_named_tool_choice_param", "ChatCompletionNamedToolChoiceParam"),
    (tools.NAMED, "chat.chat_completion_named_tool_choice_param", "Function"),
    (
        tools.TOOL_CALL,
        "chat.chat_completion_message_function_tool_call_param",
        "ChatCompletionMessageFunctionToolCallParam",
    ),
    (tools.CALLED, "chat.chat_completion_message_function_tool_call_param", "Function"),
    (tools.TOOL_CALL, "chat", "ParsedFunctionToolCall"),
    (tools.CALLED, "chat", "ParsedFunction"),
    (formats.JSON_SCHEMA_FORMAT, "shared_params.response_format_json_schema", "ResponseFormatJSONSchema"),
    (formats.JSON_SCHEMA, "shared_params.response_format_json_schema", "JSONSchema"),
    (responses.STREAM_OPTIONS, "responses.response_create_params", "StreamOptions"),
    (responses.REASONING_OPTIONS, "shared_params.reasoning", "Reasoning"),
    (responses.TEXT_OPTIONS, "responses.response_text_config_param", "ResponseTextConfigParam"),
]
TAGS = {"type", "role"}
"""The fields that name an object's form. They are no row of a table."""


def fields_of(module: str, name: str) -> set[str]:
    typed: Any = getattr(import_module(f"openai.types.{module}"), name)
    return set(getattr(typed, "model_fields", None) or get_type_hints(typed))


def lacking(table: FieldTable, names: set[str]) -> set[str]:
    return names - TAGS - set(table.fields)


@pytest.mark.parametrize(("table", "module", "name"), OBJECTS, ids=[f"{module}.{name}" for _, module, name in OBJECTS])
def test_the_table_has_each_field(table: FieldTable, module: str, name: str) -> None:
    assert lacking(table, fields_of(module, name)) == set()


def test_a_field_that_the_table_lacks_is_found() -> None:
    assert lacking(CHAT_TABLE, {"model", "type", "a_new_field"}) == {"a_new_field"}


def literals(prefix: str, tag: str) -> set[str]:
    """Return the values of `tag` in all types of the modules with the prefix."""
    package: Any = import_module("openai.types.chat")
    found: set[str] = set()
    for module in iter_modules(package.__path__):
        if module.name.startswith(prefix) and module.name.endswith("_param"):
            for value in vars(import_module(f"openai.types.chat.{module.name}")).values():
                if hasattr(value, "__required_keys__") and tag in (hints := get_type_hints(value)):
                    found |= set(get_args(hints[tag]))
    return found


def test_each_role_is_in_the_table() -> None:
    assert literals("chat_completion_", "role") == set(messages.MESSAGE.forms)


def test_each_content_part_is_in_the_table() -> None:
    content: Any = messages.USER.fields["content"].shape
    parts: Tagged = content.shapes[list].of
    types = literals("chat_completion_content_part_", "type")
    assert {"text", "image_url", "input_audio", "file", "refusal"} <= types
    assert types - {"explicit"} <= set(parts.forms)
