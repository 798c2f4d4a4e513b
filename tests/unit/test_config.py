"""The gate's configuration, and HEADGATE_POOLS with the settings of each pool, each mistake in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.model.errors import ConfigurationError
from dispatcher.operations.limits import DEADLINE_MAX_S
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.settings.config import Config, load_config


def test_defaults_and_variables() -> None:
    assert load_config({}).table == "headgate"
    assert load_config({"HEADGATE_ORDER": "fcfs", "OTHER": "x"}).order == "fcfs"


@pytest.mark.parametrize("text", ["", "  "])
def test_a_variable_without_text_is_not_set(text: str) -> None:
    """As `DEADLINE_S: ${DEADLINE_S:-}` in a file of Compose gives it."""
    others = [name for name, field in Config.model_fields.items() if field.annotation is not str]
    assert {"deadline_s", "order", "pools", "scale_to_zero"} <= set(others)
    assert load_config({f"HEADGATE_{name.upper()}": text for name in others}) == load_config({})


@pytest.mark.parametrize("name", ["STORE", "TABLE", "POOL"])
def test_an_empty_name_is_refused(name: str) -> None:
    """Another store or table than the one that was meant would be worse than none."""
    with pytest.raises(ConfigurationError, match=f"^HEADGATE_{name}: "):
        load_config({f"HEADGATE_{name}": ""})


def test_the_log_names_a_mistyped_variable(caplog: pytest.LogCaptureFixture) -> None:
    assert load_config({"HEADGATE_DEADLINE": "30", "HEADGATE_API_KEY": "hg-1"}) == load_config({})
    assert caplog.messages == ["HEADGATE_DEADLINE is not read (did you mean HEADGATE_DEADLINE_S?)"]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LOG_STRIPES": "0"}, "HEADGATE_LOG_STRIPES: .*greater than or equal to 1"),
        ({"LOG_STRIPES": "17"}, "HEADGATE_LOG_STRIPES: .*less than or equal to 16"),
        ({"LOG_STRIPES": "8", "STORE": "sqlite:gate.db"}, "a file has no partitions"),
    ],
)
def test_a_log_has_one_to_sixteen_stripes_and_a_file_has_none(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load_config({f"HEADGATE_{name}": value for name, value in variables.items()})


def test_only_a_front_in_lambda_has_a_shorter_deadline() -> None:
    late = {"HEADGATE_DEADLINE_S": "900"}
    assert load_config(late).longest_s == 900
    assert load_config({**late, "HEADGATE_FRONT": "lambda"}).longest_s == DEADLINE_MAX_S


def test_slo_classes() -> None:
    assert load_config({}).slo_classes is None
    assert load_config({}).shard_settings().slack is None
    variables = {"HEADGATE_SLO_CLASSES": '{"chat": {"first_token_s": 20}}', "HEADGATE_SLO_WINDOW": "0"}
    config = load_config(variables)
    assert config.shard_settings().slack == Slack(0.0)
    assert config.slo_classes is not None


def test_scaling() -> None:
    assert load_config({}).floor == 1
    variables = {"HEADGATE_WORKERS_MAX": "7", "HEADGATE_SCALE_TO_ZERO": "true", "HEADGATE_WORKER_START_S": "90"}
    variables["HEADGATE_MODELS"] = '["m"]'
    settings = load_config({"HEADGATE_ECS_SERVICE": "cluster/service", **variables})
    assert (settings.floor, settings.workers_max, settings.worker_start_s) == (0, 7, 90.0)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"HEADGATE_ECS_SERVICE": "cluster/service"}, "set HEADGATE_WORKERS_MAX"),
        ({"HEADGATE_ECS_SERVICE": "service", "HEADGATE_WORKERS_MAX": "1"}, "HEADGATE_ECS_SERVICE"),
        ({"HEADGATE_WORKERS_MIN": "3", "HEADGATE_WORKERS_MAX": "2"}, "HEADGATE_WORKERS_MIN is above"),
        ({"HEADGATE_WORKERS_MIN": "1", "HEADGATE_SCALE_TO_ZERO": "true"}, "HEADGATE_SCALE_TO_ZERO"),
        (
            {"HEADGATE_ECS_SERVICE": "a/b", "HEADGATE_WORKERS_MAX": "1", "HEADGATE_SCALE_TO_ZERO": "true"},
            "needs HEADGATE_MODELS",
        ),
    ],
)
def test_workers_that_contradict_each_other_are_refused(variables: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        load_config(variables)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADGATE_SLO_CLASSES", "{}"),
        ("HEADGATE_SLO_WINDOW", "-1"),
        ("HEADGATE_FRONT", "fargate"),
        ("HEADGATE_LAMBDA_WHOLE_S", "300"),
        ("HEADGATE_DEADLINE_S", "soon"),
        ("HEADGATE_WORKERS_MAX", "0"),
        ("HEADGATE_WORKER_START_S", "0"),
        ("HEADGATE_ORDER", "random"),
        ("HEADGATE_UNKNOWN_FIELDS", "keep"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        load_config({name: value})


def test_what_is_no_mapping_gets_the_names_of_its_fields() -> None:
    with pytest.raises(ConfigurationError, match="HEADGATE_LIMITS: should be a mapping of process_requests_max, "):
        load_config({"HEADGATE_LIMITS": "[]"})


TWO: dict[str, Any] = {"chat": {"models": ["m"]}, "code": {"models": ["n"]}}


def config(pools: dict[str, Any], **more: str) -> Config:
    return load_config(
        {"HEADGATE_POOLS": json.dumps(pools), **{f"HEADGATE_{name}": each for name, each in more.items()}}
    )


def test_without_the_variable_there_is_the_one_pool_of_this_process() -> None:
    alone = load_config({"HEADGATE_POOL": "own", "HEADGATE_MODELS": '["m"]'})
    assert [each.pool for each in alone.each_pool()] == ["own"]
    assert (alone.of_pool().pool, alone.of_pool("other").pool) == ("own", "other")
    assert alone.of_pool("other").models == ("m",)


def test_a_pool_has_its_own_values_and_the_rest_from_the_process() -> None:
    classes = {"night": {"first_token_s": 60, "deferred": True}}
    own = {"models": ["n"], "deadline_s": 60, "slo_classes": classes, "tiers": {}, "throttling": {"user": 1, "app": 2}}
    found = config({"chat": {"models": ["m"]}, "code": own}, DEADLINE_S="100", LIMITS='{"body_s": 3}', SLO_WINDOW="7")
    chat, code = found.each_pool()
    assert (chat.longest_s, code.longest_s) == (100.0, 60.0)
    assert (chat.slo_classes, chat.shard_settings().tiers) == (None, None)
    assert code.slo_classes is not None
    assert code.shard_settings().throttling is not None
    assert code.shard_settings().slack is not None
    assert {each.limits.body_s for each in (found, chat, code)} == {3}
    assert (found.slo_class_names, code.shard_names) == (("night",), ("code",))
    assert code.models == ("n",)


def test_each_pool_scales_by_itself() -> None:
    scaled = {"ecs_service": "cluster/code", "workers_min": 0, "workers_max": 3, "scale_to_zero": True}
    chat, code = config(
        {"chat": {"models": ["m"]}, "code": {"models": ["n"], **scaled, "worker_start_s": 90}}
    ).each_pool()
    assert (chat.floor, chat.ecs_service) == (1, "")
    settings = code
    assert (settings.floor, settings.workers_max, settings.worker_start_s) == (0, 3, 90.0)
    assert code.ecs_service == "cluster/code"


def test_a_process_of_one_pool_takes_the_pools_settings() -> None:
    assert config(TWO, POOL="code").of_pool().models == ("n",)
    assert config(TWO).of_pool("code").models == ("n",)
    assert config({"chat": {"models": ["m"]}}).of_pool().pool == "chat"
    assert [each.pool for each in config(TWO, POOL="code").each_pool()] == ["chat", "code"]


def test_an_only_pool_needs_no_model_because_its_workers_name_them() -> None:
    assert config({"default": {}}).of_pool().models == ()


def test_the_open_batches_of_a_stack_are_found_whatever_its_pools_are() -> None:
    several: list[dict[str, Any]] = [TWO, {"default": {}}, {"chat": {"models": ["m"]}}]
    queues = {config(pools).batch_queue for pools in several}
    assert queues == {load_config({}).batch_queue}
    assert load_config({"HEADGATE_POOL": "own"}).batch_queue == "own"


def test_a_process_of_one_pool_must_say_which() -> None:
    with pytest.raises(ConfigurationError, match="name one of chat, code"):
        config(TWO).of_pool()
    with pytest.raises(ConfigurationError, match="there is no pool 'other': HEADGATE_POOLS has chat, code"):
        config(TWO).of_pool("other")
    with pytest.raises(ConfigurationError, match="HEADGATE_POOL: "):
        load_config({}).of_pool("a/b")


@pytest.mark.parametrize(
    ("pools", "variables", "message"),
    [
        (TWO, {"POOL": "other"}, "HEADGATE_POOL is 'other'; HEADGATE_POOLS has only chat, code"),
        ({**TWO, "third": {"models": ["m"]}}, {}, "the model 'm' is in two pools"),
        ({**TWO, "third": {}}, {}, "the pool 'third' needs \"models\""),
        ({name: {**each, "ecs_service": "a/b", "workers_max": 1} for name, each in TWO.items()}, {}, "'a/b' is in two"),
        ({"a b": {"models": ["m"]}}, {}, r"HEADGATE_POOLS\.a b"),
        ({"chat": {"models": ["m"], "order": "fcfs"}}, {}, r"HEADGATE_POOLS\.chat\.order"),
        ({"chat": {"models": "m"}}, {}, r"HEADGATE_POOLS\.chat\.models: should be a list"),
        (
            {"chat": {"models": ["m"], "deadline_s": 901}},
            {},
            r"HEADGATE_POOLS\.chat\.deadline_s: .* less than",
        ),
        ({"chat": {"models": ["m"], "tiers": {"slack": -1}}}, {}, r"HEADGATE_POOLS\.chat\.tiers\.slack: "),
        ({"chat": {"models": ["m"], "ecs_service": "a/b"}}, {}, r"HEADGATE_POOLS\.chat: set HEADGATE_WORKERS_MAX"),
        ({"chat": {"models": ["m"], "scale_to_zero": True}}, {"WORKERS_MIN": "1"}, "HEADGATE_WORKERS_MIN 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_pool(pools: dict[str, Any], variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        config(pools, **variables)
    assert "\n" not in str(raised.value)
