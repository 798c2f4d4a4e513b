"""The time model in virtual time, and that it needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_worker.engines.base import Token
from gpu_worker.engines.modelled import ModelledEngine, Shape, TimeModel
from gpu_worker.engines.registry import ENGINES, EngineUnavailable, make_engine
from gpu_worker.policies.queue_policy import make_policy
from tests.engines.engine_kinds import events_of, gather_text, request


class VirtualTime:
    def __init__(self) -> None:
        self.now_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def engine_in(time: VirtualTime, batch: int = 4) -> ModelledEngine:
    model = TimeModel(1.0, 0.01, 0.1, 0.02, 0.001)
    return ModelledEngine(make_policy("fcfs"), time_model=model, shape=Shape(batch=batch), sleep=time.sleep)


async def test_a_request_takes_what_the_model_says() -> None:
    time = VirtualTime()
    engine = engine_in(time)
    await engine.start()
    await events_of(engine, request("r", prompt="x" * 40, max_tokens=3))  # 10 tokens
    await engine.stop()
    prefill_s = 1.0 + 0.01 * 10
    decode_s = sum(0.1 + 0.02 + 0.001 * kv_tokens for kv_tokens in (10, 11, 12))
    assert time.now_s == pytest.approx(prefill_s + decode_s)


async def test_a_batch_shares_its_steps() -> None:
    time = VirtualTime()
    engine = engine_in(time)
    await engine.start()
    await gather_text(engine, [request(f"r{n}", prompt="x" * 40, max_tokens=2) for n in range(3)])
    await engine.stop()
    prefill_s = 1.0 + 0.01 * 30
    decode_s = sum(0.1 + 0.02 * 3 + 0.001 * kv_tokens for kv_tokens in (30, 33))
    assert time.now_s == pytest.approx(prefill_s + decode_s)


async def test_more_than_the_batch_take_turns() -> None:
    time = VirtualTime()
    engine = engine_in(time, batch=1)
    await engine.start()
    await gather_text(engine, [request(f"r{n}", prompt="x" * 40, max_tokens=1) for n in range(3)])
    await engine.stop()
    assert time.now_s == pytest.approx(3 * (1.0 + 0.1 + 0.1 + 0.02 + 0.01))


async def test_its_tokens_are_words() -> None:
    engine = engine_in(VirtualTime())
    await engine.start()
    events = await events_of(engine, request("r", max_tokens=5))
    await engine.stop()
    text = "".join(event.text for event in events if isinstance(event, Token))
    assert len(text.split()) == 5


def test_it_loads_no_torch() -> None:
    script = (
        "import sys, pathlib; from gpu_worker.engines.registry import make_engine;"
        "make_engine('modelled', policy='vtc', model=None, batch=4, home=pathlib.Path('.'));"
        "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(("kind", "says"), [("vllm", "not part of this release"), ("abacus", "modelled")])
def test_an_engine_that_cannot_be_had_says_what_can(kind: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=says):
        make_engine(kind, policy="vtc", model=None, batch=4, home=tmp_path)
    assert "vllm" in ENGINES


def test_an_unknown_policy_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lottery"):
        make_engine("modelled", policy="lottery", model=None, batch=4, home=tmp_path)
