"""The dated table of zones and GPU instance types, and what headgate.yaml is refused for."""

from __future__ import annotations

import json
from pathlib import Path

import moto
import pytest

from dispatcher.model.errors import ConfigurationError
from headgate.deployment.instances import FILE, INSTANCE_TYPES, problem
from headgate.deployment.model import load
from tests.support.offers import MOTO, as_text, made

TABLE = json.loads(FILE.read_text(encoding="utf-8"))
MODEL = "model: s3://models/llama/"


def refused(folder: Path, text: str, region: str | None = None) -> str:
    """Return the error about the file; empty without one."""
    path = folder / "headgate.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        load(path, region=region)
    except ConfigurationError as error:
        return str(error)
    return ""


def test_the_committed_table_is_the_one_that_is_made() -> None:
    assert moto.__version__ == MOTO, "a new version has newer offers: see tests/support/offers.py"
    assert FILE.read_text(encoding="utf-8") == as_text(made())


def test_every_instance_type_is_offered_somewhere() -> None:
    zones = [types for region in TABLE["regions"].values() for types in region.values()]
    assert {each for types in zones for each in types} == set(INSTANCE_TYPES)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("region: eu-west-1", "pools.chat: eu-west-1 has no g6e.xlarge; it has g5.12xlarge, "),
        ("region: af-south-1", "af-south-1 has no g6e.xlarge; it has none, as of 2026-"),
        ("region: ca-central-1\nzones: 2\n# g6", ""),
        ("region: eu-north-1\nzones: 3", "eu-north-1c has none of g6e.xlarge; name such zones in zones and "),
        ("region: eu-north-1\nzones: [eu-north-1b, eu-north-1c]", "eu-north-1c has none of g6e.xlarge; name such"),
        ("region: eu-north-1\nzones: [eu-north-1a, eu-north-1b]", ""),
        ("region: us-west-2\nzones: [us-west-2a, us-west-2b]", ""),
        (
            "region: ap-northeast-1\nzones: 3",
            "2 zones of ap-northeast-1 have g6e.xlarge, and 3 are wanted; name such zones",
        ),
        ("region: eu-south-2", "eu-south-2a has none of g6e.xlarge; name such zones in zones and pools: eu-south-2b, "),
        ("region: eu-west-1\ncheck_zones: false", ""),
        ("region: xx-new-1", ""),
    ],
)
def test_a_pool_that_its_region_or_zones_cannot_have(tmp_path: Path, fields: str, words: str) -> None:
    kind = "g6.xlarge" if fields.endswith("# g6") else "g6e.xlarge"
    found = refused(tmp_path, f"{fields}\npools: {{chat: {{{MODEL}, instance_types: [{kind}]}}}}")
    assert (words in found) if words else (found == "")


def test_a_pool_may_be_in_fewer_zones_than_the_network(tmp_path: Path) -> None:
    zones = "region: eu-north-1\nzones: [eu-north-1a, eu-north-1b, eu-north-1c]"
    assert "eu-north-1c" in refused(tmp_path, f"{zones}\npools: {{chat: {{{MODEL}}}}}")
    assert refused(tmp_path, f"{zones}\npools: {{chat: {{{MODEL}, zones: [eu-north-1b]}}}}") == ""


def test_the_region_of_the_environment_counts_if_the_file_has_none(tmp_path: Path) -> None:
    file = f"pools: {{chat: {{{MODEL}}}}}"
    assert refused(tmp_path, file) == ""
    assert "eu-west-1 has no g6e.xlarge" in refused(tmp_path, file, "eu-west-1")
    assert refused(tmp_path, f"region: us-east-2\n{file}", "eu-west-1") == ""


def test_a_certificate_of_another_region_than_the_environment_s_is_refused(tmp_path: Path) -> None:
    file = "domain: a.example.com\ncertificate: arn:aws:acm:us-east-1:123456789012:certificate/a"
    assert refused(tmp_path, file) == ""
    assert refused(tmp_path, file, "us-east-1") == ""
    assert "needs one of its own region, eu-west-1" in refused(tmp_path, file, "eu-west-1")


def test_one_type_of_several_is_enough_for_a_zone() -> None:
    zones = ["eu-north-1a", "eu-north-1b", "eu-north-1c"]
    assert problem("eu-north-1", ["g6.xlarge", "g5.xlarge"], zones) is None
    for each, lacking in (("g6.xlarge", "eu-north-1c"), ("g5.xlarge", "eu-north-1a")):
        found = problem("eu-north-1", [each], zones)
        assert found is not None
        assert found.what == f"{lacking} has none of {each}"
