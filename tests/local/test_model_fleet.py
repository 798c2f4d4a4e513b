"""Three models on two workers, as processes: every model is served, and workers swap while requests wait."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest

from tests.local.test_serve import usage
from tests.support.local.stack import ROOT, charges, eventually, run_json, serve

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

MODELS = ("chat", "code", "draft")
FLEET = str(ROOT / "examples" / "fleet.yaml")


def write_quick_fleet(folder: Path, rest: str) -> None:
    """Write the file of a fleet with the models a and b: a step takes a millisecond, and a swap 0.2 s."""
    times = "prefill_base_s: 0, prefill_per_token_s: 0, decode_base_s: 0.001, decode_per_request_s: 0"
    (folder / "quick.yaml").write_text(
        f"{{name: quick, fitted: false, source: made, pool_tokens: 4000, {times}, decode_per_kv_token_s: 0}}"
    )
    able = ", ".join(f"{name}: {{engine: {folder / 'quick.yaml'}, swap_s: 0.2, slots: 8}}" for name in "ab")
    (folder / "fleet.yaml").write_text(f"kinds: {{k: {{{able}}}}}\n{rest}")


def test_three_models_on_two_workers(tmp_path: Path) -> None:
    served = serve(tmp_path / "data", "--fleet", FLEET)
    client = served.openai(served.api_keys["default"])
    try:
        assert sorted(model.id for model in client.models.list()) == sorted(MODELS)
        asked = [model for _ in range(4) for model in MODELS]

        def ask(model: str) -> str:
            answer = client.completions.create(model=model, prompt="once", max_tokens=20)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 20
            return answer.model

        with ThreadPoolExecutor(len(asked)) as threads:
            answered = list(threads.map(ask, asked))
        assert Counter(answered) == dict.fromkeys(MODELS, 4)
        used = charges(lambda: usage(served), len(asked))
        assert used.output_tokens == 20 * len(asked), "each request is charged once"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="unknown", prompt="once", max_tokens=1)
    finally:
        assert served.stop() == 0


def test_a_worker_fails_and_comes_back_as_the_file_says(tmp_path: Path) -> None:
    """While it is gone, the other one loads its model."""
    both = "workers: [{name: x, kind: k, loaded: a}, {name: y, kind: k, loaded: b}]\n"
    write_quick_fleet(tmp_path, f"{both}failures: [{{worker: x, at_s: 0, for_s: 3}}]\n")
    served = serve(tmp_path / "data", "--fleet", str(tmp_path / "fleet.yaml"))
    client = served.openai(served.api_keys["default"])

    def urls() -> set[str]:
        return {each["url"] for each in run_json("top", "--once", "--data", served.data)["workers"]}

    workers = [member for member in served.processes if member["role"] == "worker"]
    first = {member["url"] for member in workers}
    try:
        for model in "abab":
            answer = client.completions.create(model=model, prompt="once", max_tokens=4)
            assert answer.model == model
        now = eventually(urls, lambda found: len(found) == 2 and found != first)
        assert len(now & first) == 1, "the worker that failed is at another address"
        assert [psutil.pid_exists(member["pid"]) for member in workers].count(False) == 1
    finally:
        assert served.stop() == 0


def test_a_simulated_scene_is_played_on_processes_too(tmp_path: Path) -> None:
    """Two classes of one tenant, a model that is loaded nowhere, a conversation, a name that the service does not take,
    and a prompt that no worker takes."""
    write_quick_fleet(tmp_path, "workers: [{name: x, kind: k, loaded: a}]\n")
    rows = [
        "0,t,10,4,a,batch,,",
        "0.1,t,10,4,b,interactive,,",
        "0.2,Team U,10,40,a,normal,talk,0",
        "0.2,Team U,10,4,a,normal,talk,1",
        "0.3,Team U,5000,4,a,normal,,",
    ]
    header = "arrival_s,tenant,input_tokens,output_tokens,model,slo_class,interaction,stage"
    (tmp_path / "scene.csv").write_text("\n".join([header, *rows]) + "\n")
    where = ("--fleet", str(tmp_path / "fleet.yaml"), "--planner", "plan")
    simulated, live = run_json("simulate", str(tmp_path / "scene.csv"), *where, "--live")["runs"]
    assert (simulated["planner"], live["planner"]) == ("plan", "live")
    for name, tenant in simulated["tenants"].items():
        again = live["tenants"][name]
        assert {key: again[key] for key in ("requests", "served", "service")} == {
            key: tenant[key] for key in ("requests", "served", "service")
        }
    assert {name: each["requests"] for name, each in live["classes"].items()} == {
        "batch": 1, "interactive": 1, "normal": 3,
    }  # fmt: skip
    assert live["tenants"]["Team U"]["first_token_s"]["p99"] > 0
    assert sum(live["rejections"].values()) == sum(simulated["rejections"].values()) == 1
    assert live["models"]["b"]["loads"] >= 1
    assert live["swapping_s"] == pytest.approx(0.2 * live["swaps"])
