"""The state of a stack in the background: which process it means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError
from headgate.local.background import STATE, BackgroundStack, default_folder, running_stack, stop, stop_command
from headgate.machine.options import Addresses

ADDRESSES = Addresses(
    operator_url="http://127.0.0.1:1/operator",
    operator_token="t",
    openai_base_url="u",
    openai_base_urls=["u"],
    aws_endpoint_url="a",
    model="m",
    pools={"default": "m"},
    api_keys={},
    processes=[],
)


def test_another_process_with_the_same_id_is_not_the_stack(tmp_path: Path) -> None:
    """This test's own process has the id, and not the mark."""
    state = BackgroundStack(pid=os.getpid(), mark="of a stack that ended", addresses=ADDRESSES)
    (tmp_path / STATE).write_text(state.model_dump_json())
    assert running_stack(tmp_path) is None
    with pytest.raises(ConfigurationError, match="no stack runs in the background"):
        stop(tmp_path)
    assert not (tmp_path / STATE).exists()


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_file_is_no_stack(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE).write_text(content)
    assert running_stack(tmp_path) is None


def test_the_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "headgate/local"
    assert stop_command(default_folder()) == "headgate local stop"
    assert stop_command(tmp_path) == f"headgate local stop --home {tmp_path}"
