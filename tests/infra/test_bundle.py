"""The functions' asset: what goes in, and when it is built again. No network: pip is played."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import boto3
import botocore
import pytest

from infra import bundle, bundle_sizes
from tests.infra.templates import Template, functions

ROOT = Path(__file__).parents[2]


class FakePip:
    def __init__(self) -> None:
        self.calls: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> None:
        self.calls.append(arguments)
        if "--report" in arguments:
            found = {"metadata": {"name": "Six", "version": "1"}, "download_info": {"archive_info": _HASHES}}
            Path(arguments[arguments.index("--report") + 1]).write_text(json.dumps({"install": [found]}))


_HASHES = {"hashes": {"sha256": "ab"}}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for package in (*bundle.PACKAGES, "infra"):
        (tmp_path / package / "__pycache__").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("")
        (tmp_path / package / "__pycache__" / "a.pyc").write_bytes(b"x")
    (tmp_path / bundle.LOCK).write_text("six==1 --hash=sha256:ab\n")
    (tmp_path / bundle.FRONT).write_text("#!/bin/sh\n")
    (tmp_path / bundle.IMAGE).write_text("FROM python\n")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["six>=1,<2", "rich>=14", "typer>=0.20"]\n')
    return tmp_path


def test_it_holds_our_packages_and_the_start_of_the_front(project: Path) -> None:
    built = bundle.build(project, FakePip())
    inside = {path.relative_to(built.path).as_posix() for path in built.path.rglob("*") if path.is_file()}
    assert inside == {"dispatcher/__init__.py", "functions/__init__.py", "run.sh", "Dockerfile"}


def test_dependencies_are_wheels_for_lambda_with_their_hashes(project: Path) -> None:
    pip = FakePip()
    bundle.build(project, pip)
    (arguments,) = pip.calls
    assert {"--only-binary=:all:", "--require-hashes", "manylinux2014_aarch64", bundle.PYTHON} <= set(arguments)


def test_dependencies_are_installed_again_only_when_the_lock_changes(project: Path) -> None:
    pip = FakePip()
    bundle.build(project, pip)
    bundle.build(project, pip)
    assert len(pip.calls) == 1
    (project / bundle.LOCK).write_text("six==2 --hash=sha256:cd\n")
    bundle.build(project, pip)
    assert len(pip.calls) == 2


def test_a_half_installed_bundle_is_not_taken_for_whole(project: Path) -> None:
    def breaks(arguments: Sequence[str]) -> None:
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        bundle.build(project, breaks)
    pip = FakePip()
    bundle.build(project, pip)
    assert len(pip.calls) == 1


CALLS = """
import boto3, botocore
from botocore.stub import Stubber
assert botocore.__file__.startswith({place!r}), botocore.__file__
session = boto3.Session("a", "b", region_name="eu-central-1")
for service, operation, given in {calls!r}:
    client = session.client(service)
    with Stubber(client) as stub:
        stub.add_response(operation, {{}})
        getattr(client, operation)(**given)
try:
    session.client("ec2")
except botocore.exceptions.UnknownServiceError:
    print("stripped")
"""
KEY = {"pk": {"S": "a"}, "sk": {"S": "b"}}
NAMED = [
    ("autoscaling", "delete_auto_scaling_group", {"AutoScalingGroupName": "headgate", "ForceDelete": True}),
    ("dynamodb", "get_item", {"TableName": "headgate", "Key": KEY}),
    ("dynamodb", "put_item", {"TableName": "headgate", "Item": KEY}),
    ("dynamodb", "update_item", {"TableName": "headgate", "Key": KEY}),
    ("dynamodb", "delete_item", {"TableName": "headgate", "Key": KEY}),
    ("dynamodb", "query", {"TableName": "headgate"}),
    ("dynamodb", "transact_write_items", {"TransactItems": [{"Delete": {"TableName": "headgate", "Key": KEY}}]}),
    ("sqs", "send_message", {"QueueUrl": "https://queue", "MessageBody": "x"}),
    ("s3", "put_object", {"Bucket": "headgate", "Key": "k"}),
    ("s3", "get_object", {"Bucket": "headgate", "Key": "k"}),
    ("secretsmanager", "get_secret_value", {"SecretId": "s"}),
    ("sts", "get_caller_identity", {}),
    ("lambda", "invoke", {"FunctionName": "headgate-invoke"}),
    ("ecs", "update_service", {"service": "workers", "desiredCount": 1}),
    ("cloudwatch", "put_metric_data", {"Namespace": "headgate", "MetricData": []}),
]


def test_the_stripped_sdk_makes_every_client_that_the_functions_call(tmp_path: Path) -> None:
    for package in (boto3, botocore):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    before_mb = bundle_sizes.size_mb(tmp_path)
    bundle.strip(tmp_path)
    assert bundle_sizes.size_mb(tmp_path) < before_mb - 15
    assert {service for service, _, _ in NAMED} == set(bundle.AWS_SERVICES)
    command = [sys.executable, "-c", CALLS.format(place=str(tmp_path), calls=NAMED)]
    made = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (0, "stripped\n"), made.stderr


def test_the_bundle_keeps_every_service_of_the_code() -> None:
    called = re.compile(r"""boto3\.client\(\s*"([a-z0-9-]+)\"""")
    files = [path for package in bundle.PACKAGES for path in (ROOT / package).rglob("*.py")]
    services = {service for path in files for service in called.findall(path.read_text())}
    assert {"dynamodb", "sqs"} <= services <= set(bundle.AWS_SERVICES)


def test_the_import_time_of_a_handler_is_measured() -> None:
    assert bundle_sizes.import_times_ms("functions.envelope")["functions.envelope"] > 0


def test_the_digest_changes_with_the_code_and_only_then(project: Path) -> None:
    first = bundle.build(project, FakePip())
    assert bundle.build(project, FakePip()).digest == first.digest
    (project / "functions" / "new.py").write_text("x = 1\n")
    assert bundle.build(project, FakePip()).digest != first.digest


def test_what_is_gone_from_the_code_is_gone_from_the_bundle(project: Path) -> None:
    (project / "functions" / "old.py").write_text("")
    bundle.build(project, FakePip())
    (project / "functions" / "old.py").unlink()
    assert not (bundle.build(project, FakePip()).path / "functions" / "old.py").exists()


def test_the_lock_resolves_what_functions_need(project: Path) -> None:
    pip = FakePip()
    bundle.lock(project, pip)
    assert "six>=1,<2" in pip.calls[0]
    assert "rich>=14" not in pip.calls[0]
    assert (project / bundle.LOCK).read_text().splitlines()[1:] == ["Six==1 --hash=sha256:ab"]


def test_the_lock_in_the_project_is_up_to_date() -> None:
    """Every dependency of pyproject.toml that the functions need is pinned."""
    pinned = {_plain(line.partition("==")[0]) for line in (ROOT / bundle.LOCK).read_text().splitlines()[1:]}
    wanted = {_plain(re.split(r"[\[<>=!~ ]", each)[0]) for each in bundle.requirements(ROOT)}
    assert wanted
    assert wanted <= pinned


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_import_time_of_each_handler_is_printed(template: Template) -> None:
    deployed = {str(each["Handler"]).rpartition(".")[0] for each in functions(template).values()}
    assert set(bundle_sizes.HANDLERS) == deployed | {"functions.http_api.app"}
