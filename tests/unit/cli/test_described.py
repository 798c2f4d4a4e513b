"""`headgate local --file`: headgate.yaml decides the options, and a mistake is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.model.errors import ConfigurationError
from dispatcher.settings.config import load_config
from headgate.cli.local import described_values
from headgate.machine.options import WORKERS_MAX, stack_options

ONE_POOL = """
deadline_s: 100
throttling: {user: 50, app: 500}
slo_classes: {normal: {first_token_s: 60}}
pools:
  chat:
    model: s3://my-models/llama-3-8b/
    count: {min: 2, max: 4}
    slots: 6
    batch: 4
    deadline_s: 90
"""
CLASSES = {"night": {"first_token_s": 3600, "deferred": True}}


def values(folder: Path, text: str, *given: str, engine: str = "transformers") -> dict[str, Any]:
    file = folder / "headgate.yaml"
    file.write_text(text)
    return described_values(file, engine, lambda name: name in given)


def pool(**fields: object) -> str:
    return json.dumps({"pools": {"chat": {"model": "s3://my-models/llama-3-8b/", **fields}}})


def test_the_file_decides_the_workers(tmp_path: Path) -> None:
    options = stack_options(home=tmp_path, **values(tmp_path, ONE_POOL))
    (group,) = options.groups
    assert group.pool == "chat"
    assert group.values == {"engine": "modelled", "model": "llama-3-8b", "workers": 2, "slots": 6, "batch": 4}
    assert json.loads(options.slo_classes)["normal"]["first_token_s"] == 60


def test_the_gate_has_the_settings_of_stack_and_pool(tmp_path: Path) -> None:
    config = load_config(values(tmp_path, ONE_POOL)["variables"]).of_pool()
    assert (config.pool, config.models, config.deadline_s) == ("chat", ("llama-3-8b",), 90)
    assert config.throttling is not None
    assert config.throttling.user == 50


def test_the_pool_s_own_classes_come_first_and_need_a_bucket(tmp_path: Path) -> None:
    found = values(tmp_path, pool(slo_classes=CLASSES))
    assert (found["slo_classes"], found["batches"]) == ("", True)
    config = load_config(found["variables"]).of_pool("chat")
    assert config.slo_classes is not None
    assert [each.name for each in config.slo_classes.classes().ordered] == ["night"]


@pytest.mark.parametrize(("least", "workers"), [(0, 1), (3, 3), (100, WORKERS_MAX)])
def test_at_least_one_worker_runs_and_no_more_than_the_machine_may(tmp_path: Path, least: int, workers: int) -> None:
    found = values(tmp_path, pool(count={"min": least, "max": 100}))
    (group,) = stack_options(home=tmp_path, **found).groups
    assert group.values["workers"] == workers


def test_a_pool_without_a_model_has_the_engine_s_own(tmp_path: Path) -> None:
    (group,) = stack_options(home=tmp_path, **values(tmp_path, "name: headgate")).groups
    assert group.values["model"] is None


def test_without_a_file_nothing_changes() -> None:
    assert described_values(None, "transformers", lambda _: True) == {}


@pytest.mark.parametrize("parameter", ["workers", "slots", "model", "fleet", "url", "context_tokens"])
def test_an_option_that_the_file_replaces_is_refused(tmp_path: Path, parameter: str) -> None:
    with pytest.raises(ConfigurationError, match="leave out --" + parameter.replace("_", "-")):
        values(tmp_path, ONE_POOL, parameter)


def test_an_engine_with_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="use --engine modelled"):
        values(tmp_path, ONE_POOL, "engine", engine="vllm")


def test_each_pool_has_its_workers_and_they_share_the_machine(tmp_path: Path) -> None:
    fields = {"count": {"min": 100, "max": 100}}
    pools = {name: {"model": f"s3://models/{name}", **fields} for name in ("chat", "code", "draft")}
    found = values(tmp_path, json.dumps({"pools": pools}))
    assert [(group.pool, group.values["model"], group.values["workers"]) for group in found["groups"]] == [
        (name, name, WORKERS_MAX // 3) for name in pools
    ]
    assert load_config(found["variables"]).of_pool("code").models == ("code",)


def test_a_mistake_in_the_file_names_its_field(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"pools\.chat\.slots"):
        values(tmp_path, pool(slots=0))


SERVER = {"url": "http://127.0.0.1:8000/v1", "model": "llama", "slots": 32, "batch": 8, "context_tokens": 4096}


def test_a_pool_of_a_server_has_a_worker_that_forwards_to_it(tmp_path: Path) -> None:
    found = values(tmp_path, json.dumps({"pools": {"chat": {"servers": [SERVER]}}}))
    (group,) = stack_options(home=tmp_path, **found).groups
    assert group.values == {"engine": "openai", "workers": 1, **SERVER}
    assert load_config(found["variables"]).of_pool().models == ("llama",)


def test_each_server_has_a_worker(tmp_path: Path) -> None:
    servers = [{**SERVER, "url": f"http://127.0.0.1:{port}/v1"} for port in (8000, 8001)]
    found = values(tmp_path, json.dumps({"pools": {"chat": {"servers": servers}}}))
    assert [(group.pool, group.values["url"]) for group in found["groups"]] == [
        ("chat", each["url"]) for each in servers
    ]


def test_more_servers_than_one_machine_takes_are_refused(tmp_path: Path) -> None:
    servers = [{**SERVER, "url": f"http://127.0.0.1:{port}/v1"} for port in range(8000, 8005)]
    pools = {"chat": {"servers": servers}, "code": {"servers": [{**each, "model": "code"} for each in servers]}}
    with pytest.raises(ConfigurationError, match=r"needs 10 workers .* one machine takes 8"):
        values(tmp_path, json.dumps({"pools": pools}))
