"""The worker's command line: models, the server of the openai engine, and the operator's file of tiers."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.tiers import Tier
from dispatcher.settings.yaml_file import BYTES_MAX
from gpu_worker.engines.registry import make_engine
from gpu_worker.policies.fairness.tiered import make_queue
from gpu_worker.policies.shedding import ShedSettings
from gpu_worker.policies.slo import Slo, SloSettings
from gpu_worker.policies.tiers import TierSettings, tier_settings
from gpu_worker.service.options import modelled_options, parse_options, server_options, transformers_options
from gpu_worker.service.tiers_file import WorkerTiers, load_tiers


def test_without_a_model_there_is_one_without_a_name() -> None:
    options = parse_options(["--engine", "modelled"])
    assert (options.models, options.load_s) == ([None], [0.0])


def test_each_model_has_its_seconds() -> None:
    options = parse_options(
        ["--engine", "modelled", "--model", "a", "--load-s", "2", "--model", "b", "--load-s", "0.5"]
    )
    assert (options.models, options.load_s) == (["a", "b"], [2.0, 0.5])


def test_modelled_models_sleep_as_they_are_described() -> None:
    line = "--engine modelled --model a --model b --wake-s 0.5 --wake-s 1 --weights-gb 14 --weights-gb 16.5"
    options = parse_options([*line.split(), "--sleep-memory-gb", "40"])
    assert options.sleep_memory_gb == 40
    assert modelled_options(options, 1) == {"load_s": 0.0, "wake_s": 1.0, "sleep_bytes": 16_500_000_000}


def test_only_the_sizes_that_are_named_reach_the_transformers_engine() -> None:
    assert transformers_options(parse_options([])) == {}
    options = parse_options(["--kv-tokens", "100000", "--step-tokens", "2048", "--dtype", "bfloat16"])
    assert transformers_options(options) == {"kv_tokens": 100_000, "step_tokens": 2048, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model a --model a", "names a model twice"),
        ("--engine openai --url http://x/v1 --model a --model b", "serves one model"),
        ("--engine modelled --model a --model b --load-s 1", "1 --load-s for 2 --model"),
        ("--engine modelled --model a --model b --wake-s 1", "1 --wake-s for 2 --model"),
        ("--engine modelled --model a --model b --profile {}", "1 --profile for 2 --model"),
        (
            '--engine modelled --profile {"decode_base_s":-1}',
            "key 'decode_base_s': should be greater",
        ),
        ('--engine modelled --profile {"decode_base":1}', "did you mean 'decode_base_s'"),
        ("--engine modelled --profile none.yaml", "none.yaml"),
        ("--engine modelled --load-s -1", "--load-s"),
        ("--engine modelled --sleep-memory-gb -1", "--sleep-memory-gb"),
        ("--engine transformers --sleep-memory-gb 8", "--engine transformers cannot sleep"),
        ("--engine modelled --sleep-memory-gb 8 --sleep-level 2", "--sleep-level 2 is for --engine vllm"),
        ("--engine vllm --sleep-level 2", "with --sleep-memory-gb"),
        ("--engine vllm --sleep-memory-gb 8 --sleep-level 3", "invalid choice: 3"),
        ("--engine modelled --load-s inf", "is not a number of seconds"),
        ("--engine modelled --kv-tokens 4096", "--kv-tokens is for --engine transformers, not modelled"),
        (
            "--engine vllm --dtype float16",
            "--dtype is for --engine transformers, not vllm; vLLM's own arguments follow --",
        ),
        ("--engine transformers --dtype float8", "invalid choice: 'float8'"),
        ("--engine transformers --step-tokens 0", "whole number from 1 to"),
        ("--engine transformers --kv-tokens 1e6", "whole number from 64 to"),
        ("--engine openai --url http://x/v1 --capabilities chat,magic", "'magic' is none of chat, completion"),
        ("--engine openai --url http://x/v1 --context-tokens 0", "'0' is not a whole number from 1"),
        ("--port 99999", "--port"),
        ("--port -1", "--port"),
        ("--port http", "--port"),
        ("--slots 0", "--slots"),
        ("--slots 9999999999999", "--slots"),
        ("--slots ٣", "--slots"),
        ("--batch 0", "--batch"),
        ("--engine steam", "--engine"),
        ("--pool a/b", "--pool"),
        ("--worker-id a#1", "--worker-id"),
        ("--nonsense", "--nonsense"),
        ("--tiers no/such.yaml", "no/such.yaml: No such file"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments.split())
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu_worker: ")
    assert message in line


URL = ["--engine", "openai", "--url", "http://127.0.0.1:8000/v1"]


def test_the_key_is_read_from_the_environment() -> None:
    found = server_options(parse_options(URL), {"ENGINE_API_KEY": "secret"})
    assert found == {"url": URL[-1], "key": "secret", "context_tokens": None, "capabilities": None}
    assert server_options(parse_options(URL), {"ENGINE_API_KEY": ""})["key"] is None


def test_context_and_capabilities_can_be_set() -> None:
    found = server_options(parse_options([*URL, "--context-tokens", "4096", "--capabilities", "chat,tools,n"]), {})
    assert (found["context_tokens"], found["capabilities"]) == (4096, {"chat", "tools", "n"})


WHOLE = """
queue:
  shares: {premium: 0.4, background: 0.2}
  share_slack: 100
  aging_per_s: 0.2
  aging_max: 1
  deficit_factor: 3
  preemption: true
  preemptions_max: 2
  at_limit: end
  may_drop: [background]
  lead_max: 5000
  premium_reserve: 0.3
slo:
  window_s: 30
  samples_max: 500
  goal: 0.95
  samples_min: 5
  misses_min: 1
  targets:
    premium: {ttft_s: 0.1, tpot_s: 0.02}
shedding:
  enabled: true
  patience_s: 5
  calm_s: 20
  calm_max_s: 200
  check_s: 1
  retry_min_s: 2
  retry_max_s: 60
"""


def loaded(tmp_path: Path, text: str) -> WorkerTiers:
    path = tmp_path / "tiers.yaml"
    path.write_text(text)
    return load_tiers(str(path))


def test_every_setting_can_be_set(tmp_path: Path) -> None:
    tiers = loaded(tmp_path, WHOLE)
    assert tier_settings(tiers.for_queue() or {}) == TierSettings(
        {Tier.PREMIUM: 0.4, Tier.BACKGROUND: 0.2},
        *(100.0, 0.2, 1.0, 3.0),
        preemptions_max=2,
        at_limit="end",
        may_drop=frozenset({Tier.BACKGROUND}),
        lead_max=5000.0,
        premium_reserve=0.3,
    )
    shedder = tiers.shedder()
    assert shedder.settings == ShedSettings(True, 5.0, 20.0, 200.0, 1.0, 2.0, 60.0)
    slo = shedder.monitor.settings
    assert (slo.window_s, slo.samples_max, slo.goal, slo.samples_min, slo.misses_min) == (30.0, 500, 0.95, 5, 1)
    assert [slo.target(Tier.PREMIUM, kind) for kind in Slo] == [0.1, 0.02, inf]
    assert slo.target(Tier.STANDARD, Slo.TTFT) == 0.5


def test_cached_tokens_have_the_gates_price(tmp_path: Path) -> None:
    prices = {"cached_fraction": 0.2, "adapter_load_tokens": 300}
    assert loaded(tmp_path, "").priced(0.2, 300) == prices
    assert loaded(tmp_path, "queue: {cached_fraction: 0.2}").priced(0.2, 300) == prices
    own = loaded(tmp_path, "queue: {adapter_load_tokens: 7}").priced(0.2, 300)
    assert own == {**prices, "adapter_load_tokens": 7}
    assert make_queue("vtc", prices).adapter_load_tokens == 300
    with pytest.raises(ValueError, match=r"is 0\.5, and the gate charges 0\.2 \(HEADGATE_CACHED_FRACTION\)"):
        loaded(tmp_path, "queue: {cached_fraction: 0.5}").priced(0.2, 300)
    for policy in ("vtc", "tiered:vtc"):
        assert make_queue(policy, {"cached_fraction": 0.2}) is not None
    assert make_queue("vtc", {"cached_fraction": 0.2}).cached_fraction == 0.2
    with pytest.raises(ValueError, match="has no tiers to set"):
        make_queue("vtc", {"cached_fraction": 0.2, "lead_max": 5.0})


@pytest.mark.parametrize("text", ["", "{}", "slo: {}", "shedding: {calm_s: null}"])
def test_what_is_left_out_is_as_it_is_by_itself(tmp_path: Path, text: str) -> None:
    tiers = loaded(tmp_path, text)
    assert tiers.for_queue() is None
    assert tiers.shedder().settings == ShedSettings()
    assert tiers.shedder().monitor.settings == SloSettings()
    assert loaded(tmp_path, "queue: {lead_max: null}").for_queue() == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quue: {}", "key 'quue': is not known here (did you mean 'queue'?)"),
        ("queue: {sharess: {}}", "key 'queue.sharess': is not known here (did you mean 'shares'?)"),
        ("queue: {shares: {royal: 1}}", "queue.shares.royal"),
        ("queue: {shares: {system: 0.1}}", "queue.shares.system"),
        ("queue: {shares: {premium: 0.8, standard: 0.8}}", "with a sum of at most 1"),
        ("queue: {premium_reserve: 1}", "queue.premium_reserve"),
        ("queue: {lead_max: .inf}", "queue.lead_max"),
        ("queue: {at_limit: give up}", "queue.at_limit"),
        (
            "slo: {targets: {premium: {ttft_ms: 200}}}",
            "key 'slo.targets.premium.ttft_ms': is not known here (did you mean 'ttft_s'?)",
        ),
        ("slo: {targets: {premium: {ttft_s: 0}}}", "slo.targets.premium.ttft_s"),
        ("slo: {window_s: soon}", "slo.window_s"),
        ("shedding: {calm_s: 400}", "calm_max_s"),
        ("[1]", "should be a mapping of queue, slo, shedding"),
        ("queue: {preemption: no}", "key 'queue.preemption': should be a valid boolean, not 'no'"),
        ("a: [", "not YAML"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiers.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit):
        parse_options(["--tiers", str(path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu_worker: argument --tiers: ")
    assert says in line


def test_the_queue_is_made_with_them(tmp_path: Path) -> None:
    settings = loaded(tmp_path, WHOLE).for_queue()
    engine = make_engine("modelled", policy="tiered:fcfs", model=None, batch=2, home=tmp_path, tiers=settings)
    assert engine.stats().gauges.reserve_blocks > 0
    with pytest.raises(ValueError, match="'vtc' has no tiers to set; tiered:vtc has"):
        make_engine("modelled", policy="vtc", model=None, batch=2, home=tmp_path, tiers=settings)
    assert parse_options([]).tiers.for_queue() is None


def test_a_file_too_long_or_too_deep_is_refused_and_not_cut(tmp_path: Path) -> None:
    long, deep = tmp_path / "long.yaml", tmp_path / "deep.yaml"
    long.write_text("queue: {preemption: false}\n" + "#" * BYTES_MAX)
    deep.write_text("[" * 5000)
    with pytest.raises(ConfigurationError, match=f"more than {BYTES_MAX} bytes"):
        load_tiers(str(long))
    with pytest.raises(ConfigurationError, match="nested more than 20 deep"):
        load_tiers(str(deep))


def test_a_json_object_takes_the_place_of_a_file() -> None:
    assert load_tiers('{"queue": {"premium_reserve": 0.25}}').for_queue() == {"premium_reserve": 0.25}
    with pytest.raises(
        ConfigurationError, match=r"the settings, line 1, column 12, key 'queue.premium_reserve': should be less than 1"
    ):
        load_tiers('{"queue": {"premium_reserve": 2}}')
