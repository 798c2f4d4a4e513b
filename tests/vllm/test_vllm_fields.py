"""Our two tables of vLLM against the pinned vLLM: its requests' fields, and the names that our code uses.

A new version that adds a field or removes a name fails here.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.entrypoints.generate.base import protocol as base
from vllm.entrypoints.openai.chat_completion import protocol as chat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed import protocol as embed
from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from dispatcher.fields import chat_objects, common
from dispatcher.fields.kinds import FieldTable
from dispatcher.fields.tables import CHAT_TABLE, COMPLETION_TABLE, EMBEDDINGS_TABLE, RESPONSES_TABLE
from gpu_worker.engines.vllm.compatibility import IncompatibleVllm, check_names, installed_version, require_vllm
from gpu_worker.engines.vllm.names import VLLM_NAMES, VllmPart
from gpu_worker.engines.vllm.scheduler import TieredSchedulingMixin
from gpu_worker.engines.vllm.scheduler_choice import ChosenScheduler
from gpu_worker.engines.vllm.stats_logger import StatsLogger
from gpu_worker.engines.vllm.swap import SwapConnector, SwapMetadata
from gpu_worker.engines.vllm.waiting_queue import PolicyQueue
from headgate_vllm import check

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


def test_the_pinned_vllm_has_each_name_that_we_use(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(check_names(VLLM_NAMES))
    assert [each for each in found if each.problem] == []
    assert len(found) > 150
    require_vllm(tuple(VllmPart))
    assert check.main() == 0
    assert f"vLLM {installed_version()}: " in capsys.readouterr().out.splitlines()[-1]


def test_a_method_that_replaces_one_of_vllms_is_in_the_list() -> None:
    replaced = [
        (TieredSchedulingMixin, Scheduler),
        (PolicyQueue, RequestQueue),
        (SwapConnector, KVConnectorBase_V1),
        (SwapMetadata, KVConnectorMetadata),
        (StatsLogger, AggregateStatLoggerBase),
    ]
    for ours, theirs in replaced:
        listed = {
            name.partition("(")[0]
            for entry in VLLM_NAMES
            if entry.name == theirs.__name__
            for name in (*entry.attributes, *entry.hooks)
        }
        same = {
            name for name in vars(ours) if name in dir(theirs) and not name.startswith("__") and name != "_abc_impl"
        }
        assert same <= listed, ours


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        (Scheduler, "_free_request", "vllm.v1.core.sched.scheduler.Scheduler._free_request() is missing"),
        (RequestQueue, "prepend_requests", "RequestQueue.prepend_requests() is missing"),
    ],
)
def test_a_vllm_without_a_name_does_not_start(
    kind: type, name: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(kind, name)
    config: Any = SimpleNamespace(kv_transfer_config=None)
    with pytest.raises(IncompatibleVllm) as refused:
        ChosenScheduler(config, None)
    assert sentence in str(refused.value)
    assert str(refused.value).endswith("it works with vLLM 0.32")
    assert check.main() == 1
    assert f"{name}()" in capsys.readouterr().out


def test_a_hook_that_vllm_calls_with_another_argument_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def schedule(self: object, throttle_prefills: bool = False, budget: int = 0) -> None:
        """A later vLLM's."""

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    with pytest.raises(IncompatibleVllm, match=r"takes \(throttle_prefills, budget\), not \(throttle_prefills\)"):
        require_vllm([VllmPart.SCHEDULER])


def test_a_name_of_the_swap_is_needed_with_the_swap_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(KVConnectorBase_V1, "handle_preemptions")
    require_vllm([VllmPart.SCHEDULER])
    transfer = SimpleNamespace(kv_connector="SwapConnector", kv_connector_extra_config={})
    config: Any = SimpleNamespace(kv_transfer_config=transfer)
    with pytest.raises(IncompatibleVllm, match="handle_preemptions"):
        ChosenScheduler(config, None)
