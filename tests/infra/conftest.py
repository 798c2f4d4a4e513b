"""Syntheses over an empty bundle: what is deployed, without what it runs. Most tests share two of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.infra import templates
from tests.infra.templates import IMAGE, MODEL, Template, template_in


class Synthesise(Protocol):
    def __call__(self, **fields: Any) -> Path: ...


@pytest.fixture(scope="session")
def synthesise(tmp_path_factory: pytest.TempPathFactory) -> Synthesise:
    """Synthesise a deployment with these fields of headgate.yaml, and return the cloud assembly's folder."""
    if find_spec("aws_cdk") is None or find_spec("constructs") is None:
        pytest.skip("aws_cdk is not installed: `make synth` installs it and runs these tests")

    def made(**fields: Any) -> Path:
        return templates.synthesise(fields, tmp_path_factory.mktemp("assembly"))

    return made


@pytest.fixture(scope="session")
def synthesised(synthesise: Synthesise) -> Path:
    return synthesise()


@pytest.fixture(scope="session")
def template(synthesised: Path) -> Template:
    """The template of the defaults: fronts on Fargate."""
    return template_in(synthesised)


POOLS = {"default": {"model": MODEL, "image": IMAGE}}


@pytest.fixture(scope="session", params=["template", "lambda_template", "fleet_template"])
def each_template(request: pytest.FixtureRequest) -> Template:
    """The template of each front, and with a fleet."""
    found: Template = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def fleet_template(synthesise: Synthesise) -> Template:
    """The template with workers."""
    return template_in(synthesise(pools=POOLS))


@pytest.fixture(scope="session")
def lambda_template(synthesise: Synthesise) -> Template:
    """The template with the front as a function."""
    return template_in(synthesise(front="lambda"))
