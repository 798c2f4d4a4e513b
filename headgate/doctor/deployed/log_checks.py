"""Rows of docs/operations.md that the stack's logs answer."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from itertools import islice
from typing import Any

from headgate.doctor.deployed.stack import Deployed
from headgate.doctor.finding import Finding, failed, ok, skipped, warning

DAY_S, HOUR_S = 86_400, 3_600
TOO_LONG = "the log was too long to read to its end"
LOOK_YOURSELF = "search it in CloudWatch Logs Insights"
PAGES_MAX = 100
"""The most pages that a search reads of one log group. CloudWatch may send empty pages before pages with lines."""
LISTENING = range(8080, 8100)
"""The ports of fronts, workers and gate processes."""
FLOWS = (
    "[version, account, interface, source, destination, from, to >= 8080 && to < 8100, protocol, packets, bytes, "
    "start, end, action = REJECT, status]"
)
"""The lines of VPC flow logs about refused connections to these ports."""


def weights_are_copied(deployed: Deployed, title: str) -> Finding:
    """Check that a task has copied its model from S3."""
    lines, is_whole = _lines(deployed, "WorkerLog", '"files copied"', DAY_S)
    if lines:
        return ok(title, lines[-1])
    if not is_whole:
        return warning(title, TOO_LONG, LOOK_YOURSELF)
    return failed(title, "no copy in the last day", "look at the log streams weights/…: a wrong URI, or no permission")


def image_is_read_only(deployed: Deployed, title: str) -> Finding:
    """Check that nothing tried to write to a read-only image."""
    seen = "no write to the image in the last day; `headgate doctor after` shows the slots of ready workers"
    advice = "a path of the image is written: give it a volume, and report it"
    return _absent(ok(title, seen), deployed, ("WorkerLog", '"Read-only file system"', DAY_S), advice)


def protections_are_taken(deployed: Deployed, title: str) -> Finding:
    """Check that ECS accepted each protection of the workers that stay."""
    seen = "ECS refused no protection in the last day; `headgate top` shows a worker that retires"
    advice = "see ScalingFails in docs/operations.md"
    return _absent(ok(title, seen), deployed, ("SweepLog", '"does not protect"', DAY_S), advice)


def policies_are_sufficient(deployed: Deployed, title: str) -> Finding:
    """Check that the logs of the stack show no denied access."""
    seen = "no AccessDenied in the last hour; `headgate doctor after --fairness` uses most permissions"
    return _absent(ok(title, seen), deployed, ("", "%AccessDenied%", HOUR_S), "deploy again; report it")


def no_connection_is_refused(deployed: Deployed, title: str) -> Finding:
    """Check that the network refused no connection between the stack's own processes in the last hour."""
    lines, is_whole = _lines(deployed, "RejectedLog", FLOWS, HOUR_S, text="REJECT")
    refused = sorted(set(_within(lines)))
    if refused:
        advice = "a security group is wrong: infra/network.py has the table of paths"
        return failed(title, f"{len(refused)} paths are refused: {', '.join(refused[:5])}", advice)
    seen = "no refused connection to a front, worker or gate process in the last hour"
    return ok(title, seen) if is_whole else warning(title, TOO_LONG, LOOK_YOURSELF)


def _within(lines: list[str]) -> Iterator[str]:
    """Yield the refused paths between private addresses to LISTENING, of lines in the default format."""
    for line in lines:
        _, _, _, source, destination, _, port, *_ = line.split()
        is_private = source != "-" and ip_address(source).is_private and ip_address(destination).is_private
        if is_private and int(port) in LISTENING:
            yield f"{source} to {destination}:{port}"


def secret_is_rotated(deployed: Deployed, title: str) -> Finding:
    """Check that the workers' secret has been replaced, and that each process has read it since."""
    secrets = deployed.client("secretsmanager")
    names = [name for name in deployed.stack.of_type("AWS::SecretsManager::Secret") if "WorkerSecret" in name]
    if not names:
        return failed(title, "the stack has no secret of the workers", "deploy again with this version")
    versions = secrets.list_secret_version_ids(SecretId=names[0], IncludeDeprecated=True)["Versions"]
    if len(versions) < 2:
        what = "put A,B, then B,A, then B, a day apart, while requests run (docs/workers.md)"
        return skipped(title, f"it has its first value; try it: {what}")
    advice = "allow secretsmanager:GetSecretValue, and start the process again"
    seen = f"{len(versions)} versions, and each process that read it again could"
    return _absent(ok(title, seen), deployed, ("", '"could not be read again"', DAY_S), advice)


def _absent(good: Finding, deployed: Deployed, search: tuple[str, str, float], advice: str) -> Finding:
    """Return `good` if no line is found. `search`: what _lines takes."""
    lines, is_whole = _lines(deployed, *search)
    if lines:
        return failed(good.check, f"{len(lines)} lines, the last: {lines[-1][:200]}", advice)
    return good if is_whole else warning(good.check, TOO_LONG, LOOK_YOURSELF)


def _lines(
    deployed: Deployed, group: str, pattern: str, seconds: float, text: str | None = None
) -> tuple[list[str], bool]:
    """Return the lines with the pattern in the log groups with `group` in their names, the newest last, and whether all
    pages were read. In a pattern, % matches within a longer word. `text`: what each line contains, if the pattern is
    more than that text."""
    since_ms, logs = int((deployed.now - seconds) * 1000), deployed.client("logs")
    events: list[dict[str, Any]] = []
    is_whole = True
    for name in deployed.stack.log_groups(group):
        pages = logs.get_paginator("filter_log_events").paginate(
            logGroupName=name, filterPattern=pattern, startTime=since_ms
        )
        read = list(islice(pages, PAGES_MAX))
        is_whole &= len(read) < PAGES_MAX
        events += [event for page in read for event in page["events"]]
    text = pattern.strip('%"') if text is None else text  # moto's search finds more than the pattern
    found = sorted((event["timestamp"], event["message"].strip()) for event in events if text in event["message"])
    return [line for _, line in found], is_whole
