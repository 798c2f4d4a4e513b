"""A warning of the CDK fails the synthesis, unless it has a reason."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("aws_cdk") is None, reason="`make synth` installs aws_cdk")

ANNOTATED = (
    "[Warning at /Headgate/DefaultFleet/Task/worker] Proper policies need to be attached before pulling from ECR "
    "repository, or use 'fromEcrRepository'. [ack: @aws-cdk/aws-ecs:ecrImageRequiresPolicy]"
)
DEPRECATED = "[WARNING] aws-cdk-lib.aws_lambda.FunctionOptions#logRetention is deprecated, and will be removed."
OF_THE_COMMAND = "WARNING this is strange (Construct Annotations)"
NODE = "(node:71) [DEP0040] DeprecationWarning: The `punycode` module is deprecated."
PYTHON = "/infra/stack.py:9: DeprecationWarning: datetime.utcnow() is deprecated"
PRINTED = f"""Bundling asset
\x1b[33m{ANNOTATED}\x1b[39m

{DEPRECATED}
  use logGroup instead
  This API will be removed in the next major release.
{NODE}
{PYTHON}
{OF_THE_COMMAND}
   Headgate/Queue
   Acknowledge with 'Annotation::test:strange'
85 feature flags are not configured. Run 'cdk flags --unstable=flags' to learn more.
NOTICES (what's changed?)
Successfully synthesized to cdk.out
"""


def test_each_kind_of_warning_is_found_and_nothing_else() -> None:
    from infra.checks import unexplained

    assert unexplained(PRINTED) == [ANNOTATED, DEPRECATED, NODE, PYTHON, OF_THE_COMMAND]
    assert unexplained("Successfully synthesized\nResources: 150 no warnings\n") == []


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("@aws-cdk/aws-ecs:ecrImageRequiresPolicy", [DEPRECATED]),
        ("aws-cdk-lib.aws_lambda.FunctionOptions#logRetention", [ANNOTATED]),
        ("@aws-cdk/aws-ecs:another", [ANNOTATED, DEPRECATED]),
    ],
)
def test_a_reason_is_for_one_warning(monkeypatch: pytest.MonkeyPatch, name: str, left: list[str]) -> None:
    from infra import checks

    monkeypatch.setattr(checks, "ACCEPTED", {name: "a test"})
    assert checks.unexplained(f"{ANNOTATED}\n{DEPRECATED}") == left


def test_a_reason_is_found_in_the_lines_after_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from infra import checks

    monkeypatch.setattr(checks, "ACCEPTED", {"test:strange": "a test"})
    assert OF_THE_COMMAND not in checks.unexplained(PRINTED)
    assert checks.unexplained(f"{DEPRECATED}\n{PRINTED.partition(PYTHON)[2]}") == [DEPRECATED]


def test_each_accepted_warning_has_a_reason() -> None:
    from infra.checks import ACCEPTED

    assert all(len(reason.split()) > 3 for reason in ACCEPTED.values())


@pytest.mark.parametrize(("text", "status"), [(PRINTED, 1), ("Successfully synthesized\n", 0)])
def test_the_command_prints_what_was_printed_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, status: int
) -> None:
    from infra.checks import main

    log = tmp_path / "synth.log"
    log.write_text(text, encoding="utf-8")
    assert main(str(log)) == status
    printed = capsys.readouterr().err
    assert printed.startswith(text)
    assert ("5 warnings without a reason" in printed) == bool(status)


def test_a_stack_with_a_warning_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aws_cdk import Annotations, App, Stack

    from infra import checks

    app = App(outdir=str(tmp_path))
    Annotations.of(Stack(app, "Careless")).add_warning_v2("test:strange", "this is strange")
    with pytest.raises(checks.UnexplainedWarningError, match=r"/Careless: this is strange .ack: test:strange."):
        checks.synthesise(app)
    monkeypatch.setattr(checks, "ACCEPTED", {"test:strange": "this test makes it"})
    checks.synthesise(app)


def test_make_synth_reads_what_the_cdk_printed() -> None:
    recipe = (Path(__file__).parents[2] / "Makefile").read_text().partition("\nsynth:")[2].partition("\n\n")[0]
    assert "python -m infra.checks build/synth.log" in recipe
    assert ">build/synth.log 2>&1" in recipe
