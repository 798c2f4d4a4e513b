"""The table of addresses and keys that `headgate serve` and `headgate local` print."""

from __future__ import annotations

import pytest

from headgate.cli.terminal.serving import print_address_table

KEY = "hg-" + "k" * 43


def test_a_narrow_terminal_does_not_break_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_address_table("headgate serve", [("model", "m"), ("key of default (shown once)", KEY)], "\nCtrl-C stops.")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[-1] == KEY
    assert lines[-1] == "Ctrl-C stops."
