"""The table against the openai SDK's own types: a new version that adds a field fails here."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args, get_type_hints

import pytest

from dispatcher.fields import chat_objects, common, tables
from dispatcher.fields.kinds import FieldTable
from dispatcher.fields.shapes import Tagged
from dispatcher.fields.tables import CHAT_TABLE, COMPLETION_TABLE, EMBEDDINGS_TABLE, RESPONSES_TABLE

pytest.importorskip("openai")

STREAMING = "CompletionCreateParamsStreaming"
OBJECTS = [
    (CHAT_TABLE, "chat.completion_create_params", STREAMING),
    (CHAT_TABLE, "chat.completion_create_params", "CompletionCreateParamsNonStreaming"),
    (COMPLETION_TABLE, "completion_create_params", STREAMING),
    (RESPONSES_TABLE, "responses.response_create_params", "ResponseCreateParamsStreaming"),
    (EMBEDDINGS_TABLE, "embedding_create_params", "EmbeddingCreateParams"),
    (common.STREAM_OPTIONS, "chat.chat_completion_stream_options_param", "ChatCompletionStreamOptionsParam"),
    (chat_objects.INSTRUCTIONS, "chat.chat_completion_system_message_param", "ChatCompletionSystemMessageParam"),
    (chat_objects.INSTRUCTIONS, "chat.chat_completion_developer_message_param", "ChatCompletionDeveloperMessageParam"),
    (chat_objects.USER, "chat.chat_completion_user_message_param", "ChatCompletionUserMessageParam"),
    (chat_objects.ASSISTANT, "chat.chat_completion_assistant_message_param", "ChatCompletionAssistantMessageParam"),
    (chat_objects.ASSISTANT, "chat", "ChatCompletionMessage"),
    (chat_objects.ASSISTANT, "chat", "ParsedChatCompletionMessage"),
    (chat_objects.TOOL_RESULT, "chat.chat_completion_tool_message_param", "ChatCompletionToolMessageParam"),
    (chat_objects.TEXT_PART, "chat.chat_completion_content_part_text_param", "ChatCompletionContentPartTextParam"),
    (chat_objects.IMAGE_PART, "chat.chat_completion_content_part_image_param", "ChatCompletionContentPartImageParam"),
    (chat_objects.IMAGE_URL, "chat.chat_completion_content_part_image_param", "ImageURL"),
    (chat_objects.TOOL, "chat.chat_completion_function_tool_param", "ChatCompletionFunctionToolParam"),
    (chat_objects.FUNCTION, "shared_params.function_definition", "FunctionDefinition"),
    (chat_objects.NAMED_TOOL, "chat.chat_completion_named_tool_choice_param", "ChatCompletionNamedToolChoiceParam"),
    (chat_objects.NAMED, "chat.chat_completion_named_tool_choice_param", "Function"),
    (
        chat_objects.TOOL_CALL,
        "chat.chat_completion_message_function_tool_call_param",
        "ChatCompletionMessageFunctionToolCallParam",
    ),
    (chat_objects.CALLED, "chat.chat_completion_message_function_tool_call_param", "Function"),
    (chat_objects.TOOL_CALL, "chat", "ParsedFunctionToolCall"),
    (chat_objects.CALLED, "chat", "ParsedFunction"),
    (chat_objects.JSON_SCHEMA_FORMAT, "shared_params.response_format_json_schema", "ResponseFormatJSONSchema"),
    (chat_objects.JSON_SCHEMA, "shared_params.response_format_json_schema", "JSONSchema"),
    (tables.RESPONSE_STREAM_OPTIONS, "responses.response_create_params", "StreamOptions"),
    (tables.REASONING_OPTIONS, "shared_params.reasoning", "Reasoning"),
    (tables.TEXT_OPTIONS, "responses.response_text_config_param", "ResponseTextConfigParam"),
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
    assert literals("chat_completion_", "role") == set(chat_objects.MESSAGE.forms)


def test_each_content_part_is_in_the_table() -> None:
    content: Any = chat_objects.USER.fields["content"].shape
    parts: Tagged = content.shapes[list].of
    types = literals("chat_completion_content_part_", "type")
    assert {"text", "image_url", "input_audio", "file", "refusal"} <= types
    assert types - {"explicit"} <= set(parts.forms)
