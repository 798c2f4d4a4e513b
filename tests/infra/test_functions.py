"""What is deployed can be called as the local stack can, and is wired as the operations need it."""

from __future__ import annotations

import importlib
import json
from typing import Any

from starlette.routing import Route

from dispatcher.settings.config import load_config
from functions.http_api.app import app
from headgate.local.aws import function_specs
from tests.infra.templates import functions, of_type

NAMES = {"headgate-invoke", "headgate-result", "headgate-execute", "headgate-sweep", "headgate-admin"}
FRONT = "headgate-front"
ALIAS = "AWS::Lambda::Alias"


def test_the_functions_of_the_local_stack_are_deployed(
    template: dict[str, Any], lambda_template: dict[str, Any]
) -> None:
    deployed = functions(template)
    assert set(deployed) == NAMES
    assert set(functions(lambda_template)) == NAMES | {FRONT}
    for spec in function_specs({}):
        assert deployed[spec.name]["Handler"] == spec.handler
        assert deployed[spec.name]["Timeout"] >= spec.timeout_s


def test_handlers_exist(template: dict[str, Any]) -> None:
    for name, function in functions(template).items():
        if name != FRONT:
            module, _, attribute = function["Handler"].rpartition(".")
            assert callable(getattr(importlib.import_module(module), attribute))


def test_every_function_knows_its_world(lambda_template: dict[str, Any]) -> None:
    for function in functions(lambda_template).values():
        environment = function["Environment"]["Variables"]
        assert {"HEADGATE_TABLE", "HEADGATE_QUEUE_URL", "HEADGATE_WORKER_SECRET_ARN"} <= set(environment)
        assert environment["HEADGATE_POOLS"] == '{"default": {}}'
        assert environment["POWERTOOLS_METRICS_NAMESPACE"] == "headgate"
        assert function["TracingConfig"] == {"Mode": "Active"}
        assert function["Architectures"] == ["arm64"]


def test_all_run_the_bundles_python(template: dict[str, Any]) -> None:
    from infra.bundle import PYTHON

    assert {function["Runtime"] for function in functions(template).values()} == {f"python{PYTHON}"}


def test_front_streams(lambda_template: dict[str, Any]) -> None:
    front = functions(lambda_template)[FRONT]
    environment = front["Environment"]["Variables"]
    assert environment["AWS_LWA_INVOKE_MODE"] == "response_stream"
    assert environment["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/bootstrap"
    assert environment["HEADGATE_FRONT"] == "lambda", "Lambda freezes it"
    for name in (FRONT, "headgate-invoke"):
        variables = functions(lambda_template)[name]["Environment"]["Variables"]
        limits = load_config({"HEADGATE_LIMITS": variables["HEADGATE_LIMITS"]}).limits
        assert limits.waiting_executions_max == 10
    assert front["Handler"] == "run.sh"
    methods = of_type(lambda_template, "AWS::ApiGateway::Method")
    assert {method["HttpMethod"] for method in methods} == {"ANY", "GET", "POST"}
    for method in methods:
        assert method["Integration"]["ResponseTransferMode"] == "STREAM"
        assert method["Integration"]["TimeoutInMillis"] == front["Timeout"] * 1000


def test_the_gateway_passes_on_every_route_of_the_front(lambda_template: dict[str, Any]) -> None:
    """And no other path but those below /v1. To the gateway a slash at the end is no other path."""
    resources = {name: each.get("Properties", {}) for name, each in lambda_template["Resources"].items()}

    def path_of(reference: dict[str, Any]) -> str:
        if "Ref" not in reference:
            return ""  # the root
        own = resources[reference["Ref"]]
        return f"{path_of(own['ParentId'])}/{own['PathPart']}"

    methods = of_type(lambda_template, "AWS::ApiGateway::Method")
    passed = {(method["HttpMethod"], path_of(method["ResourceId"])) for method in methods}
    routes = {
        (method, route.path.rstrip("/"))
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {path for _, path in routes if path.startswith("/v1/")}
    assert passed == {route for route in routes if not route[1].startswith("/v1/")} | {("ANY", "/v1/{proxy+}")}


def test_the_gateway_logs_no_prompt(lambda_template: dict[str, Any]) -> None:
    (stage,) = of_type(lambda_template, "AWS::ApiGateway::Stage")
    assert not any(setting.get("DataTraceEnabled") for setting in stage["MethodSettings"])


def test_messages_stay_away_while_they_are_handled(template: dict[str, Any]) -> None:
    (queue,) = (each for each in of_type(template, "AWS::SQS::Queue") if "RedrivePolicy" in each)
    assert queue["VisibilityTimeout"] >= 6 * functions(template)["headgate-execute"]["Timeout"]
    assert queue["RedrivePolicy"]["maxReceiveCount"] > 3


def test_a_message_is_answered_for_alone(template: dict[str, Any]) -> None:
    (source,) = of_type(template, "AWS::Lambda::EventSourceMapping")
    assert source["BatchSize"] == 1
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def test_executions_may_start_executions(template: dict[str, Any]) -> None:
    """A settlement drains: without this Lambda would end a backlog's chain after 16 links."""
    allowed = {name for name, function in functions(template).items() if function["RecursiveLoop"] == "Allow"}
    assert allowed == {"headgate-execute"}


def test_no_payload_is_kept_in_a_dead_letter_queue(template: dict[str, Any]) -> None:
    """An Event invoke's payload carries prompt and API key."""
    assert all("DeadLetterConfig" not in function for function in functions(template).values())
    assert all("DestinationConfig" not in each for each in of_type(template, "AWS::Lambda::EventInvokeConfig"))


def test_tenants_invoke_the_alias_of_the_last_deployment(template: dict[str, Any]) -> None:
    aliases = {name: each["Properties"] for name, each in template["Resources"].items() if each["Type"] == ALIAS}
    assert {each["Name"] for each in aliases.values()} == {"live"}
    versions = {name: each for name, each in template["Resources"].items() if each["Type"] == "AWS::Lambda::Version"}
    assert {each["FunctionVersion"]["Fn::GetAtt"][0] for each in aliases.values()} == set(versions)
    assert all(each["DeletionPolicy"] == "Retain" for each in versions.values()), "an alias can point back to it"
    (policy,) = (each for each in of_type(template, "AWS::IAM::ManagedPolicy") if "Live" in json.dumps(each))
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert {each["Ref"] for each in statement["Resource"]} == set(aliases)


def test_events_of_the_alias_wait_and_are_tried_again(template: dict[str, Any]) -> None:
    """The settings of a function's asynchronous invocations do not apply to its alias."""
    settings = {
        json.dumps(each["Qualifier"]): (each["MaximumRetryAttempts"], each["MaximumEventAgeInSeconds"])
        for each in of_type(template, "AWS::Lambda::EventInvokeConfig")
        if each["Qualifier"] != "$LATEST"
    }
    assert list(settings.values()) == [(2, 3600)] * 2
    attempts_s = 3 * 900 + 60 + 120
    assert attempts_s < 3600, "an attempt that waits for a first worker takes all of its 900 s"


def test_the_sweep_runs_each_minute(template: dict[str, Any]) -> None:
    (rule,) = of_type(template, "AWS::Events::Rule")
    assert rule["ScheduleExpression"] == "rate(1 minute)"
    assert rule["State"] == "ENABLED"


def test_nothing_reserves_concurrency(template: dict[str, Any]) -> None:
    """A new account has too little of it, and refuses the stack."""
    assert all("ReservedConcurrentExecutions" not in function for function in functions(template).values())


def test_logs_end(each_template: dict[str, Any]) -> None:
    groups = of_type(each_template, "AWS::Logs::LogGroup")
    assert len(groups) >= len(NAMES) + 2
    assert all(group["RetentionInDays"] == 30 for group in groups)
