"""The CDK app: `make synth`, or `cdk deploy` from the project's root. Synthesis needs no credentials."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import App, Validations
from aws_cdk import aws_lambda as lambda_
from cdk_nag import AwsSolutionsChecks

from infra.bundle import build
from infra.stack import HeadgateStack

ROOT = Path(__file__).parents[1]


def make_app(code: lambda_.Code, outdir: str | None = None) -> App:
    """Make the app with AWS's own checks. They fail the synthesis if a finding has no stated reason."""
    app = App(outdir=outdir)
    HeadgateStack(app, "Headgate", code=code)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return app


def main() -> None:
    bundle = build(ROOT)
    make_app(lambda_.Code.from_asset(str(bundle.path), asset_hash=bundle.digest)).synth()


if __name__ == "__main__":
    main()
