"""headgate.yaml: the committed file, every mistake by its name, and no other exception."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dispatcher.model.errors import ConfigurationError
from dispatcher.settings.config import load_config
from headgate.deployment.instances import INSTANCE_TYPES
from headgate.deployment.model import Deployment, load
from headgate.deployment.pool import CapacityBlock, ForeignServer, Pool, Range, WorkerSettings

ROOT = Path(__file__).parents[3]
BLOCK = "capacity: capacity_block, capacity_block: {id: cr-0123456789abcdef0, zone: us-east-2a}"
SERVER = "{url: 'http://vllm.internal:8000/v1', model: llama}"
CERTIFICATE = "arn:aws:acm:us-east-1:123456789012:certificate/a-b"


def loaded(folder: Path, text: str) -> Deployment:
    path = folder / "headgate.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def test_the_committed_file_has_the_defaults() -> None:
    assert load(ROOT / "headgate.yaml") == Deployment()


def test_the_price_of_an_adapters_load_reaches_gate_and_pool(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        "adapter_load_tokens: 800\n"
        "pools: {chat: {model: s3://models/llama-3-8b/, adapter_load_tokens: 0}, code: {model: s3://models/code-8b/}}",
    )
    pools = json.dumps({name: found.pool_settings(name) for name in found.pools})
    config = load_config({**found.environment(), "HEADGATE_POOLS": pools})
    prices = [config.of_pool(name).adapter_load_tokens for name in ("chat", "code")]
    assert prices == [0, 800]
    assert "HEADGATE_ADAPTER_LOAD_TOKENS" not in Deployment().environment()


def test_the_gates_processes_know_of_the_stripes(tmp_path: Path) -> None:
    assert loaded(tmp_path, "log_stripes: 8").environment()["HEADGATE_LOG_STRIPES"] == "8"
    assert "HEADGATE_LOG_STRIPES" not in Deployment().environment()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adapter_load_tokens: -1", "key 'adapter_load_tokens': should be greater than or equal to 0"),
        ("adapter_load_tokens: 1.5", "key 'adapter_load_tokens': should be a valid integer"),
        (
            "pools: {a: {adapter_load_tokens: 1000001}}",
            "key 'pools.a.adapter_load_tokens': should be less than or equal",
        ),
        ("adapter_lod_tokens: 1", "did you mean 'adapter_load_tokens'?"),
        (f"pools: {{a: {{servers: [{SERVER}], adapter_load_tokens: 9}}}}", "adapter_load_tokens"),
        ("log_stripes: 17", "key 'log_stripes': should be less than or equal to 16"),
        ("front: ecs", "key 'front': should be 'fargate' or 'lambda', not 'ecs'"),
        ("nme: x", "key 'nme': is not known here (did you mean 'name'?); there are name, region"),
        ("pools: {chat: {instance_types: [g6e.xlrge]}}", "do you mean g6e.xlarge"),
        ("pools: {chat: {instance_types: []}}", "at least 1 item"),
        ("pools: {chat: {weights_gb: 70}}", "43 GB are usable"),
        ("pools: {chat: {weights_gb: 70, tensor_parallel: 2}}", "tensor_parallel is 2, but g6e.xlarge has 1"),
        ("pools: {chat: {spot: 1}}", "there are model, adapters, image"),
        ("pools: {chat: {spot: 1}}", "key 'pools.chat.spot'"),
        ("pools: {chat: {deadline_s: 901}}", "key 'pools.chat.deadline_s': should be less than or equal to 900"),
        ("pools: {chat: {slo_classes: {a: {first_token_s: 9, late: 1}}}}", "there are first_token_s, deferred"),
        ("pools: {chat: {count: 3}}", "should be a mapping of min, max"),
        ("zones: 1", "key 'zones': should be greater than or equal to 2"),
        ("zones: [us-east-1a]", "at least 2 items"),
        ("zones: [us-east-1a, us-east-1]", "key 'zones[1]'"),
        ("zones: [us-east-1a, us-east-1a]", "each zone once"),
        ("region: eu-west-1\nzones: [us-east-1a, us-east-1b]", "us-east-1a is not in the region eu-west-1"),
        ("zones: a", "key 'zones': should be a valid integer"),
        ("zones: [us-east-1a, us-west-2a]", "zones are in us-east-1 and us-west-2: a network is in one region"),
        ("zones: [us-east-١a, us-east-1b]", "key 'zones[0]': should look like us-east-1a, not 'us-east-١a'"),
        ("zones: [us-east-1-bos-1a, us-east-1a]", "key 'zones[0]': should look like us-east-1a"),
        ("zones: []", "key 'zones': should have at least 2 items, not 0"),
        ("zones: [us-east-1a, us-east-1b]\npools: {chat: {zones: [us-east-1a, us-east-1a]}}", "name each zone once"),
        ("pools: {chat: {zones: us-east-1a}}", "key 'pools.chat.zones': should be a list, not 'us-east-1a'"),
        ("region: US-EAST-1", "key 'region': should look like us-east-1, not 'US-EAST-1'"),
        ("region: us-east-١", "key 'region': should look like us-east-1"),
        ("pools: {chat: {model: llama}}", "should look like s3://my-models/llama-3-8b/, not 'llama'"),
        ("pools: {a: {servers: [{url: 'http://a/v1', model: ''}]}}", "should look like llama-3-8b, not ''"),
        ("pools: {chat: {image: 'a.b/worker:latest'}}", "key 'pools.chat.image': should end with its digest"),
        ("pools: {chat: {capacity: spot}}", "should be 'auto_scaling', 'managed_instances' or 'capacity_block'"),
        ("pools: {chat: {capacity: capacity_block}}", "the field capacity_block (id, zone) belong together"),
        (f"pools: {{chat: {{{BLOCK}}}}}", "has one instance type: name it alone"),
        (f"pools: {{chat: {{{BLOCK}, instance_types: [g6e.xlarge]}}}}", "EC2 sells capacity blocks of p4d, p4de, p5"),
        ("pools: {chat: {worker: {policy: lottery}}}", "lottery"),
        ("pools: {chat: {worker: {policy: vtc, tiers: {queue: {aging_max: 1}}}}}", "has no tiers to set"),
        ("pools: {chat: {worker: {tiers: {queue: {shares: {premium: 2}}}}}}", "less than or equal to 1"),
        ("pools: {chat: {worker: {tiers: {queue: {share: 1}}}}}", "there are shares, share_slack"),
        ("pools: {chat: {worker: {swap_gib: 17}}}", "does not fit beside the engine into g6e.xlarge: at most 16"),
        ("pools: {chat: {slots: 2000}}", "key 'pools.chat.slots': should be less than or equal to 1024"),
        ("pools: {chat: {batch: 5000}}", "key 'pools.chat.batch': should be less than or equal to 4096"),
        ("pools: {chat: {engine_arguments: [--host, 0.0.0.0]}}", "--host is refused: the worker reaches the server"),
        ("pools: {chat: {engine_arguments: [--scheduler_cls=x]}}", "--scheduler-cls is refused: the worker sets"),
        ("pools: {chat: {engine_arguments: [--tensor-parallel-size=2]}}", "--tensor-parallel-size is set by other"),
        ("pools: {chat: {engine_arguments: [--lora-modules, a=/a]}}", "--lora-modules is set by other"),
        ("pools: {chat: {adapters: {sql: 's3://one/sql/'}}}", "adapters belong to a model"),
        (
            "pools: {chat: {model: 's3://one/llama/', adapters: {a b: 's3://one/sql/'}}}",
            "should look like sql-assistant",
        ),
        (
            "pools: {chat: {model: 's3://one/llama/', adapters: {sql: /sql}}}",
            "should look like s3://my-models/llama-3-8b/",
        ),
        ("pools: {chat: {model: 's3://one/llama/', adapters: {llama: 's3://one/sql/'}}}", "has the name of the model"),
        (f"region: eu-west-1\ndomain: a.example.com\ncertificate: {CERTIFICATE}", "the certificate is in us-east-1"),
        (f"pools: {{chat: {{{BLOCK}, instance_types: [p5.48xlarge, p5e.48xlarge]}}}}", "has one instance type"),
        (f"pools: {{chat: {{{BLOCK}, instance_types: [p5.48xlarge], spot_percent: 1}}}}", "has no spot instances"),
        (f"pools: {{chat: {{{BLOCK}, instance_types: [p5.48xlarge]}}}}", "such as zones: [us-east-2a"),
        (f"pools: {{chat: {{{BLOCK}, instance_types: [p5.48xlarge], zones: [us-east-2a]}}}}", "has its own zone"),
        ("zones: [us-east-1a, us-east-1b]\npools: {chat: {zones: [us-east-1c]}}", "pools.chat is in us-east-1c"),
        (
            "pools: {chat: {capacity: managed_instances, instance_types: [g6e.12xlarge], tensor_parallel: 4}}",
            "no shared memory for several GPUs",
        ),
        ("pools: {chat: {capacity: managed_instances, spot_percent: 100}}", "needs on_demand_base: 0"),
        ("pools: {a: {model: 's3://one/llama/'}, b: {}}", "b has neither a model nor servers"),
        (f"pools: {{a: {{servers: [{SERVER}], count: {{min: 1, max: 2}}}}}}", "run already: leave out count"),
        (f"pools: {{a: {{servers: [{SERVER}], model: 's3://one/llama/'}}}}", "run already: leave out model"),
        (
            f"pools: {{a: {{servers: [{SERVER}, {{url: 'http://b/v1', model: qwen}}]}}}}",
            "these servers have llama, qwen",
        ),
        (f"pools: {{a: {{servers: [{SERVER}]}}, b: {{servers: [{SERVER}]}}}}", "b has the model llama, which a has"),
        ("pools: {a: {servers: [{url: 'http://me:secret@a/v1', model: llama}]}}", "key 'pools.a.servers[0].url'"),
        ("pools: {a: {servers: [{url: 'http://a:0/v1', model: llama}]}}", "should have a port of 1 to 65535"),
        ("pools: {a: {servers: [{url: 'http://a:99999/v1', model: llama}]}}", "should have a port of 1 to 65535"),
        (
            "pools: {a: {servers: [{url: 'http://a:١٢/v1', model: llama}]}}",
            "should look like http://vllm.internal:8000",
        ),
        ("pools: {a: {servers: [{url: 'http://[::1]/v1', model: llama}]}}", "a host's name or IPv4 address"),
        ("pools: {a: {servers: [{url: 'http://a..b/v1', model: llama}]}}", "should have a host's name of letters"),
        ("pools: {a: {servers: [{url: 'http://256.1.1.1/v1', model: llama}]}}", "four numbers from 0 to 255"),
        ("pools: {a: {servers: [{url: 'http://169.254.169.254/', model: llama}]}}", "belongs to no other machine"),
        ("pools: {a: {servers: [{url: 'http://0.0.0.0:8000/v1', model: llama}]}}", "belongs to no other machine"),
        ("pools: {a: {servers: [{url: 'http://a/v1/../x', model: llama}]}}", "a path without . and .. as its parts"),
        ("pools: {a: {servers: [{url: 'http://a/v1'}]}}", "key 'pools.a.servers[0].model': is missing"),
        ("pools: {Chat: {}}", "key 'pools.Chat'"),
        ("pools: {}", "at least 1 item"),
        ("pools: [chat]", "should be a mapping of names to values"),
        ("pools: {chat: 3}", "should be a mapping of model, adapters"),
        ("pools: {a: {model: 's3://one/llama/'}, b: {model: 's3://two/llama'}}", "b has the model llama, which a has"),
        ("front_count: {min: 3, max: 2}", "min (3) should not be above max"),
        ("front_count: {min: 0, max: 2}", "should be at least 1"),
        ("front_count: {max: 2}", "is missing"),
        ("front_count: 3", "should be a mapping of min, max"),
        ("domain: llm.example.com", "domain and certificate belong together"),
        (f"front: lambda\ndomain: llm.example.com\ncertificate: {CERTIFICATE}", "are for front: fargate"),
        ("certificate: mine", "key 'certificate'"),
        ("nat_gateways: 3", "at most zones (2)"),
        ("deadline_s: 901", "less than or equal to 900"),
        ("deadline_s: .nan", "key 'deadline_s'"),
        ("retention_days: 2", "should be 1, 3, 5, 7"),
        ("name: Headgate", "key 'name'"),
        ("alarm_address: me", "key 'alarm_address'"),
        ("allowed_invokers: ['*']", "allowed_invokers"),
        ("throttling: {user: 0, app: 1}", "key 'throttling.user': should be greater than or equal to 1"),
        ("slo_classes: [chat]", "should be a mapping of names to values"),
        ("slo_classes: {chat: {first_token_s: 20, late: 1}}", "there are first_token_s, deferred"),
        ("[]", "should be a mapping of name"),
        ("", "is empty"),
        ("a: [", "not YAML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        loaded(tmp_path, text)


def test_what_does_not_fit_into_a_functions_variables_is_refused(tmp_path: Path) -> None:
    classes = ", ".join(f"class-{number}: {{first_token_s: 20}}" for number in range(8))
    pools = "".join(
        f"  p{number}: {{model: 's3://mod/m{number}/', slo_classes: {{{classes}}}}}\n" for number in range(8)
    )
    with pytest.raises(ConfigurationError, match=r"take [0-9]{4,} bytes as variables"):
        loaded(tmp_path, f"pools:\n{pools}")


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        load(tmp_path / "headgate.yaml")


def test_another_name_takes_its_place() -> None:
    assert load(ROOT / "headgate.yaml", "staging").name == "staging"


@pytest.mark.parametrize("name", ["", "Headgate", "a b", "1st", "x" * 33, "-a", "ü", "a\n"])
def test_an_impossible_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot have the name"):
        load(ROOT / "headgate.yaml", name)


FIELDS = [*Deployment.model_fields, *Pool.model_fields, *Range.model_fields]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(FIELDS) | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS | st.sampled_from(list(INSTANCE_TYPES)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(Deployment.model_fields)), VALUES, min_size=1, max_size=4))
def test_anything_is_a_deployment_or_a_mistake_in_one_line(value: dict[str, Any]) -> None:
    """JSON is YAML, but for the words that JSON has for infinite numbers."""
    with NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(json.dumps(value))
        file.flush()
        said = ""
        try:
            load(Path(file.name))
        except ConfigurationError as error:
            said = str(error)
    assert not said or said.startswith(file.name)
    assert "\n" not in said


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 100))
def test_the_instances_that_are_never_spot(most: int, base: int, spot_percent: int) -> None:
    pool = Pool(count=Range(min=1, max=most + 1), on_demand_base=base, spot_percent=spot_percent)
    assert min(base, most + 1) <= pool.on_demand_max <= most + 1
    if spot_percent == 0:
        assert pool.on_demand_max == most + 1


def test_the_model_loads_without_the_cdk_and_without_aws() -> None:
    heavy = "{'boto3', 'torch', 'typer', 'aws_cdk'}"
    code = f"import headgate.deployment.model, sys; print(sorted({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout.strip() == "[]"


def test_every_field_is_on_the_page() -> None:
    """docs/deployment.md has a row for each field."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[a-z_.]+`(?:, )?)+) \|", page, re.MULTILINE)
    shown = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}
    nested: dict[str, type[BaseModel]] = {
        "front_count": Range,
        "pools": Pool,
        "pools.capacity_block": CapacityBlock,
        "pools.servers": ForeignServer,
        "pools.worker": WorkerSettings,
    }
    expected = {*Deployment.model_fields} | {
        f"{name}.{field}" for name, model in nested.items() for field in model.model_fields
    }
    expected -= {*nested}
    assert shown == expected


@pytest.mark.parametrize(
    ("url", "is_own"),
    [("http://localhost:8000/v1", True), ("http://127.1.2.3/v1", True), ("http://a.localhost./v1", True),
     ("http://vllm.internal:8000/v1", False), ("http://10.0.0.7/v1", False)],
)  # fmt: skip
def test_a_server_of_this_machine_is_for_headgate_local_alone(url: str, is_own: bool) -> None:
    """Synthesis refuses what this names (infra/app.py): on AWS it would be the worker's own task."""
    deployment = Deployment.model_validate({"pools": {"a": {"servers": [{"url": url, "model": "llama"}]}}})
    assert deployment.own_machine_servers() == ([url] if is_own else [])
