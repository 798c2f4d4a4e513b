"""`traces: xray`: which processes get the endpoint, which roles may send, and what a line of metrics needs of a log."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dispatcher.otlp import XRAY, ratio_of
from gpu_worker.service.options import parse_options
from tests.infra.conftest import POOLS, Synthesise
from tests.infra.templates import (
    Template,
    actions,
    functions,
    of_type,
    role_of,
    statements,
    tasks,
    template_in,
    variables_of,
)
from tests.support.emf import series_in
from tests.support.worker.metric_lines import write_metrics

SEND = {"xray:PutSpans", "xray:PutSpansForIndexing", "xray:PutTraceSegments"}
ENDPOINT, RATIO = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER_ARG"
FUNCTION = "AWS::Lambda::Function"
SENDERS = {"headgate-invoke", "headgate-execute", "headgate-sweep"}


@pytest.fixture(scope="module")
def traced(synthesise: Synthesise) -> Template:
    return template_in(synthesise(traces="xray", traces_ratio=0.25, pools=POOLS))


@pytest.fixture(scope="module")
def traced_lambda(synthesise: Synthesise) -> Template:
    return template_in(synthesise(traces="xray", front="lambda"))


def containers(template: Template) -> list[dict[str, Any]]:
    return [each for task in tasks(template) for each in task.values()]


def variables(template: Template) -> dict[str, dict[str, Any]]:
    """The variables of each function and of each container, by its name."""
    found = {each["FunctionName"]: each["Environment"]["Variables"] for each in of_type(template, FUNCTION)}
    for number, one in enumerate(containers(template)):
        found[f"{one['Name']} {number}"] = variables_of(one)
    return found


def with_endpoint(template: Template) -> set[str]:
    """The functions that get the endpoint. Check that each process with it gets the ratio too."""
    found = {name for name, each in variables(template).items() if ENDPOINT in each}
    assert found == {name for name, each in variables(template).items() if RATIO in each}
    return {name for name in found if name.startswith("headgate-")}


def senders(template: Template) -> set[str]:
    """The roles that may send spans."""
    return {role for role, statement in statements(template) if set(actions(statement)) == SEND}


def resolved(value: Any) -> str:
    """The text of a variable in one region."""
    known = {"AWS::Region": "eu-west-1", "AWS::URLSuffix": "amazonaws.com"}
    parts = value["Fn::Join"][1]
    return "".join(part if isinstance(part, str) else known[part["Ref"]] for part in parts)


def test_each_process_with_spans_gets_the_endpoint_that_the_exporter_signs_for(traced: Template) -> None:
    assert with_endpoint(traced) == SENDERS
    others = {"headgate-result", "headgate-admin", "headgate-remove-fleet"}
    for name in variables(traced).keys() - others:
        found = variables(traced)[name]
        assert XRAY.fullmatch(resolved(found[ENDPOINT]))
        assert ratio_of(found[RATIO]) == 0.25


def test_exactly_those_processes_may_send_them(traced: Template, traced_lambda: Template) -> None:
    roles = {each["TaskRoleArn"]["Fn::GetAtt"][0] for each in of_type(traced, "AWS::ECS::TaskDefinition")}
    assert len(roles) == 2
    assert senders(traced) == roles | {role_of(functions(traced)[name]) for name in SENDERS}
    names = SENDERS | {"headgate-front"}
    assert with_endpoint(traced_lambda) == names
    assert senders(traced_lambda) == {role_of(functions(traced_lambda)[name]) for name in names}


def test_without_traces_nothing_is_sent_and_nothing_is_allowed(each_template: Template) -> None:
    assert not [found for found in variables(each_template).values() if ENDPOINT in found or RATIO in found]
    assert senders(each_template) == set()


def test_no_container_is_beside_the_processes(traced: Template, fleet_template: Template) -> None:
    """X-Ray takes the spans itself: a collector would cost memory in each task."""
    assert {each["Name"] for each in containers(traced)} == {each["Name"] for each in containers(fleet_template)}


def test_a_line_of_metrics_is_one_event_of_a_log_that_makes_metrics(fleet_template: Template) -> None:
    """CloudWatch makes metrics of whole lines, and only in log groups of the standard class."""
    for container in containers(fleet_template):
        assert container["LogConfiguration"]["LogDriver"] == "awslogs"
        assert set(container["LogConfiguration"]["Options"]) <= {
            *("awslogs-group", "awslogs-region", "awslogs-stream-prefix"),
        }, "an option for lines that belong together would join them"
    classes = {group.get("LogGroupClass", "STANDARD") for group in of_type(fleet_template, "AWS::Logs::LogGroup")}
    assert classes == {"STANDARD"}


def test_a_worker_writes_its_metrics_each_minute(fleet_template: Template) -> None:
    (worker,) = (each for each in containers(fleet_template) if each["Name"] == "worker")
    assert parse_options(worker["Command"][2:]).emf_s == 60


def test_the_dashboard_asks_for_metrics_of_workers_that_exist(
    fleet_template: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    write_metrics("default", "llama-3-8b")
    published = {(each.name, tuple(name for name, _ in each.dimensions)) for each in series_in(capsys.readouterr().out)}
    (board,) = of_type(fleet_template, "AWS::CloudWatch::Dashboard")
    body = json.dumps(board["DashboardBody"])
    asked = re.findall(r"\{headgate,model,pool,service\} MetricName=\W+([a-z_]+)", body)
    assert {(name, ("model", "pool", "service")) for name in asked} == published
