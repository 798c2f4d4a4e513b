"""The check of X-Ray before a deployment with traces, against AWS's own client and answers of its own form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from headgate.doctor.before import AwsAccount, check_traces
from headgate.doctor.finding import CheckResult, Finding, failed, ok
from tests.unit.cli.command import headgate

REGION = "us-east-1"


@pytest.fixture
def xray(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    return boto3.client("xray", region_name=REGION)


def found(xray: Any, **answer: str) -> Finding:
    with Stubber(xray) as stubber:
        stubber.add_response("get_trace_segment_destination", answer, {})
        return check_traces(xray)


def test_transaction_search_is_active(xray: Any) -> None:
    assert found(xray, Destination="CloudWatchLogs", Status="ACTIVE").result is CheckResult.OK


def test_it_is_being_enabled(xray: Any) -> None:
    assert found(xray, Destination="CloudWatchLogs", Status="PENDING").result is CheckResult.WARNING


def test_it_is_not_enabled(xray: Any) -> None:
    finding = found(xray, Destination="XRay", Status="ACTIVE")
    assert finding.result is CheckResult.FAILED
    assert "Transaction Search" in finding.advice


def test_it_may_not_be_read(xray: Any) -> None:
    with Stubber(xray) as stubber:
        stubber.add_client_error("get_trace_segment_destination", "AccessDeniedException", "no")
        finding = check_traces(xray)
    assert (finding.result, "AccessDenied" in finding.seen) == (CheckResult.WARNING, True)


@pytest.mark.parametrize(
    ("traces", "credentials", "is_checked"),
    [("xray", ok, True), ("none", ok, False), ("xray", partial(failed, advice="log in"), False)],
)
def test_it_is_checked_if_the_file_asks_for_traces(
    traces: str,
    credentials: Callable[[str, str], Finding],
    is_checked: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text(f"region: {REGION}\ntraces: {traces}\n")
    monkeypatch.setattr(AwsAccount, "findings", lambda *_: [credentials("credentials", "an account")])
    monkeypatch.setattr(AwsAccount, "client", lambda _, service: Destination(service))
    headgate("doctor", "before", "--file", str(file))
    assert ("Transaction Search is active" in capsys.readouterr().out) == is_checked


class Destination:
    def __init__(self, service: str) -> None:
        assert service == "xray"

    def get_trace_segment_destination(self) -> dict[str, str]:
        return {"Destination": "CloudWatchLogs", "Status": "ACTIVE"}
