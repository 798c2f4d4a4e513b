"""`headgate doctor after` on a service of this machine: healthy, with a wrong key, and stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.local.stack import run_json, serve
from tests.support.warm_commands import run_warm

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]


def doctor(*arguments: str) -> tuple[int, dict[str, str]]:
    """Return the exit code, and the result of each check."""
    ended = run_warm("doctor", "after", "--json", *arguments, environment=os.environ)
    return ended.returncode, {each["check"]: each["result"] for each in json.loads(ended.stdout)["findings"]}


def test_a_service_from_its_start_to_its_end(tmp_path: Path) -> None:
    served = serve(tmp_path / "data", "--workers", "1")
    place = ("--data", served.data, "--base-url", served.openai_base_url)
    try:
        before = {tenant["name"] for tenant in run_json("tenants", "list", "--data", served.data)["tenants"]}
        code, found = doctor(*place, "--key", served.api_keys["default"], "--fairness")
        assert (code, found) == (0, dict.fromkeys(("table", "log", "workers", "shares", "request", "fairness"), "ok"))
        after = {tenant["name"] for tenant in run_json("tenants", "list", "--data", served.data)["tenants"]}
        assert after == before, "the tenants of the fairness test are deleted"
        code, found = doctor(*place, "--key", "hg-wrong")
        assert (code, found["request"]) == (1, "failed")
    finally:
        assert served.stop() == 0
    code, found = doctor(*place, "--key", served.api_keys["default"])
    assert (code, found["table"], found["workers"], found["request"]) == (1, "ok", "failed", "failed")
