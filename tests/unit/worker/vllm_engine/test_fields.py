"""What the server gets beside the tenant's own fields, and which model it serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatcher.model.requests import Endpoint
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import own_order
from gpu_worker.engines.vllm.arguments import checked
from gpu_worker.engines.vllm.engine import VllmModel, server_fields


def test_the_dispatchers_fields_are_those_of_the_scheduler() -> None:
    request = own_order(
        "r",
        "acme",
        {"prompt": "x"},
        8,
        weight=2.0,
        tier=Tier.PREMIUM,
        app="chat",
        stage=1,
        interaction="i",
        timeout_s=9.0,
    )
    assert server_fields(request) == {
        "vllm_xargs": {
            "headgate_tenant": "acme",
            "headgate_weight": 2.0,
            "headgate_tier": "premium",
            "headgate_app": "chat",
            "headgate_stage": 1,
            "headgate_interaction": "i",
            "headgate_timeout_s": 9.0,
        }
    }


def test_a_request_without_a_limit_has_its_bound_and_the_expected_tokens() -> None:
    fields = server_fields(own_order("r", "acme", {}, 4096, expected_tokens=256))["vllm_xargs"]
    assert (fields["headgate_output_max"], fields["headgate_output_expected"]) == (4096, 256)


def test_no_deadline_is_no_number_and_a_salt_is_a_field_of_its_own() -> None:
    fields = server_fields(own_order("r", "acme", {}, 8, cache_salt="salt"))
    assert fields["cache_salt"] == "salt"
    json.dumps(fields, allow_nan=False)
    assert "headgate_timeout_s" not in fields["vllm_xargs"]


def test_embeddings_have_no_such_fields() -> None:
    assert server_fields(own_order("r", "acme", {"input": "x"}, 1, Endpoint.EMBEDDINGS)) == {}


def test_the_model_is_that_of_the_servers_arguments(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vision_config": {}}', encoding="utf-8")
    found = VllmModel.find(None, tmp_path, checked(["--model", str(tmp_path)]))
    assert found == VllmModel(str(tmp_path), tmp_path.name, reads_images=True)
    named = VllmModel.find(None, tmp_path, checked(["owner/large", "--served-model-name", "chat"]))
    assert named == VllmModel("owner/large", "chat", reads_images=False)
    with pytest.raises(ValueError, match="named twice"):
        VllmModel.find(str(tmp_path), tmp_path, checked(["--model", "owner/large"]))
