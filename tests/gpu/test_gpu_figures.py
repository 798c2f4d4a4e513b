"""The pure pieces of the GPU run's parts: comparisons of tokens, meters, arrivals, percentiles, tables."""

from __future__ import annotations

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.gpu.bench import Bench, StepMeter  # noqa: E402
from benchmarks.gpu.equal_tokens import Comparison, count_followers, first_difference, spacing  # noqa: E402
from benchmarks.gpu.first_token import make_flow, waits_of  # noqa: E402
from benchmarks.gpu.sizes import TINY  # noqa: E402
from benchmarks.gpu.throughput import POLICIES, StockAnswer, Throughput, mean_of  # noqa: E402
from dispatcher.policies.tiers import Tier  # noqa: E402
from gpu_worker.engines.random_llama import (  # noqa: E402
    LlamaShape,
    build_llama,
    build_tokenizer,
    unprintable_tokens,
)
from gpu_worker.policies.fairness.registry import make_policy  # noqa: E402

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("one", "other", "position"), [([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [1], 0)]
)
def test_the_first_difference_is_found(one: list[int], other: list[int], position: int) -> None:
    assert first_difference(one, other) == position


@pytest.mark.parametrize("number", [1.0, 5.3, -7.9, 100.0])
def test_the_spacing_is_the_distance_to_the_next_number(number: float) -> None:
    here = torch.tensor(number, dtype=torch.bfloat16)
    following = torch.nextafter(here.abs(), torch.tensor(inf, dtype=torch.bfloat16))
    assert spacing(number, torch.bfloat16) == (following - here.abs()).item()


@pytest.mark.parametrize(
    ("comparison", "verdict"),
    [
        (Comparison(5, 12), "equal"),
        (Comparison(5, 12, 3, below=0.06, spacing=0.03), "rounding tie"),
        (Comparison(5, 12, 3, below=0.10, spacing=0.03), "different"),
        (Comparison(5, 12, 3, below=0.10, spacing=0.03, noise=0.12), "rounding tie"),
        (Comparison(5, 12, 3, below=inf, spacing=0.03, noise=0.12), "different"),
    ],
)
def test_a_difference_is_a_tie_only_within_the_rounding(comparison: Comparison, verdict: str) -> None:
    assert comparison.verdict == verdict


def test_tokens_with_different_followers_are_counted() -> None:
    assert count_followers([[1, 2, 1, 3], [2, 1, 5]]) == (2, 1)


class FakeProcessor:
    """A processor whose steps do nothing."""

    def __init__(self) -> None:
        self.scheduler = SimpleNamespace(schedule_batch=lambda *budgets: budgets)
        self.updates = 0

    def prepare_next_batch(self) -> bool:
        return bool(self.scheduler.schedule_batch(512, 1024))

    def update_batch(self) -> None:
        self.updates += 1


def test_a_meter_counts_steps_and_leaves_them_as_they_are() -> None:
    processor: Any = FakeProcessor()
    meter = StepMeter()
    meter.attach(SimpleNamespace(batch_processor=processor))
    for _ in range(3):
        assert processor.prepare_next_batch()
        processor.update_batch()
    assert (meter.steps, processor.updates) == (3, 3)
    assert 0.0 < meter.share <= 1.0


def test_a_slow_engine_sleeps_as_long_as_its_step_took(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.1, 0.2, 1.0])
    slept: list[float] = []
    monkeypatch.setattr(
        "benchmarks.gpu.bench.time", SimpleNamespace(perf_counter=lambda: next(times), sleep=slept.append)
    )
    processor: Any = FakeProcessor()
    StepMeter(speed=0.5).attach(SimpleNamespace(batch_processor=processor))
    processor.prepare_next_batch()
    processor.update_batch()
    assert slept == [1.0]


def test_the_same_seed_gives_the_same_arrivals() -> None:
    flows = [make_flow(Bench(TINY, "cpu", 7), "quiet", Tier.STANDARD, 50, 20.0, (8, 24), (2, 4)) for _ in range(2)]
    assert flows[0] == flows[1]
    at_s = [at_s for at_s, _ in flows[0].requests]
    assert at_s == sorted(at_s)
    assert 1.0 < at_s[-1] < 5.0


def test_waits_are_percentiles() -> None:
    waits = waits_of([float(number) for number in range(100, 0, -1)])
    assert (waits.requests, waits.p50_s, waits.p95_s, waits.p99_s) == (100, 50.0, 95.0, 99.0)


def test_the_mean_is_of_each_figure() -> None:
    assert mean_of([Throughput(1, 2, 3, 4), Throughput(3, 4, 5, 6)]) == Throughput(2, 3, 4, 5)


@pytest.mark.parametrize("name", POLICIES)
def test_the_compared_policies_exist(name: str) -> None:
    assert make_policy(name)


async def test_an_error_of_the_librarys_manager_is_raised() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    StockAnswer(answer).take(SimpleNamespace(is_finished=lambda: True, error="out of memory", generated_tokens=[]))
    with pytest.raises(RuntimeError, match="out of memory"):
        await answer


def shape(peak: float) -> LlamaShape:
    return LlamaShape(2, 128, 32, 4, 2, 256, 512, vocabulary=800, dtype=torch.bfloat16, peak=peak)


@pytest.mark.parametrize("peak", [0.0, 4.5])
def test_a_random_model_has_the_wanted_shape_and_prefers_printable_tokens(peak: float) -> None:
    tokenizer = build_tokenizer()
    model = build_llama(tokenizer, shape(peak), 3)
    assert (model.dtype, model.config.vocab_size, model.config.num_key_value_heads) == (torch.bfloat16, 800, 2)
    with torch.inference_mode():
        tokens = model(torch.randint(3, len(tokenizer), (1, 64))).logits[0].argmax(-1).tolist()
    assert not set(tokens) & {*unprintable_tokens(tokenizer), *range(len(tokenizer), 800)}


def test_a_peak_makes_the_first_choice_stand_out() -> None:
    tokenizer = build_tokenizer()
    unprintable = unprintable_tokens(tokenizer)
    prompt = torch.tensor([[token for token in range(len(tokenizer)) if token not in unprintable]])
    gaps = []
    for peak in (0.0, 4.5):
        model = build_llama(tokenizer, LlamaShape(1, 512, 64, 8, 2, 256, 1024, peak=peak), 3)
        with torch.inference_mode():
            best, second = model(prompt).logits[0].topk(2).values.mT
        gaps.append((best - second).mean().item())
    assert gaps[1] > 2 * gaps[0]
