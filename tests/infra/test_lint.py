"""cfn-lint finds nothing in any template that the configuration can make."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.infra.conftest import IMAGE, MODEL, Synthesise
from tests.infra.templates import of_type

EXPLAINED = ("W3005", "W3010")
"""The CDK writes a DependsOn beside a reference that implies it; headgate.yaml may name zones, for a capacity block."""
HTTPS = {"certificate": "arn:aws:acm:us-east-1:123456789012:certificate/a", "domain": "llm.example.com"}


def lint(path: Path) -> tuple[int, str]:
    """Return cfn-lint's exit code and what it prints."""
    command = [str(Path(sys.executable).with_name("cfn-lint")), "--template", str(path), "--ignore-checks", *EXPLAINED]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"front": "lambda"},
        {"traces": "xray", "traces_ratio": 1, "pools": {"chat": {"model": MODEL, "image": IMAGE}}},
        {"pools": {"chat": {"model": MODEL, "image": IMAGE, "count": {"min": 0, "max": 9}, "spot_percent": 50}}},
        {"front": "lambda", "pools": {"chat": {"model": MODEL, "image": IMAGE, "instance_types": ["g6e.12xlarge"]}}},
        {"pools": {"chat": {"model": MODEL, "image": IMAGE, "capacity": "managed_instances", "spot_percent": 50}}},
        {"pools": {"chat": {"servers": [{"url": "http://a.internal:8000/v1", "model": "llama"}]}}},
        {
            "front": "lambda",
            "region": "us-east-2",
            "zones": ["us-east-2a", "us-east-2c"],
            "pools": {
                "large": {
                    "model": MODEL,
                    "image": IMAGE,
                    "count": {"min": 0, "max": 2},
                    "capacity": "capacity_block",
                    "capacity_block": {"id": "cr-0123456789abcdef0", "zone": "us-east-2c"},
                    "instance_types": ["p5.48xlarge"],
                },
                "small": {"model": "s3://models/small/", "image": IMAGE, "capacity": "managed_instances"},
            },
        },
        {**HTTPS, "zones": 3, "nat_gateways": 3, "alarm_address": "a@example.com", "retention_days": 7},
        {
            **HTTPS,
            "region": "eu-central-1",
            "allowed_invokers": ["arn:aws:iam::123456789012:role/t"],
            "deadline_s": 900,
        },
    ],
)
def test_nothing_is_found(synthesise: Synthesise, fields: dict[str, Any]) -> None:
    assert lint(synthesise(**fields) / "Headgate.template.json") == (0, "")


def test_what_is_wrong_is_found(synthesised: Path, tmp_path: Path) -> None:
    template = json.loads((synthesised / "Headgate.template.json").read_text())
    (queue,) = (each for each in of_type(template, "AWS::SQS::Queue") if "RedrivePolicy" in each)
    queue["VisibilityTimeout"] = -1
    (tmp_path / "broken.json").write_text(json.dumps(template))
    status, said = lint(tmp_path / "broken.json")
    assert status != 0
    assert "E3034 -1 is less than the minimum of 0" in said
