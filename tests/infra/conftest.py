"""Syntheses over an empty asset: what is deployed, without what it runs. Most tests share one."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.infra.templates import Template, template_in


@pytest.fixture(scope="session")
def synthesise(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Synthesise a stack of a name, and return the cloud assembly's folder."""
    if find_spec("aws_cdk") is None or find_spec("constructs") is None:
        pytest.skip("aws_cdk is not installed: `make synth` installs it and runs these tests")
    from aws_cdk import aws_lambda as lambda_

    from infra.app import make_app

    def made(name: str) -> Path:
        asset = tmp_path_factory.mktemp("asset")
        (asset / "run.sh").write_text("")
        out = tmp_path_factory.mktemp("cdk.out")
        make_app(lambda_.Code.from_asset(str(asset)), outdir=str(out), name=name).synth()
        return out

    return made


@pytest.fixture(scope="session")
def synthesised(synthesise: Callable[[str], Path]) -> Path:
    return synthesise("")


@pytest.fixture(scope="session")
def template(synthesised: Path) -> Template:
    return template_in(synthesised)
