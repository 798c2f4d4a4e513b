"""The CDK app: `make synth`, or `cdk deploy` from the project's root. Synthesis needs no credentials.

It reads headgate.yaml; `-c file=PATH` reads another file, and `-c name=NAME` overrides the stack's name, to deploy a
stack of another name beside the first one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks

from headgate.deployment.model import ConfigurationError, Deployment, load
from infra.bundle import Bundle, build
from infra.checks import UnexplainedWarningError, synthesise
from infra.stack import HeadgateStack

_ROOT = Path(__file__).parents[1]
_FILE = "headgate.yaml"


def make_app(deployment: Deployment, bundle: Bundle, app: App, root: Path = _ROOT) -> App:
    """Add the stack, with AWS's own checks: they fail the synthesis if a finding has no stated reason."""
    HeadgateStack(app, "Headgate", deployment=deployment, bundle=bundle, root=root)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return app


def main() -> None:
    app = App()
    try:
        file = _ROOT / str(app.node.try_get_context("file") or _FILE)
        deployment = load(file, app.node.try_get_context("name"), os.environ.get("CDK_DEFAULT_REGION"))
    except ConfigurationError as error:
        sys.exit(f"headgate: {error}")
    if own := deployment.own_machine_servers():
        sys.exit(f"headgate: {file}: {', '.join(own)}: on AWS this is the worker's own task, where no server runs")
    try:
        synthesise(make_app(deployment, build(_ROOT), app))
    except UnexplainedWarningError as error:
        sys.exit(f"headgate: {error}")


if __name__ == "__main__":
    main()
