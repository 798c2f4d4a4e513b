"""The worker's command line for several models."""

from __future__ import annotations

import pytest

from gpu_worker.service.options import modelled_options, parse_options, transformers_options


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
    ],
)
def test_mistakes_are_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
