"""The transformers engine against transformers itself: the same tokens as plain `generate`, seeds, real text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpu_worker.engines.interface import EngineError, Finished, Token
from gpu_worker.engines.registry import make_engine
from gpu_worker.policies.fairness.registry import make_policy
from tests.engines.engine_kinds import engine_of, events_of, gather_text, needs_torch, request, text_of

if TYPE_CHECKING:
    from gpu_worker.engines.transformers.engine import TransformersEngine

pytestmark = needs_torch

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
