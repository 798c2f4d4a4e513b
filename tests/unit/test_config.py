"""The gate's configuration: defaults, variables, and errors that name the variable."""

from __future__ import annotations

import pytest

from dispatcher.model.errors import ConfigurationError
from dispatcher.operations.limits import DEADLINE_MAX_S, FrozenFront
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.settings.config import load_config


class TestConfig:
    def test_defaults_and_variables(self) -> None:
        assert load_config({}).table == "headgate"
        assert load_config({"HEADGATE_ORDER": "fcfs", "OTHER": "x"}).order == "fcfs"

    def test_unknown_fields(self) -> None:
        assert not load_config({}).gate_settings().drops_unknown_fields
        assert load_config({"HEADGATE_UNKNOWN_FIELDS": "drop"}).gate_settings().drops_unknown_fields

    def test_only_a_front_in_lambda_has_its_bounds(self) -> None:
        bounds = {"HEADGATE_LAMBDA_TOKENS_MAX": "100", "HEADGATE_LAMBDA_WHOLE_S": "60"}
        assert load_config(bounds).gate_settings().frozen is None
        assert load_config({**bounds, "HEADGATE_FRONT": "lambda"}).gate_settings().frozen == FrozenFront(100, 60.0)
        late = {"HEADGATE_DEADLINE_S": "900"}
        assert load_config(late).pool_settings().deadline_s == 900
        assert load_config({**late, "HEADGATE_FRONT": "lambda"}).pool_settings().deadline_s == DEADLINE_MAX_S

    def test_slo_classes(self) -> None:
        assert load_config({}).pool_settings().slo_classes is None
        assert load_config({}).shard_settings().slack is None
        variables = {"HEADGATE_SLO_CLASSES": '{"chat": {"first_token_s": 20}}', "HEADGATE_SLO_WINDOW": "0"}
        config = load_config(variables)
        assert config.shard_settings().slack == Slack(0.0)
        assert config.pool_settings().slo_classes is not None

    def test_scaling(self) -> None:
        assert load_config({}).scale_settings().floor == 1
        variables = {"HEADGATE_WORKERS_MAX": "7", "HEADGATE_SCALE_TO_ZERO": "true", "HEADGATE_WORKER_START_S": "90"}
        variables["HEADGATE_MODELS"] = '["m"]'
        settings = load_config({"HEADGATE_ECS_SERVICE": "cluster/service", **variables}).scale_settings()
        assert (settings.floor, settings.workers_max, settings.start_s) == (0, 7, 90.0)

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
    def test_workers_that_contradict_each_other_are_refused(self, variables: dict[str, str], name: str) -> None:
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
            ("HEADGATE_ORDER", "random"),
            ("HEADGATE_UNKNOWN_FIELDS", "keep"),
        ],
    )
    def test_what_is_wrong_is_named(self, name: str, value: str) -> None:
        with pytest.raises(ConfigurationError, match=name):
            load_config({name: value})
