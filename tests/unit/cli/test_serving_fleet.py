"""`headgate serve --fleet`: what of a simulated fleet's file holds for processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError
from gpu_worker.engines.modelled.engine import ModelledEngine
from gpu_worker.engines.registry import make_engine
from gpu_worker.service.options import modelled_options, parse_options
from headgate.cli.terminal.serving import fleet_values
from headgate.simulator.engines.paged import paged_profile
from headgate.simulator.engines.profile import engine_names, load_profile

FLEET = """
kinds: {k: {m: {engine: a10g-llama2-7b, swap_s: 5}, n: {engine: a10g-llama2-7b, swap_s: 5, actual_swap_s: 9}}}
workers: [{name: a, kind: k, loaded: n}]
"""


def test_loads_and_steps_take_as_long_as_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    options = {"fleet": path, "engine": "modelled", "model": None}
    (worker,) = fleet_values(options)["swapping"]
    assert [(each.name, each.load_s) for each in worker.models] == [("n", 9.0), ("m", 5.0)]
    assert capsys.readouterr().err == (
        "note: the modelled engine has no prefill_curve, repeats_failed_attempts, tenant_tokens: here these fields of "
        "the profiles do not count\n"
    )
    path.write_text(FLEET + "actual_drain_s: 60\nfailures: [{worker: a, at_s: 1, for_s: 1}]\n")
    fleet_values(options)
    noted = capsys.readouterr().err
    assert "a swap waits here for 30 s at most" in noted
    assert "no worker fails here" in noted
    assert "default_class" not in noted
    assert fleet_values(options)["failures"] == ()
    assert fleet_values(options, plays_failures=True)["failures"] == [(0, 1.0, 1.0)]
    assert "no worker fails here" not in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", engine_names())
def test_a_worker_has_the_profile_of_its_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.replace("a10g-llama2-7b", name))
    (worker,) = fleet_values({"fleet": path, "engine": "modelled", "model": None})["swapping"]
    words = [word for model in worker.models for word in ("--model", model.name, "--profile", model.profile)]
    options = parse_options(["--engine", "modelled", *words])
    engine = make_engine(
        "modelled", policy="vtc", model="n", batch=8, home=tmp_path, modelled=modelled_options(options, 0)
    )
    assert isinstance(engine, ModelledEngine)
    profile = load_profile(name)
    for batch, prompt, kv in ((8, 0, 3_000), (4, 500, 900)):
        expected = paged_profile(profile).step_s(batch, prompt, kv)
        assert engine.profile.step_s(batch, prompt, kv) == pytest.approx(expected)
    assert (engine.profile.pool_tokens, engine.profile.batch_max) == (profile.pool_tokens, 8)


def test_other_engines_have_their_own_steps_and_the_default_class_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    fleet_values({"fleet": path, "engine": "vllm", "model": None})
    assert capsys.readouterr().err == ""
    classes = "classes: {soon: {first_token_s: 5}, later: {first_token_s: 50}}\n"
    for default, is_said in (("later", False), ("soon", True)):
        path.write_text(f"{FLEET}{classes}default_class: {default}\n")
        fleet_values({"fleet": path, "engine": "vllm", "model": None})
        said = "note: a request without a class has later here, whatever default_class says\n"
        assert capsys.readouterr().err == (said if is_said else "")


def test_more_workers_than_a_machine_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    names = [f"{{name: w{number}, kind: k}}" for number in range(9)]
    path.write_text(FLEET.replace("{name: a, kind: k, loaded: n}", ", ".join(names)))
    with pytest.raises(ConfigurationError, match=r"fleet.yaml has 9 workers: one machine runs at most 8"):
        fleet_values({"fleet": path, "engine": "modelled", "model": None})
