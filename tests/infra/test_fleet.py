"""The workers on ECS: what a task runs and may read, on which instances, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from dispatcher.settings.config import load_config
from gpu_worker.engines.vllm.arguments import checked
from gpu_worker.service.options import parse_options
from tests.infra.conftest import Synthesise
from tests.infra.templates import (
    IMAGE,
    MODEL,
    Template,
    actions,
    functions,
    of_type,
    plain,
    statements,
    tasks,
    template_in,
)
from tests.support.iam.policies import Names


def task(template: Template) -> dict[str, Any]:
    (found,) = (
        each for each in of_type(template, "AWS::ECS::TaskDefinition") if each["RequiresCompatibilities"] == ["EC2"]
    )
    return found


def containers(template: Template) -> dict[str, dict[str, Any]]:
    (found,) = (each for each in tasks(template) if "weights" in each)
    return found


def service(template: Template) -> dict[str, Any]:
    (found,) = (each for each in of_type(template, "AWS::ECS::Service") if "CapacityProviderStrategy" in each)
    return found


def with_workers(synthesise: Synthesise, **fields: Any) -> Template:
    return template_in(synthesise(pools={"default": {"model": MODEL, "image": IMAGE, **fields}}))


def test_without_a_model_no_instance_is_started(template: Template) -> None:
    assert not of_type(template, "AWS::AutoScaling::AutoScalingGroup")
    assert "pools.default of headgate.yaml has no model" in template["Outputs"]["WorkersDefault"]["Value"]


def test_the_worker_starts_when_the_weights_are_there(fleet_template: Template) -> None:
    found = containers(fleet_template)
    assert found.keys() == {"weights", "worker", "gate"}
    assert found["worker"]["DependsOn"] == [{"Condition": "SUCCESS", "ContainerName": "weights"}]
    assert found["weights"]["Essential"] is False
    (model,) = (each for each in found["worker"]["MountPoints"] if each["SourceVolume"] == "model")
    assert model["ReadOnly"] is True
    assert found["weights"]["Command"][-2:] == [MODEL, "/model/llama-3-8b"]


def test_the_worker_has_the_adapters_of_its_model(synthesise: Synthesise) -> None:
    found = containers(with_workers(synthesise, adapters={"sql": "s3://models/sql/", "law": "s3://models/law/"}))
    sql, law = (f"/model/llama-3-8b.adapters/{name}" for name in ("sql", "law"))
    assert found["weights"]["Command"][-4:] == ["s3://models/sql/", sql, "s3://models/law/", law]
    arguments = checked(parse_options(found["worker"]["Command"][2:]).arguments)
    assert arguments.adapters == (("sql", sql), ("law", law))


def test_the_worker_understands_its_arguments(synthesise: Synthesise) -> None:
    made = with_workers(synthesise, slots=64, batch=32, drain_s=120, engine_arguments=["--max-model-len", "8192"])
    command = containers(made)["worker"]["Command"]
    assert command[:2] == ["-m", "gpu_worker"]
    options = parse_options(command[2:])
    assert options.models == ["/model/llama-3-8b"]
    assert (options.slots, options.batch, options.drain_s, options.port) == (64, 32, 120.0, 8080)
    assert options.arguments[-2:] == ["--max-model-len", "8192"]


def test_containers_are_not_root_and_cannot_write_the_image(fleet_template: Template) -> None:
    for container in containers(fleet_template).values():
        assert container["ReadonlyRootFilesystem"] is True
        assert container["User"] == "10001"
        assert plain(container["Image"]) == IMAGE


@pytest.mark.parametrize(("status", "code"), [("loading", 1), ("ok", 0), (None, 1)])
def test_a_worker_counts_when_it_serves(fleet_template: Template, status: str | None, code: int) -> None:
    """ECS's check, run against a server that answers as a worker does."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(200 if status else 500)
            self.end_headers()
            self.wfile.write(json.dumps({"status": status}).encode())

        def log_message(self, *_: object) -> None:
            """Write no line."""

    how, *command = containers(fleet_template)["worker"]["HealthCheck"]["Command"]
    assert how == "CMD"
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        own = [sys.executable, *command[1:-1], command[-1].replace(":8080/", f":{server.server_port}/")]
        ended = subprocess.run(own, capture_output=True, check=False)
        server.shutdown()
    assert ended.returncode == code, ended.stderr


def test_the_settings_of_the_engine_s_tiers_reach_the_worker(synthesise: Synthesise) -> None:
    tiers = {"queue": {"shares": {"premium": 0.6}}, "slo": {"targets": {"premium": {"ttft_s": 0.2}}}}
    made = with_workers(synthesise, worker={"swap_gib": 8, "tiers": tiers})
    words = containers(made)["worker"]["Command"]
    found = parse_options(words[words.index("gpu_worker") + 1 :])
    assert (found.policy, found.swap_gib) == ("tiered:vtc", 8.0)
    assert found.tiers.for_queue() == {"shares": {"premium": 0.6}}
    assert found.tiers.slo.targets["premium"].ttft_s == 0.2


def test_a_large_model_has_time_to_load(fleet_template: Template) -> None:
    check = containers(fleet_template)["worker"]["HealthCheck"]
    assert (check["StartPeriod"], check["Retries"]) == (300, 10), "ECS allows no more"
    assert check["StartPeriod"] + check["Retries"] * check["Interval"] >= 900


def test_a_spot_worker_on_managed_instances_drains_before_its_instance_ends(synthesise: Synthesise) -> None:
    for spot, drain in ((0, "300"), (50, "110")):
        made = with_workers(synthesise, capacity="managed_instances", spot_percent=spot)
        commands = [one["Command"] for each in tasks(made) for one in each.values()]
        (command,) = (each for each in commands if "--notice" in each)
        assert command[command.index("--drain-s") + 1] == drain


def test_the_gpus_of_a_model_are_reserved(synthesise: Synthesise) -> None:
    made = with_workers(synthesise, instance_types=["g6e.12xlarge"], tensor_parallel=4)
    requirements = containers(made)["worker"]["ResourceRequirements"]
    assert requirements == [{"Type": "GPU", "Value": "4"}]
    command = containers(made)["worker"]["Command"]
    assert command[command.index("--tensor-parallel-size") + 1] == "4"


@pytest.mark.parametrize("types", [["g6e.xlarge"], ["g6e.2xlarge", "g6e.xlarge"]])
def test_the_memory_fits_on_the_smallest_instance(synthesise: Synthesise, types: list[str]) -> None:
    made = with_workers(synthesise, instance_types=types)
    assert sum(container["Memory"] for container in containers(made).values()) < 32 * 1024


def test_instances(synthesise: Synthesise) -> None:
    made = with_workers(
        synthesise,
        instance_types=["g6e.xlarge", "g6e.2xlarge"],
        on_demand_base=2,
        spot_percent=75,
        count={"min": 2, "max": 9},
    )
    (group,) = of_type(made, "AWS::AutoScaling::AutoScalingGroup")
    policy = group["MixedInstancesPolicy"]
    assert (group["MinSize"], group["MaxSize"]) == ("0", "9")
    assert policy["InstancesDistribution"]["OnDemandBaseCapacity"] == 2
    assert policy["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 25
    overrides = [each["InstanceType"] for each in policy["LaunchTemplate"]["Overrides"]]
    assert overrides == ["g6e.xlarge", "g6e.2xlarge"]
    (template,) = (each["LaunchTemplateData"] for each in of_type(made, "AWS::EC2::LaunchTemplate"))
    assert template["MetadataOptions"] == {"HttpPutResponseHopLimit": 1, "HttpTokens": "required"}
    assert all(device["Ebs"]["Encrypted"] for device in template["BlockDeviceMappings"])
    start = json.dumps(template["UserData"])
    assert "ECS_ENABLE_SPOT_INSTANCE_DRAINING=true" in start
    assert "ECS_AWSVPC_BLOCK_IMDS=true" in start
    assert "/latest/meta-data/spot/instance-action" in start, "a container does not reach the metadata"
    assert "/opt/headgate/home/spot-notice" in start
    command = containers(made)["worker"]["Command"]
    assert command[command.index("--notice") + 1] == "/var/lib/headgate/spot-notice"
    (home,) = (each for each in task(made)["Volumes"] if each["Name"] == "home")
    assert home["Host"]["SourcePath"] == "/opt/headgate/home"
    assert "gpu" in json.dumps(template["ImageId"])
    assert "DesiredCount" not in service(made)  # a deployment would set back what the sweep has set


@pytest.mark.parametrize(("least", "to_zero"), [(0, True), (2, False)])
def test_the_gate_sets_the_number_of_workers_and_of_nothing_else(
    synthesise: Synthesise, least: int, to_zero: bool
) -> None:
    made = with_workers(synthesise, count={"min": least, "max": 9})
    sweep = functions(made)["headgate-sweep"]["Environment"]["Variables"]
    cluster = Names(made).logical_id("AWS::ECS::Cluster", "DefaultCluster").lower()
    config = load_config({"HEADGATE_POOLS": Names(made).resolved(sweep["HEADGATE_POOLS"])}).of_pool("default")
    assert (config.workers_min, config.workers_max, config.scale_to_zero) == (least, 9, to_zero)
    assert config.models == ("llama-3-8b",)
    assert config.ecs_service == f"{cluster}/{service(made)['ServiceName']}"
    setting = {owner: each["Resource"] for owner, each in statements(made) if "ecs:UpdateService" in actions(each)}
    assert len(setting) == 3, "the sweep, headgate-invoke and the front"
    for resource in setting.values():
        assert str(Names(made).resolved(resource)).endswith(f":service/{config.ecs_service}")


def test_a_fleet_that_may_be_empty_has_no_alarm_for_it(synthesise: Synthesise, fleet_template: Template) -> None:
    alarms = len(of_type(fleet_template, "AWS::CloudWatch::Alarm"))
    assert len(of_type(with_workers(synthesise, count={"min": 0, "max": 2}), "AWS::CloudWatch::Alarm")) == alarms - 1


def test_no_worker_is_stopped_to_balance_the_zones(fleet_template: Template) -> None:
    assert service(fleet_template)["AvailabilityZoneRebalancing"] == "DISABLED"


@pytest.mark.parametrize(
    ("least", "most", "healthy", "together"), [(0, 1, 0, 100), (1, 1, 0, 100), (1, 4, 50, 200), (8, 8, 50, 200)]
)
def test_a_deployment_keeps_half_of_the_workers(
    synthesise: Synthesise, least: int, most: int, healthy: int, together: int
) -> None:
    made = with_workers(synthesise, count={"min": least, "max": most})
    configuration = service(made)["DeploymentConfiguration"]
    assert (configuration["MinimumHealthyPercent"], configuration["MaximumPercent"]) == (healthy, together)
    (group,) = of_type(made, "AWS::AutoScaling::AutoScalingGroup")
    assert group["MaxSize"] == str(most), "new and old workers together have no more instances"


def test_a_worker_reads_its_model_and_no_key_of_a_tenant(fleet_template: Template) -> None:
    role = task(fleet_template)["TaskRoleArn"]["Fn::GetAtt"][0]
    own = [each for owner, each in statements(fleet_template) if owner == role]
    of_table = [each for each in own if actions(each)[0].startswith("dynamodb:")]
    keys = {key for each in of_table for key in each["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]}
    log = {"LOG#default", "LOG#default#*", "SNAP#default", "SNAP#default#striped"}
    former = {"LOG#default~*", "SNAP#default~*"}
    assert keys == {*log, *former, "STATE#default", "USAGE#*", "MAIL#*", "INV#*"}
    (reads,) = (each for each in own if "s3:GetObject" in actions(each))
    assert json.dumps(reads["Resource"]).endswith(':s3:::models/llama-3-8b/*"]]}')
    assert not any("s3:PutObject" in actions(each) for each in own)


def test_the_image_is_built_here_if_none_is_named(synthesise: Synthesise) -> None:
    made = synthesise(pools={"default": {"model": MODEL}})
    assets = json.loads((made / "Headgate.assets.json").read_text())["dockerImages"].values()
    built = [asset["source"] for asset in assets if asset["source"].get("dockerFile") == "gpu_worker/Dockerfile"]
    assert [source["platform"] for source in built] == ["linux/amd64"]
    folder = made / built[0]["directory"]
    names = {path.name for path in folder.iterdir()}
    assert {"dispatcher", "functions", "gpu_worker", "headgate", "infra", "pyproject.toml"} <= names
    assert not names & {".venv", ".git", "tests"}
