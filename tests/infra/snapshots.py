"""A template as text that a person can compare. `python -m tests.infra.snapshots` renews tests/infra/snapshots.

References are short (`${Table.Arn}`), hashes of assets and versions are masked, and what only CDK reads is left out.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.infra.templates import IMAGE, MODEL, Template, synthesise, template_in

FOLDER = Path(__file__).parent / "snapshots"
STACKS: dict[str, dict[str, Any]] = {
    "fargate-with-workers": {"pools": {"chat": {"model": MODEL, "image": IMAGE}}},
    "lambda": {"front": "lambda"},
    "fargate-managed-to-zero": {
        "pools": {
            "chat": {"model": MODEL, "image": IMAGE, "capacity": "managed_instances", "count": {"min": 0, "max": 4}}
        }
    },
    "lambda-capacity-block-to-zero": {
        "front": "lambda",
        "region": "us-east-2",
        "zones": ["us-east-2a", "us-east-2c"],
        "pools": {
            "chat": {
                "model": MODEL,
                "image": IMAGE,
                "capacity": "capacity_block",
                "capacity_block": {"id": "cr-0123456789abcdef0", "zone": "us-east-2c"},
                "instance_types": ["p5.48xlarge"],
                "count": {"min": 0, "max": 2},
            }
        },
    },
}
"""The fields of headgate.yaml for each snapshot."""
ASSET = re.compile(r"\b[0-9a-f]{64}\b|(?<=CurrentVersion[0-9A-F]{8})[0-9a-f]{32}")
"""An asset, or what a function's version consists of."""
WIDTH = 120


def as_text(template: Template) -> str:
    """Return the resources and outputs as YAML."""
    resources = {
        name: {key: _short(value) for key, value in each.items() if key != "Metadata"}
        for name, each in template["Resources"].items()
        if each["Type"] != "AWS::CDK::Metadata"
    }
    shown = {"Resources": resources, "Outputs": _short(template.get("Outputs", {}))}
    return ASSET.sub("<hash>", yaml.safe_dump(shown, width=WIDTH, allow_unicode=True))


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(each) for each in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"Ref": name, **rest} if not rest:
            return f"${{{name}}}"
        case {"Fn::GetAtt": [name, attribute], **rest} if not rest:
            return f"${{{name}.{attribute}}}"
        case {"Fn::Join": [separator, [*parts]], **rest} if not rest:
            return separator.join(str(_short(part)) for part in parts)
    return {key: _short(each) for key, each in value.items()}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, fields in STACKS.items():
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{name}.yaml").write_text(as_text(template_in(synthesise(fields, Path(folder)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
