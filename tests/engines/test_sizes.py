"""What the transformers engine takes of its device, and that copies are timed on the stream that makes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.engines.registry import DTYPES, make_engine
from tests.engines.engine_kinds import events_of, needs_torch, request

pytestmark = needs_torch


def test_what_is_not_named_follows_the_device() -> None:
    from gpu_worker.engines.transformers.manager import TransformersShape

    assert (TransformersShape().fit_to("cpu").kv_tokens, TransformersShape().fit_to("cpu").step_tokens) == (
        8192,
        512,
    )
    on_card = TransformersShape().fit_to("cuda")
    assert (on_card.kv_tokens, on_card.step_tokens) == (0, 2048)  # 0: the library measures what is free
    named = TransformersShape(kv_tokens=100, step_tokens=7)
    assert named.fit_to("cpu") == named.fit_to("cuda") == named


def test_the_default_dtype_follows_device_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from gpu_worker.engines.transformers.manager import choose_dtype

    assert choose_dtype("auto", "cpu", is_built=False) == choose_dtype("auto", "cpu", is_built=True) == torch.float32
    assert choose_dtype("auto", "cuda", is_built=False) == "auto"  # that of the checkpoint
    for is_new, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda is_new=is_new: is_new)
        assert choose_dtype("auto", "cuda", is_built=True) == expected
    for name in DTYPES[1:]:
        assert choose_dtype(name, "cpu", is_built=True) == getattr(torch, name)


@pytest.mark.parametrize(("device", "is_on"), [("cuda", False), ("cpu", True)])
def test_an_engine_on_a_gpu_makes_no_attention_plans(monkeypatch: pytest.MonkeyPatch, device: str, is_on: bool) -> None:
    import torch

    from gpu_worker.engines.transformers.manager import TransformersShape, make_ready

    seen: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", seen.append)
    manager: Any = SimpleNamespace(
        model=SimpleNamespace(device=torch.device(device)), warmup=lambda: seen.append(True), batch_processor=None
    )
    make_ready(manager, TransformersShape(), SimpleNamespace(counts=None))  # type: ignore[arg-type]
    assert seen == ([True] if is_on else [False, True])  # before the warm-up


async def test_named_sizes_reach_the_cache_and_are_described(home: Path) -> None:
    sizes = {"kv_tokens": 1024, "step_tokens": 64, "dtype": "bfloat16"}
    engine = make_engine("transformers", policy="vtc", model=None, batch=2, home=home, transformers=sizes)
    await engine.start()
    try:
        events, facts = await events_of(engine, request("r")), engine.facts
    finally:
        await engine.stop()
    assert len(events) == 10  # started, eight tokens, the end
    assert (facts.context_tokens, cache_tokens(engine)) == (1024, 1024)
    assert facts.description == "CPU, bfloat16: 1,024 tokens of KV (0.0 GB), at most 64 in a step"


async def test_a_measured_cache_is_described_and_bounds_the_context(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library measures free memory, as it does on a GPU; here it may plan with a small part of the machine's."""
    from transformers.generation.continuous_batching import cache as library

    from gpu_worker.engines.transformers import manager

    free = 8 << 20
    monkeypatch.setattr(manager, "CPU_KV_TOKENS", 0)
    monkeypatch.setattr(library.PagedAttentionMemoryHandler, "get_available_memory", lambda _: free)
    engine = make_engine("transformers", policy="vtc", model=None, batch=2, home=home, transformers={"step_tokens": 64})
    assert engine.facts.context_tokens == 2048  # the model's own: the cache is not there yet
    await engine.start()
    try:
        events, facts, tokens = await events_of(engine, request("r")), engine.facts, cache_tokens(engine)
    finally:
        await engine.stop()
    assert len(events) == 10
    assert 64 < tokens < free / 2048  # a token takes 2 KB of KV
    assert facts.context_tokens == min(2048, tokens)
    assert f"{tokens:,} tokens of KV" in facts.description


async def test_sizes_that_do_not_fit_are_one_sentence(home: Path) -> None:
    sizes = {"kv_tokens": 90_000_000}
    engine = make_engine("transformers", policy="vtc", model=None, batch=2, home=home, transformers=sizes)
    with pytest.raises(MemoryError, match=r"90,000,000 tokens of KV .* choose a smaller --kv-tokens or --step-tokens"):
        await engine.start()
    await engine.stop()


def cache_tokens(engine: Any) -> int:
    scheduler = engine._scheduler
    return int(scheduler.blocks_total * scheduler.tokens_per_block)


class Stream:
    """Stands in for a CUDA stream, which no machine of the tests has: what was put on it, in order."""

    def __init__(self, name: str) -> None:
        self.name, self.work = name, list[str]()


class Event:
    """Stands in for a CUDA event. Its time is the number of pieces of work that were on its stream before it."""

    current = Stream("current")

    def record(self, stream: Stream | None = None) -> None:
        self.on = stream or self.current
        self.at = len(self.on.work)

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        assert self.on is later.on, "two streams have no common order"
        return float(later.at - self.at)


async def test_copies_are_timed_on_the_stream_that_makes_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events on the thread's current stream have no copy between them, and every swap would seem free."""
    from gpu_worker.engines.transformers import swap

    monkeypatch.setattr(swap, "_event", Event)
    computing = Stream("compute")
    manager: Any = object.__new__(swap.HostSwap)
    manager._on_cuda, manager._compute_stream = True, computing
    copy = manager._begin_copy("r", share=0.5)
    computing.work += ["gather", "copy"]
    copy.timer.end()
    computing.work.append("the next step")
    assert copy.seconds() == pytest.approx(2 * 1e-3 * 0.5)
