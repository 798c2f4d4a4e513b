"""Warnings of the CDK and findings of cdk-nag, AWS's own checks: each without a reason fails `make synth`.

A warning is a finding of the CDK about this template, such as an image that cannot be pulled, or the use of an API that
is deprecated. `python -m infra.checks FILE` reads what `cdk synth` printed, and fails if a line of it is one. The app
itself refuses to be deployed with a warning about a construct, and the tests look at all stacks that they synthesise.

ACCEPTED has the reasons of warnings. A finding of cdk-nag is acknowledged on its construct, with its reason.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from aws_cdk import Acknowledgment, App, Validations
from aws_cdk.cx_api import CloudAssembly, SynthesisMessageLevel
from constructs import IConstruct

ACCEPTED: Mapping[str, str] = {}
"""The reason for each warning that may stay: by its id (`@aws-cdk/aws-ecs:ecrImageRequiresPolicy`), or by the name of
the deprecated API (`aws-cdk-lib.aws_lambda.FunctionOptions#logRetention`)."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_ID = re.compile(r"\[ack: (?P<id>[^\]]+)\]|Acknowledge with '\w+::(?P<named>[^']+)'")
_DEPRECATED = re.compile(r"(?P<id>\S+) is deprecated\b")
_PRINTED = (
    re.compile(r"^WARNING .*\([\w ]+\)$"),  # the CDK's command line, about a construct; the lines after it have the id
    re.compile(r"\[Warning at [^\]]+\]"),  # the same, in earlier versions
    re.compile(r"\[WARNING\]"),  # aws-cdk-lib, about a deprecated API
    re.compile(r"\b(Deprecation|PendingDeprecation|Future|User|Runtime)Warning\b"),  # Node's and Python's own
)


class UnexplainedWarningError(Exception):
    """There are warnings without a reason."""


def unexplained(text: str) -> list[str]:
    """Return the lines of `text` that are a warning without a reason in ACCEPTED."""
    found: list[list[str]] = []
    for line in (_ESCAPES.sub("", each).strip() for each in text.splitlines()):
        if any(each.search(line) for each in _PRINTED):
            found.append([line])
        elif found:
            found[-1].append(line)
    return [lines[0] for lines in found if not _is_accepted("\n".join(lines))]


def _is_accepted(warning: str) -> bool:
    """Return whether there is a reason for a warning, which may have further lines."""
    found = [match.groupdict().values() for each in (_ID, _DEPRECATED) if (match := each.search(warning))]
    return any(name in ACCEPTED for names in found for name in names if name is not None)


def synthesise(app: App) -> CloudAssembly:
    """Synthesise the app. Raises UnexplainedWarningError if the CDK warns about a construct."""
    assembly = app.synth()
    if found := list(_annotations(assembly)):
        raise UnexplainedWarningError(
            "the CDK warns about this stack: mend it, or put the id with its reason into ACCEPTED in "
            f"infra/checks.py: {'; '.join(found)}"
        )
    return assembly


def _annotations(assembly: CloudAssembly) -> Iterator[str]:
    for stack in assembly.stacks:
        for message in stack.messages:
            text = str(message.entry.data)
            if message.level != SynthesisMessageLevel.INFO and not _is_accepted(text):
                yield f"{message.id}: {text}"


def main(file: str) -> int:
    """Print what `cdk synth` printed. Return 1 if it has a warning without a reason."""
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(text)
    found = unexplained(text)
    if found:
        count = f"{len(found)} warning{'s' * (len(found) > 1)}"
        sys.stderr.write(f"{count} without a reason in ACCEPTED of infra/checks.py: mend what each says\n")
    return 1 if found else 0


def acknowledge(construct: IConstruct, findings: Mapping[str, str]) -> None:
    """Accept findings on a construct: the reason of each, by the name of its rule. Any other finding fails the
    synthesis."""
    for rule, reason in findings.items():
        Validations.of(construct).acknowledge(Acknowledgment(id=rule, reason=reason))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
