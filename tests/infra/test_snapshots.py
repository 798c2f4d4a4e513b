"""Nothing in the stack changes unnoticed: a change shows as a difference of a few lines in a committed file."""

from __future__ import annotations

from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.infra.snapshots import FOLDER, STACKS, as_text
from tests.infra.templates import synthesise, template_in

RENEW = "is this intended? Then `.venv/bin/python -m tests.infra.snapshots` renews the files; commit them"


@pytest.mark.parametrize("name", STACKS)
def test_the_stack_is_the_committed_one(name: str, tmp_path: Path) -> None:
    if find_spec("aws_cdk") is None:
        pytest.skip("aws_cdk is not installed: `make synth` installs it and runs these tests")
    committed = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    now = as_text(template_in(synthesise(STACKS[name], tmp_path))).splitlines()
    difference = "\n".join(unified_diff(committed, now, "committed", "synthesised", lineterm="", n=4))
    assert not difference, f"{RENEW}\n{difference}"


def test_references_are_short_and_hashes_are_masked() -> None:
    arn = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, ":s3:::", {"Fn::GetAtt": ["Bucket", "Arn"]}, "/*"]]}
    template = {"Resources": {"A": {"Type": "T", "Metadata": {"x": 1}, "Properties": {"Arn": arn, "Key": "f" * 64}}}}
    text = as_text(template)
    assert "arn:${AWS::Partition}:s3:::${Bucket.Arn}/*" in text
    assert "<hash>" in text
    assert "Metadata" not in text
