"""The lines and the table that `headgate local` and `headgate serve` print: a shell understands the lines."""

from __future__ import annotations

import json
import shlex

import pytest

from dispatcher.settings.config import load_config
from headgate.cli.local import lines_to_paste
from headgate.cli.terminal.serving import print_address_table
from headgate.machine.options import Addresses

ADDRESSES = Addresses(
    operator_url="http://127.0.0.1:1/operator",
    operator_token="t",
    openai_base_url="http://127.0.0.1:1/v1",
    openai_base_urls=["http://127.0.0.1:1/v1"],
    aws_endpoint_url="http://127.0.0.1:2",
    model="m",
    pools={"default": "m"},
    api_keys={"quiet": "hg-1", "flood": "hg-2"},
    processes=[],
)


def lines(order: str = "bwfq") -> list[list[str]]:
    return [shlex.split(line) for line in lines_to_paste(ADDRESSES, order).splitlines() if "'s" not in line]


def variables(order: str = "bwfq") -> dict[str, str]:
    exported = [word for words in lines(order) if words[:1] == ["export"] for word in words[1:]]
    return dict(word.split("=", 1) for word in exported)


def test_the_variables_are_those_of_both_sdks() -> None:
    found = variables()
    assert found["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert found["OPENAI_API_KEY"] == "hg-1"
    assert found["AWS_ENDPOINT_URL"] == "http://127.0.0.1:2"
    assert {"AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= set(found)


@pytest.mark.parametrize(("order", "expected"), [("bwfq", None), ("fcfs", "fcfs")])
def test_another_order_is_named_for_the_commands_that_read_the_log(order: str, expected: str | None) -> None:
    assert variables(order).get("HEADGATE_ORDER") == expected


def test_the_pool_of_a_file_is_named_for_the_commands_that_read_the_log() -> None:
    chat = ADDRESSES.model_copy(update={"pools": {"chat": "m"}})
    assert "HEADGATE_POOL=chat" in lines_to_paste(chat, "bwfq")
    assert "HEADGATE_POOL" not in lines_to_paste(ADDRESSES, "bwfq")


def test_several_pools_are_given_to_the_commands_that_read_the_logs() -> None:
    two = ADDRESSES.model_copy(update={"pools": {"chat": "m", "code": "n"}})
    (line,) = [each for each in lines_to_paste(two, "bwfq").splitlines() if "HEADGATE_POOLS" in each]
    pools = next(word for word in shlex.split(line) if word.startswith("HEADGATE_POOLS=")).partition("=")[2]
    assert [each.pool for each in load_config({"HEADGATE_POOLS": pools}).each_pool()] == ["chat", "code"]


def test_the_body_of_curl_is_json() -> None:
    (curl,) = [words for words in lines() if words[:1] == ["curl"]]
    assert json.loads(curl[curl.index("-d") + 1])["model"] == "m"
    assert "Authorization: Bearer hg-1" in curl


def test_each_call_has_a_limit_because_the_tiny_model_does_not_end_by_itself() -> None:
    (curl,) = [words for words in lines() if words[:1] == ["curl"]]
    (invoke,) = [words for words in lines() if words[:2] == ["headgate", "invoke"]]
    assert json.loads(curl[curl.index("-d") + 1])["max_tokens"] == 32
    assert invoke[invoke.index("--max-tokens") + 1] == "32"


KEY = "hg-" + "k" * 43


def test_a_narrow_terminal_does_not_break_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_address_table("headgate serve", [("model", "m"), ("key of default (shown once)", KEY)], "\nCtrl-C stops.")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[-1] == KEY
    assert lines[-1] == "Ctrl-C stops."
