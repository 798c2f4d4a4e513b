"""`headgate serve --fleet`: what of a simulated fleet's file holds for processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli.terminal.serving import fleet_values

FLEET = """
kinds: {k: {m: {engine: a10g-llama2-7b, swap_s: 5}, n: {engine: a10g-llama2-7b, swap_s: 5, actual_swap_s: 9}}}
workers: [{name: a, kind: k, loaded: n}]
"""


def test_loads_take_as_long_as_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    options = {"fleet": path, "engine": "modelled", "model": None}
    (worker,) = fleet_values(options)["swapping"]
    assert worker.models == (("n", 9.0), ("m", 5.0))
    assert capsys.readouterr().err == ""
    path.write_text(FLEET + "actual_drain_s: 60\nfailures: [{worker: a, at_s: 1, for_s: 1}]\n")
    fleet_values(options)
    noted = capsys.readouterr().err
    assert "a swap waits here for 30 s at most" in noted
    assert "no worker fails here" in noted
