"""The checks of a deployed stack, in the order of the table in docs/operations.md. A test compares the two.

None changes anything, unless the operator allows it (`Deployed.traffic`). Their record is a page: docs/operations.md
calls its list "not yet run" until there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from botocore.exceptions import BotoCoreError, ClientError

from headgate.doctor.before import reason
from headgate.doctor.deployed.changes import (
    stream_survives_a_deployment,
    version_is_taken_back,
    worker_drains,
    workers_are_replaced_without_a_gap,
)
from headgate.doctor.deployed.observed import (
    alarms_arrive,
    alarms_have_metrics,
    image_is_read_only,
    metrics_arrive,
    no_connection_is_refused,
    policies_are_sufficient,
    protections_are_taken,
    secret_is_rotated,
    spans_arrive,
    weights_are_copied,
)
from headgate.doctor.deployed.running import (
    fronts_are_healthy,
    function_answers,
    https_answers,
    image_is_for_arm64,
    instances_have_joined,
    pools_have_workers,
    stack_is_created,
)
from headgate.doctor.deployed.service_checks import administrator_is_named, gate_leads, operator_page
from headgate.doctor.deployed.stack import WORKERS, Deployed, Traffic
from headgate.doctor.finding import Finding, skipped, warning

_Run = Callable[[Deployed, str], Finding]
_Change = Callable[[Deployed, str, Traffic], Finding]


def _of_workers(run: _Run) -> _Run:
    """Return a check that is skipped without a pool with a model."""

    def checked(deployed: Deployed, title: str) -> Finding:
        return run(deployed, title) if deployed.stack.services(WORKERS) else skipped(title, "no pool has a model")

    return checked


def _disturbing(run: _Change, what: str) -> _Run:
    """Return a check that runs only if the operator allows changes. `what`: how to try it by hand."""

    def checked(deployed: Deployed, title: str) -> Finding:
        if deployed.traffic is None:
            return skipped(title, f"`--disturb` tries it, or try it yourself: {what}")
        return run(deployed, title, deployed.traffic)

    return checked


def _by_hand(what: str) -> _Run:
    return lambda _, title: skipped(title, f"try it: {what}")


CHECKS: Mapping[str, _Run] = {
    "the stack is created": stack_is_created,
    "a failed creation leaves nothing": _by_hand(
        "create a second stack, -c name=try, with an image that does not exist"
    ),
    "an image of another account is pulled": _by_hand(
        "create a second stack, -c name=try, with an image in ECR of another account, whose policy allows it"
    ),
    "a pool leaves the stack": _by_hand("deploy a file with one of two pools, while both have workers"),
    "the stack is deleted": _by_hand("`cdk destroy` of a second stack while a worker has a request"),
    "the image is built for arm64": image_is_for_arm64,
    "fronts are healthy": fronts_are_healthy,
    "HTTPS answers": https_answers,
    "a front in Lambda answers": function_answers,
    "a gate process leads": gate_leads,
    "the operator's page": operator_page,
    "an administrator is named": administrator_is_named,
    "a stream survives a deployment": _disturbing(
        stream_survives_a_deployment, "deploy a change during a request of 200 s"
    ),
    "metrics arrive from tasks": metrics_arrive,
    "spans arrive": spans_arrive,
    "alarms arrive": alarms_arrive,
    "each alarm has its metric": alarms_have_metrics,
    "an instance joins, and has its disk": _of_workers(instances_have_joined),
    "each pool has its workers": pools_have_workers,
    "no connection is refused": no_connection_is_refused,
    "the weights are copied": _of_workers(weights_are_copied),
    "a worker is ready, with a read-only image": _of_workers(image_is_read_only),
    "a worker drains": _of_workers(_disturbing(worker_drains, "stop a worker's task during a stream")),
    "workers are replaced without a gap": _of_workers(
        _disturbing(
            workers_are_replaced_without_a_gap, "`aws ecs update-service --force-new-deployment` during requests"
        )
    ),
    "a worker retires": _of_workers(protections_are_taken),
    "a pool wakes from zero": _of_workers(_by_hand("a request to a pool with count.min 0 that is idle for an hour")),
    "a spot notice drains": _by_hand("interrupt a spot instance with a fault injection (FIS) during requests"),
    "the workers' secret is rotated": secret_is_rotated,
    "a version is taken back": version_is_taken_back,
    "the policies are sufficient": policies_are_sufficient,
}
"""The checks by the title of their row."""


def run_checks(deployed: Deployed) -> list[Finding]:
    """Run all checks. What AWS refuses is a warning of its check."""
    return [_run(title, run, deployed) for title, run in CHECKS.items()]


def _run(title: str, run: _Run, deployed: Deployed) -> Finding:
    try:
        return run(deployed, title)
    except (BotoCoreError, ClientError) as error:
        return warning(title, reason(error), "allow this principal to do it, or check it in AWS's console")


def as_markdown(stack: str, found: Sequence[Finding], now: float) -> str:
    """Return the findings as a page. `now`: Unix seconds."""
    day = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = [f"| {each.check} | {each.result.value} | {_cell(each.seen)} |" for each in found]
    head = [f"# The stack {stack} on {day}", "", "`headgate doctor deployed` saw:", "", "| what | result | seen |"]
    return "\n".join([*head, "| --- | --- | --- |", *rows, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
