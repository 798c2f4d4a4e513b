"""One synthesis for all tests here, over an empty asset: what is deployed, without what it runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

Template = dict[str, Any]


@pytest.fixture(scope="session")
def synthesised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cloud assembly's folder."""
    if find_spec("aws_cdk") is None or find_spec("constructs") is None:
        pytest.skip("aws_cdk is not installed: `make synth` installs it and runs these tests")
    from aws_cdk import aws_lambda as lambda_

    from infra.app import make_app

    asset = tmp_path_factory.mktemp("asset")
    (asset / "run.sh").write_text("")
    out = tmp_path_factory.mktemp("cdk.out")
    make_app(lambda_.Code.from_asset(str(asset)), outdir=str(out)).synth()
    return out


@pytest.fixture(scope="session")
def template(synthesised: Path) -> Template:
    import json

    loaded: Template = json.loads((synthesised / "Headgate.template.json").read_text())
    return loaded
