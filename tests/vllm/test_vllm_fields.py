"""The table of fields against the request models of the pinned vLLM: a new version that adds a field fails here."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import BaseModel
from vllm.entrypoints.generate.base import protocol as base
from vllm.entrypoints.openai.chat_completion import protocol as chat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed import protocol as embed
from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams

from dispatcher.fields import chat_objects, common
from dispatcher.fields.kinds import FieldTable
from dispatcher.fields.tables import CHAT_TABLE, COMPLETION_TABLE, EMBEDDINGS_TABLE, RESPONSES_TABLE

MODELS: list[tuple[FieldTable, type[BaseModel]]] = [
    (CHAT_TABLE, chat.ChatCompletionRequest),
    (COMPLETION_TABLE, CompletionRequest),
    (RESPONSES_TABLE, ResponsesRequest),
    (EMBEDDINGS_TABLE, embed.EmbeddingCompletionRequest),
    (EMBEDDINGS_TABLE, embed.EmbeddingChatRequest),
    (common.STREAM_OPTIONS, base.StreamOptions),
    (chat_objects.TOOL, chat.ChatCompletionToolsParam),
    (chat_objects.FUNCTION, base.FunctionDefinition),
    (chat_objects.NAMED_TOOL, chat.ChatCompletionNamedToolChoiceParam),
    (chat_objects.NAMED, chat.ChatCompletionNamedFunction),
    (chat_objects.JSON_SCHEMA_FORMAT, base.ResponseFormat),
    (chat_objects.JSON_SCHEMA, base.JsonSchemaResponseFormat),
    (chat_objects.STRUCTURAL_TAG, base.StructuralTagResponseFormat),
    (chat_objects.STRUCTURAL_TAG, base.LegacyStructuralTagResponseFormat),
]
DATACLASSES = [
    (chat_objects.STRUCTURED_OUTPUTS, StructuredOutputsParams),
    (common.REPETITION_DETECTION, RepetitionDetectionParams),
]


@pytest.mark.parametrize(("table", "model"), MODELS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_table_has_each_field(table: FieldTable, model: type[BaseModel]) -> None:
    names = {field.alias or name for name, field in model.model_fields.items()}
    assert names - {"type"} - set(table.fields) == set()


@pytest.mark.parametrize(("table", "model"), DATACLASSES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_table_has_each_field_of_a_dataclass(table: FieldTable, model: type) -> None:
    assert {field.name for field in dataclasses.fields(model)} - set(table.fields) == set()
