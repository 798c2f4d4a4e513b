"""`headgate serve --fleet`: what of a simulated fleet's file holds for processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_worker.engines.modelled.engine import PROFILE
from headgate.cli.terminal.serving import fleet_values
from headgate.simulator.engines.profile import load_profile

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
    assert capsys.readouterr().err == (
        "note: steps take the modelled engine's own times, not those of the profiles of m, n\n"
    )
    path.write_text(FLEET + "actual_drain_s: 60\nfailures: [{worker: a, at_s: 1, for_s: 1}]\n")
    fleet_values(options)
    noted = capsys.readouterr().err
    assert "a swap waits here for 30 s at most" in noted
    assert "no worker fails here" in noted
    assert "default_class" not in noted


def test_step_times_and_default_class_that_are_not_played_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile with the modelled engine's own times needs no note, and neither do other engines."""
    fields = ("prefill_base_s", "prefill_per_token_s", "decode_base_s", "decode_per_request_s", "decode_per_kv_token_s")
    steps = {name: getattr(PROFILE, name) for name in fields}
    own = load_profile("a10g-llama2-7b").model_copy(update={**steps, "prefill_curve": ()})
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own.model_dump(mode="json", exclude={"fitted_on"})))
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.replace("m: {engine: a10g-llama2-7b", f"m: {{engine: {tmp_path / 'own.yaml'}"))
    fleet_values({"fleet": path, "engine": "modelled", "model": None})
    assert capsys.readouterr().err.endswith("not those of the profiles of n\n")
    fleet_values({"fleet": path, "engine": "vllm", "model": None})
    assert capsys.readouterr().err == ""
    classes = "classes: {soon: {first_token_s: 5}, later: {first_token_s: 50}}\n"
    for default, is_said in (("later", False), ("soon", True)):
        path.write_text(f"{FLEET}{classes}default_class: {default}\n")
        fleet_values({"fleet": path, "engine": "vllm", "model": None})
        said = "note: a request without a class has later here, whatever default_class says\n"
        assert capsys.readouterr().err == (said if is_said else "")
