"""The options of the openai engine's server on the worker's command line."""

from __future__ import annotations

import pytest

from gpu_worker.service.options import parse_options, server_options

URL = ["--engine", "openai", "--url", "http://127.0.0.1:8000/v1"]


def test_the_key_is_read_from_the_environment() -> None:
    found = server_options(parse_options(URL), {"ENGINE_API_KEY": "secret"})
    assert found == {"url": URL[-1], "key": "secret", "context_tokens": None, "capabilities": None}
    assert server_options(parse_options(URL), {"ENGINE_API_KEY": ""})["key"] is None


def test_context_and_capabilities_can_be_set() -> None:
    found = server_options(parse_options([*URL, "--context-tokens", "4096", "--capabilities", "chat,tools,n"]), {})
    assert (found["context_tokens"], found["capabilities"]) == (4096, {"chat", "tools", "n"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capabilities", "chat,magic"], "'magic' is none of chat, completion"),
        (["--capabilities", ""], "'' is none of"),
        (["--context-tokens", "0"], "'0' is not a whole number from 1"),
    ],
)
def test_a_wrong_value_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options([*URL, *arguments])
    assert message in capsys.readouterr().err
