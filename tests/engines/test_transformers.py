"""The transformers engine: the tokens of plain `generate`, seeds, real text, and what it takes of its device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpu_worker.engines.interface import EngineError, Finished, Token
from gpu_worker.engines.registry import DTYPES, make_engine
from gpu_worker.policies.fairness.registry import make_policy
from tests.engines.engine_kinds import engine_of, events_of, gather_text, needs_torch, request, text_of

pytestmark = needs_torch


if TYPE_CHECKING:
    from gpu_worker.engines.transformers.engine import TransformersEngine

PROMPTS = ["What is served next?", "x", "The water of the village " * 12, "é 水 🌊 mixed", "a" * 200]


def load(home: Path, model: str | None = None) -> TransformersEngine:
    from gpu_worker.engines.transformers.engine import TransformersEngine

    return TransformersEngine.load(make_policy("vtc"), model=model, home=home)


def plain_greedy(engine: TransformersEngine, prompt: str, tokens: int) -> str:
    import torch

    model, tokenizer = engine._model, engine._text.tokenizer
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    text: str = tokenizer.decode(out[0][ids.shape[1] :], skip_special_tokens=True)
    return text


async def test_greedy_is_what_plain_generate_gives_in_any_batch(home: Path) -> None:
    """All at once, prefilled in pieces of 64 tokens, in a batch of 2: token for token the same text."""
    expected = [plain_greedy(load(home), prompt, 30) for prompt in PROMPTS]
    async with engine_of("transformers", make_policy("vtc"), home) as engine:
        got = await gather_text(engine, [request(f"r{n}", prompt=p, max_tokens=30) for n, p in enumerate(PROMPTS)])
    assert got == expected


async def test_a_seed_gives_the_same_text_alone_and_in_a_batch(home: Path) -> None:
    async with engine_of("transformers", make_policy("vtc"), home, batch=4) as engine:
        alone = await text_of(engine, request("alone", temperature=1.0, seed=7, max_tokens=20))
        asked = [request(f"r{n}", temperature=1.0, seed=n, max_tokens=20) for n in range(10)]
        batched = await gather_text(engine, asked)
        greedy = await text_of(engine, request("greedy", max_tokens=20))
    assert batched[7] == alone
    assert len({*batched, greedy}) == 11


async def test_without_a_seed_requests_differ(home: Path) -> None:
    async with engine_of("transformers", make_policy("vtc"), home) as engine:
        texts = await gather_text(engine, [request(f"r{n}", temperature=1.0, max_tokens=20) for n in range(5)])
    assert len(set(texts)) == 5


async def test_a_low_temperature_comes_close_to_greedy(home: Path) -> None:
    async with engine_of("transformers", make_policy("vtc"), home) as engine:
        greedy = await text_of(engine, request("greedy", max_tokens=20))
        cold = await text_of(engine, request("cold", temperature=1e-6, seed=1, max_tokens=20))
    assert cold == greedy


async def test_its_text_is_printable_and_rarely_ends_by_itself(home: Path) -> None:
    async with engine_of("transformers", make_policy("vtc"), home, batch=4) as engine:
        for number in range(6):
            events = await events_of(engine, request(f"r{number}", temperature=1.0, seed=number, max_tokens=50))
            assert "".join(event.text for event in events if isinstance(event, Token)).isprintable()
            assert events[-1] == Finished("length", 6, 50)


def test_noise_makes_arg_max_a_fair_sample() -> None:
    import torch

    from gpu_worker.engines.transformers.processors import gumbel_noise

    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01])
    draws = 40_000
    picks = (probabilities.log() + gumbel_noise(torch.arange(1, draws + 1), 5)).argmax(-1)
    frequencies = torch.bincount(picks, minlength=5) / draws
    deviation = (probabilities * (1 - probabilities) / draws).sqrt()
    assert ((frequencies - probabilities).abs() < 4 * deviation).all()
    assert gumbel_noise(torch.tensor([1, 2**31 - 1]), 100_000).isfinite().all()


async def test_a_model_from_a_folder_and_its_weights_from_a_seed(home: Path, tmp_path: Path) -> None:
    from gpu_worker.engines.random_llama import TinySize, build_tiny_model

    build_tiny_model(tmp_path / "mine", TinySize(), weights_seed=5)
    mine, built = load(home, str(tmp_path / "mine")), load(home)
    assert (mine.facts.model, built.facts.model) == ("mine", "headgate-tiny")
    texts = [plain_greedy(engine, "What?", 12) for engine in (mine, built, load(tmp_path))]
    assert texts[0] != texts[1]
    assert texts[1] == texts[2], "the same weights wherever they are built"


@pytest.mark.parametrize("model", ["nowhere", "random:0x128", "random:2x100", "random:2x0", "random:big"])
def test_a_model_that_cannot_be_had(model: str, tmp_path: Path) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match=r"nowhere|random:LAYERSxWIDTH"):
        make_engine("transformers", policy="vtc", model=model, batch=2, home=tmp_path)


def test_a_template_that_refuses_is_the_tenants_error(home: Path) -> None:
    engine: Any = load(home)
    engine._text.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(EngineError, match="roles must alternate"):
        engine._text.render_chat([{"role": "user", "content": "What?"}])


def test_what_is_not_named_follows_the_device() -> None:
    from gpu_worker.engines.transformers.manager import TransformersShape

    assert (TransformersShape().fit_to("cpu").kv_tokens, TransformersShape().fit_to("cpu").step_tokens) == (8192, 512)
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
    manager = {"kv_tokens": 1024, "step_tokens": 64, "dtype": "bfloat16"}
    engine = make_engine("transformers", policy="vtc", model=None, batch=2, home=home, transformers=manager)
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
    manager = {"kv_tokens": 90_000_000}
    engine = make_engine("transformers", policy="vtc", model=None, batch=2, home=home, transformers=manager)
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
