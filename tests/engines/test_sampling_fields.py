"""Sampling fields on the transformers engine: the processors on small scores, and the fields through the engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineError, Finished
from gpu_worker.policies.fairness.registry import make_policy
from tests.engines.engine_kinds import end_of, engine_of, events_of, gather_text, needs_torch, request, text_of
from tests.engines.test_engine_features import tokens_of

pytestmark = needs_torch


def processed(
    processor: Any, scores: list[float], *, prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **fields: Any
) -> list[float]:
    """The scores of a row with `fields` after the processor. A row without fields stands before it, unchanged."""
    import torch

    from gpu_worker.engines.transformers.sampling_fields import Sampling

    kwargs = {"sampling": Sampling(**{"seed": 1, **fields})}
    states = [
        SimpleNamespace(
            logit_processor_kwargs=each,
            initial_tokens=list(prompt),
            generated_tokens=list(output),
            _true_initial_tokens=0,
            request_id="r",
        )
        for each in ({}, kwargs)
    ]
    argument = processor.prepare_tensor_args([SimpleNamespace(state=state) for state in states])
    before = torch.tensor([scores, scores])
    after = processor(before, argument)
    assert after[0].tolist() == before[0].tolist() == before[1].tolist()
    row: list[float] = after[1].tolist()
    return row


def kept(scores: list[float]) -> list[int]:
    return [token for token, score in enumerate(scores) if score != float("-inf")]


SCORES = [0.0, 3.0, 1.0, 2.0, -1.0]
FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({"top_k": 2}, [1, 3]),
    ({"top_k": 99}, [0, 1, 2, 3, 4]),
    ({"top_p": 0.6}, [1]),
    ({"top_p": 0.8}, [1, 3]),
    ({"top_p": 0.0}, [1]),
    ({"min_p": 0.3}, [1, 3]),
    ({"min_p": 1.0}, [1]),
    ({"top_k": 3, "top_p": 0.99}, [1, 2, 3]),
]


@pytest.mark.parametrize(("fields", "tokens"), FILTERS)
def test_filters_keep_the_likely_tokens(fields: dict[str, Any], tokens: list[int]) -> None:
    from gpu_worker.engines.transformers.processors import Filters

    assert kept(processed(Filters(), SCORES, **fields)) == tokens


def test_a_greedy_row_is_not_filtered() -> None:
    from gpu_worker.engines.transformers.processors import Filters

    assert processed(Filters(), SCORES, seed=None, top_k=1) == SCORES


def test_penalties_count_the_output_and_repetition_the_prompt_too() -> None:
    from gpu_worker.engines.transformers.processors import Penalties

    found = processed(Penalties(), SCORES, prompt=(4,), output=(1, 1, 3), presence_penalty=0.5, frequency_penalty=0.25)
    assert found == pytest.approx([0.0, 3.0 - 0.5 - 0.5, 1.0, 2.0 - 0.5 - 0.25, -1.0])
    found = processed(Penalties(), SCORES, prompt=(4,), output=(1,), repetition_penalty=2.0)
    assert found == pytest.approx([0.0, 1.5, 1.0, 2.0, -2.0])


def test_output_that_became_prompt_after_an_eviction_is_still_output() -> None:
    from gpu_worker.engines.transformers.processors import generated_tokens

    state = SimpleNamespace(initial_tokens=[7, 8, 9], generated_tokens=[5], _true_initial_tokens=1)
    assert generated_tokens(state) == [8, 9, 5]


def test_a_bias_is_added() -> None:
    from gpu_worker.engines.transformers.processors import LogitBias

    found = processed(LogitBias(), SCORES, logit_bias=((0, 10.0), (4, -1.0)))
    assert found == pytest.approx([10.0, 3.0, 1.0, 2.0, -2.0])


BAD: list[dict[str, Any]] = [
    {"top_p": 1.5},
    {"top_p": "all"},
    {"min_p": -0.1},
    {"top_k": -2},
    {"presence_penalty": 3},
    {"repetition_penalty": 0},
    {"logit_bias": {"10000000": 1}},
    {"logit_bias": {"0": 101}},
    {"logit_bias": {"word": 1}},
    {"logit_bias": [1]},
    {"logprobs": 21},
    {"prompt": [10_000_000]},
    {"prompt": [-1]},
    {"choices": 1, "tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "required"},
]


async def test_a_value_that_cannot_be_is_the_tenants_error(home: Path) -> None:
    async with engine_of("transformers", make_policy("vtc"), home) as engine:
        for number, fields in enumerate(BAD):
            with pytest.raises(EngineError) as caught:
                await events_of(engine, request(f"r{number}", **fields))
            assert caught.value.code == "invalid_request", fields
        assert (engine.stats().waiting, engine.stats().running) == (0, 0)


async def test_fields_change_the_text_and_only_that_of_their_own_request(home: Path) -> None:
    """All in one batch: greedy text beside rows with fields is what it is alone."""
    async with engine_of("transformers", make_policy("vtc"), home, batch=8) as engine:
        greedy = await text_of(engine, request("greedy", max_tokens=30))
        hot: dict[str, Any] = {"temperature": 2.0, "seed": 4, "max_tokens": 30}
        free = await text_of(engine, request("free", **hot))
        found = await gather_text(
            engine,
            [
                request("k", **hot, top_k=1),
                request("p", **hot, top_p=1e-9),
                request("m", **hot, min_p=1.0),
                request("g", max_tokens=30),
                request("f", **hot),
                request("penalty", max_tokens=30, frequency_penalty=2.0, presence_penalty=2.0),
            ],
        )
    assert found[:4] == [greedy] * 4, "one token is left to draw: the text is greedy"
    assert found[4] == free != greedy
    assert found[5] != greedy
    assert len(Counter(found[5].split())) >= len(Counter(greedy.split()))


async def test_a_bias_forces_a_token_and_the_end(home: Path) -> None:
    async with engine_of("transformers", make_policy("vtc"), home) as engine:
        tokenizer: Any = engine._text.tokenizer  # type: ignore[attr-defined]
        letter = tokenizer("x", add_special_tokens=False)["input_ids"][0]
        assert await text_of(engine, request("x", max_tokens=5, logit_bias={str(letter): 100})) == "xxxxx"
        ended = await events_of(engine, request("end", max_tokens=5, logit_bias={str(tokenizer.eos_token_id): 100}))
    end = end_of(ended)
    assert (end.reason, end.output_tokens) == ("stop", 1)


async def test_an_end_token_is_not_drawn_before_min_tokens(home: Path) -> None:
    async with engine_of("transformers", make_policy("vtc"), home) as engine:
        end = engine._text.tokenizer.eos_token_id  # type: ignore[attr-defined]
        likely: dict[str, Any] = {"logit_bias": {str(end): 100}, "max_tokens": 9}
        ended = await events_of(engine, request("min", **likely, min_tokens=4))
        ignored = await events_of(engine, request("ignored", **likely, ignore_eos=True))
    assert isinstance(ended[-1], Finished)
    assert isinstance(ignored[-1], Finished)
    assert (ended[-1].reason, ended[-1].output_tokens) == ("stop", 5)
    assert (ignored[-1].reason, ignored[-1].output_tokens) == ("length", 9)


async def test_log_probabilities_are_the_models_own(home: Path) -> None:
    """Also with fields that change what is drawn, and for every choice of a request."""
    import torch

    fields: dict[str, Any] = {"temperature": 1.5, "seed": 3, "top_k": 20, "presence_penalty": 1.0}
    async with engine_of("transformers", make_policy("vtc"), home) as engine:
        asked = request("r", choices=2, max_tokens=6, logprobs=2, **fields)
        events = await events_of(engine, asked)
        plain = await events_of(engine, request("plain", choices=2, max_tokens=6, **fields))
        inner: Any = engine
        model, tokenizer = inner._model, inner._text.tokenizer
        prompt = tokenizer(asked.body["prompt"])["input_ids"]
        for choice in range(2):
            pieces: list[Any] = [token.logprobs for token in tokens_of(events) if token.choice == choice]
            texts = [piece["tokens"][0] for piece in pieces]
            assert "".join(texts) == "".join(token.text for token in tokens_of(plain) if token.choice == choice)
            ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
            if any(len(each) != 1 for each in ids):
                continue  # a token whose text is tokenized in another way
            tokens = [each[0] for each in ids]
            with torch.no_grad():
                logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).tolist()
            assert [piece["token_logprobs"][0] for piece in pieces] == pytest.approx(expected, abs=1e-3)


async def test_the_tiny_models_template_shows_tools_calls_and_results(home: Path) -> None:
    from gpu_worker.engines.generation import generation_of

    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Delft"}'}}
    messages = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "no rain"},
    ]
    async with engine_of("transformers", make_policy("vtc"), home) as engine:
        text: Any = engine._text  # type: ignore[attr-defined]
        generation = generation_of(request("r", endpoint=Endpoint.CHAT, messages=messages))
        rendered = text.prompt(generation, [tool])
        text.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
        assert not text.has_tools
        with pytest.raises(EngineError, match="knows no tools"):
            await events_of(engine, request("r", endpoint=Endpoint.CHAT, messages=messages, tools=[tool]))
    assert '"city": "Delft"' in rendered, "the arguments are an object, not a text in quotes"
    for part in ('"name": "weather"', "Rain?", "tool: no rain"):
        assert part in rendered


def delivered(sequence: Any, tokens: list[int], *, end: int) -> list[Any]:
    """The events of a sequence whose model writes these tokens."""
    return [
        sequence.take(token, last=at == len(tokens) - 1, ends_text=token == end, logprobs=None)
        for at, token in enumerate(tokens)
    ]


def test_a_call_in_the_models_text_becomes_a_delta() -> None:
    from gpu_worker.engines.generation import Detokenizer, StopMatcher, ToolCallParser
    from gpu_worker.engines.transformers.batch import GeneratedAnswer, Sequence

    written = 'Let me see. <tool_call>{"name": "weather", "arguments": {"city": "Delft"}}</tool_call>'
    answer = GeneratedAnswer(request("r"), 5)
    text = Detokenizer(lambda tokens: "".join(written[at] for at in tokens))
    sequence = Sequence(answer, "r", 0, text, StopMatcher(()), ToolCallParser("id"))
    answer.sequences = [sequence]
    events = delivered(sequence, [*range(len(written)), -1], end=-1)
    assert "".join(event.text for event in events) == "Let me see. "
    (delta,) = [event.delta for event in events if event.delta]
    assert delta["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Delft"}'}
    sequence.reason = sequence.stopped()
    assert answer.finished() == Finished("tool_calls", 5, len(written) + 1)
