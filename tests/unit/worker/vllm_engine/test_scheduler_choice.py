"""What `--scheduler-cls headgate_vllm.Scheduler` refuses at the start, and which scheduler it chooses."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import headgate_vllm
from gpu_worker.engines.vllm import scheduler_choice, server
from gpu_worker.engines.vllm.compatibility import IncompatibleVllm
from gpu_worker.engines.vllm.scheduler_choice import refuse_features

ROOT = Path(__file__).parents[4]
GUIDE = ROOT / "docs/vllm-plugin.md"
UNKNOWN_MAX = 5


def config_of(**fields: Any) -> Any:
    parallel = {"pipeline_parallel_size": 1, "data_parallel_size": 1, "data_parallel_index": 0}
    parallel |= {name: fields.pop(name) for name in list(fields) if name in parallel}
    model = SimpleNamespace(is_encoder_decoder=fields.pop("is_encoder_decoder", False))
    usual: dict[str, Any] = {"kv_transfer_config": None, "diffusion_config": None, "additional_config": {}}
    ahead = SimpleNamespace(async_scheduling=fields.pop("ahead", False), policy="fcfs")
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel), model_config=model, scheduler_config=ahead, **usual | fields
    )


def transfer_of(connector: str, *several: str) -> Any:
    extra = {"connectors": [{"kv_connector": each} for each in several]} if several else {}
    return SimpleNamespace(kv_connector=connector, kv_connector_extra_config=extra)


def cache_of(groups: int) -> Any:
    return SimpleNamespace(kv_cache_groups=[None] * groups)


@pytest.mark.parametrize(
    ("fields", "groups", "sentence"),
    [
        ({"data_parallel_size": 2}, 1, "refuses data parallelism"),
        ({"data_parallel_index": 1}, 1, "refuses data parallelism"),
        ({"pipeline_parallel_size": 2}, 1, "refuses pipeline parallelism"),
        ({"diffusion_config": object()}, 1, "refuses a diffusion model"),
        ({"is_encoder_decoder": True}, 1, "refuses an encoder-decoder model"),
        (
            {"kv_transfer_config": transfer_of("MultiConnector", "NixlConnector", "SwapConnector")},
            1,
            "refuses SwapConnector behind another connector",
        ),
        (
            {"kv_transfer_config": transfer_of("MultiConnector", "SwapConnector", "SwapConnector")},
            1,
            "list it once, as the first",
        ),
        ({}, 2, "refuses 2 groups of KV blocks, because it plans with one; add --disable-hybrid-kv-cache-manager"),
    ],
)
def test_a_feature_without_its_promise_is_refused_with_a_sentence(
    fields: dict[str, Any], groups: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        refuse_features(config_of(**fields), cache_of(groups))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize(
    "transfer", [None, transfer_of("SwapConnector"), transfer_of("MultiConnector", "SwapConnector")]
)
def test_a_usual_server_is_not_refused(groups: int, transfer: Any) -> None:
    refuse_features(config_of(kv_transfer_config=transfer), cache_of(groups))


@pytest.mark.parametrize("ahead", [False, True])
def test_the_scheduler_follows_vllms_configuration(monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    made = ModuleType("made")
    made.__dict__.update(
        TierScheduler=lambda *args, **kwargs: ("in step", args, kwargs),
        AsyncTierScheduler=lambda *args, **kwargs: ("ahead", args, kwargs),
    )
    monkeypatch.setitem(sys.modules, "gpu_worker.engines.vllm.scheduler", made)
    parts: list[Any] = []
    monkeypatch.setattr(scheduler_choice, "require_vllm", parts.extend)
    config, cache = config_of(ahead=ahead), cache_of(1)
    chosen = headgate_vllm.Scheduler(vllm_config=config, kv_cache_config=cache, block_size=16)
    assert chosen == ("ahead" if ahead else "in step", (config, cache), {"block_size": 16})
    assert parts == ["scheduler"]
    config.kv_transfer_config = transfer_of("SwapConnector")
    headgate_vllm.Scheduler(vllm_config=config, kv_cache_config=cache)
    assert parts == ["scheduler", "scheduler", "swap"]
    config.kv_transfer_config = transfer_of("MultiConnector", "SwapConnector", "NixlConnector")
    headgate_vllm.Scheduler(vllm_config=config, kv_cache_config=cache)
    assert parts[3:] == ["scheduler", "swap"]
    with pytest.raises(ValueError, match="refuses 2 groups"):
        headgate_vllm.Scheduler(vllm_config=config, kv_cache_config=cache_of(2))


@pytest.mark.parametrize("trusts", [False, True])
def test_a_request_is_salted_before_the_scheduler_gets_it_if_its_parameters_are_trusted(
    monkeypatch: pytest.MonkeyPatch, trusts: bool
) -> None:
    got: list[tuple[str, Any]] = []
    made = ModuleType("made")
    made.__dict__["TierScheduler"] = lambda *_: SimpleNamespace(add_request=lambda one: got.append(("added", one)))
    made.__dict__["AsyncTierScheduler"] = None
    monkeypatch.setitem(sys.modules, "gpu_worker.engines.vllm.scheduler", made)
    monkeypatch.setattr(scheduler_choice, "require_vllm", lambda parts: None)
    monkeypatch.setattr(scheduler_choice, "salt_prefixes", lambda one: got.append(("salted", one)))
    config = config_of(additional_config={"headgate": {"trust_client_fields": trusts}})
    headgate_vllm.Scheduler(config, cache_of(1)).add_request("r")
    assert got == [*[("salted", "r")] * trusts, ("added", "r")]


def test_a_workers_server_ends_with_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(parts: object) -> None:
        raise IncompatibleVllm("headgate does not work with vLLM 9")

    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setattr(server, "_end_with_worker", lambda: None)
    monkeypatch.setattr(server, "require_vllm", refuse)
    with pytest.raises(SystemExit) as ended:
        server.main()
    assert ended.value.code == "headgate does not work with vLLM 9"


def test_a_workers_server_chooses_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[list[str]] = []
    platforms, entry = ModuleType("vllm.platforms"), ModuleType("entry")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)  # type: ignore[attr-defined]
    entry.main = lambda: served.append(sys.argv[1:])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.launchers.api_server.entry", entry)
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setattr(server, "_end_with_worker", lambda: None)
    monkeypatch.setattr(server, "require_vllm", lambda parts: None)
    monkeypatch.setattr(sys, "argv", ["server", "--model", "/m"])
    server.main()
    (words,) = served
    module, _, name = words[-1].rpartition(".")
    assert getattr(sys.modules[module], name) is headgate_vllm.Scheduler


def test_each_row_of_the_table_of_features_names_its_test() -> None:
    """A row that works or is refused names a test that exists; at most UNKNOWN_MAX are unknown, with what they need."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    table = GUIDE.read_text(encoding="utf-8").partition("| feature |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    verdicts = [verdict for _, verdict, *_ in rows]
    assert set(verdicts) == {"works", "refused", "unknown"}
    assert verdicts.count("unknown") <= UNKNOWN_MAX
    for feature, verdict, _, shown in rows:
        names = re.findall(r"`(test_\w+)`", shown)
        assert names or verdict == "unknown", feature
        assert all(f"def {name}(" in tests for name in names), feature
        assert len(shown) > 20, feature
