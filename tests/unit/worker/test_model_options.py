"""The worker's command line for several models."""

from __future__ import annotations

import pytest

from gpu_worker.service.options import parse_options


def test_without_a_model_there_is_one_without_a_name() -> None:
    options = parse_options(["--engine", "modelled"])
    assert (options.models, options.load_s) == ([None], [0.0])


def test_each_model_has_its_seconds() -> None:
    options = parse_options(
        ["--engine", "modelled", "--model", "a", "--load-s", "2", "--model", "b", "--load-s", "0.5"]
    )
    assert (options.models, options.load_s) == (["a", "b"], [2.0, 0.5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model a --model a", "names a model twice"),
        ("--engine openai --url http://x/v1 --model a --model b", "serves one model"),
        ("--engine modelled --model a --model b --load-s 1", "1 --load-s for 2 --model"),
        ("--engine modelled --load-s -1", "--load-s"),
        ("--engine modelled --load-s inf", "is not a number of seconds"),
    ],
)
def test_mistakes_are_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
