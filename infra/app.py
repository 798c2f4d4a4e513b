"""The CDK app: `make synth`, or `cdk deploy` from the project's root. Synthesis needs no credentials.

`cdk deploy -c name=staging` deploys a stack of another name beside the first one. The default name is headgate.
"""

from __future__ import annotations

import re
from pathlib import Path

from aws_cdk import App, Validations
from aws_cdk import aws_lambda as lambda_
from cdk_nag import AwsSolutionsChecks

from infra.bundle import build
from infra.stack import HeadgateStack

ROOT = Path(__file__).parents[1]


NAME = "headgate"
NAMES = re.compile(r"[a-z][a-z0-9-]{0,31}")


def make_app(code: lambda_.Code, outdir: str | None = None, *, name: str = "") -> App:
    """Make the app with AWS's own checks. They fail the synthesis if a finding has no stated reason.

    `name`: of the stack; by default that of the context (-c name=NAME). Raises ValueError for an impossible one.
    """
    app = App(outdir=outdir)
    chosen = name or str(app.node.try_get_context("name") or NAME)
    if not NAMES.fullmatch(chosen):
        raise ValueError(
            f"the stack cannot have the name {chosen[:64]!r}: use at most 32 lower-case letters, digits and hyphens, "
            "with a letter first"
        )
    HeadgateStack(app, "Headgate", name=chosen, code=code)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return app


def main() -> None:
    bundle = build(ROOT)
    make_app(lambda_.Code.from_asset(str(bundle.path), asset_hash=bundle.digest)).synth()


if __name__ == "__main__":
    main()
