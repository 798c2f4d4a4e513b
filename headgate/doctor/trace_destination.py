"""The check of `traces: xray` in headgate.yaml: X-Ray takes spans only in an account with Transaction Search."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from headgate.doctor.account import reason
from headgate.doctor.finding import Finding, failed, ok, warning

CHECK = "traces"
ADVICE = "enable Transaction Search (docs/deployment.md, Traces), or set `traces: none`"


def check_traces(xray: Any) -> Finding:
    """Return whether X-Ray takes spans. `xray`: a client of boto3. Nothing is changed."""
    try:
        found = xray.get_trace_segment_destination()
    except (BotoCoreError, ClientError) as error:
        return warning(CHECK, reason(error), "allow xray:GetTraceSegmentDestination, or look in CloudWatch's console")
    if found["Destination"] != "CloudWatchLogs":
        return failed(CHECK, f"spans would be lost: X-Ray keeps traces in {found['Destination']}", ADVICE)
    if found["Status"] != "ACTIVE":
        return warning(CHECK, f"Transaction Search is {found['Status']}", "repeat this check in some minutes")
    return ok(CHECK, "Transaction Search is active")
