"""The adapters of vLLM's server: how an operator names them, and what follows for the server and the gate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dispatcher.model.call import CallTerms
from dispatcher.model.fleet import ADAPTERS_MAX, TEXT, adapters_of
from dispatcher.model.worker_protocol import WorkOrder
from gpu_worker.engines.interface import EngineFacts
from gpu_worker.engines.openai.server_api import server_body
from gpu_worker.engines.vllm.arguments import Arguments, capabilities, checked, server_words


def server(*words: str) -> Arguments:
    given = checked(words)
    return Arguments(server_words(given, model="/m/tiny", name="tiny", batch=4, swap_bytes=0, headgate={}))


def test_named_adapters_switch_lora_on_and_are_registered() -> None:
    given = ["--lora-modules", "sql=/a/sql", '{"name": "law", "path": "/a/law"}', "--quantization", "fp8"]
    found = server(*given)
    assert found.words[: len(given)] == tuple(given)
    assert "--enable-lora" in found
    assert (found.get("--max-loras"), found.get("--max-cpu-loras"), found.get("--max-lora-rank")) == ("2", "2", "16")
    assert adapters_of(capabilities(checked(given), reads_images=False)) == {"sql", "law"}


def test_a_server_without_adapters_is_as_before() -> None:
    found = server("--quantization", "fp8")
    assert not [word for word in found.words if "lora" in word]
    assert not adapters_of(capabilities(checked([]), reads_images=False))


def test_the_operators_own_arguments_of_lora_stay() -> None:
    found = server("--max-loras=1", "--max_lora_rank", "64", "--lora_modules", "sql=/a/sql")
    assert (found.words.count("--max-loras"), found.get("--max-loras"), found.get("--max-lora-rank")) == (0, "1", "64")


def test_the_rank_is_that_of_the_largest_adapter(tmp_path: Path) -> None:
    for name, text in (("small", '{"r": 8}'), ("large", '{"r": 40}'), ("odd", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(text)
    words = [f"{name}={tmp_path / name}" for name in ("small", "large", "odd", "absent")]
    assert server("--lora-modules", *words).get("--max-lora-rank") == "64"
    assert server("--lora-modules", *words[:1]).get("--max-lora-rank") == "16"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sql"], "takes NAME=PATH, not 'sql'"),
        (["sql="], "and a path"),
        (["a b=/a"], "letters, digits"),
        (["{}"], "takes NAME=PATH"),
        (["[1, 2]"], "takes NAME=PATH"),
        (['{"name": 1, "path": "/a"}'], "letters, digits"),
        (["sql=/a", "sql=/b"], "names the adapter 'sql' twice"),
        ([f"a{number}=/a" for number in range(ADAPTERS_MAX + 1)], "at most 64"),
        (["tiny=/a"], "has the name of the model"),
    ],
)
def test_what_is_no_adapter_ends_the_start_with_a_sentence(words: Sequence[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        server("--lora-modules", *words)


def test_lora_without_adapters_is_refused() -> None:
    with pytest.raises(ValueError, match="--enable-lora needs the adapters"):
        checked(["--enable-lora"])


@pytest.mark.parametrize(("named", "sent"), [("sql", "sql"), ("tiny", "tiny"), ("", "tiny"), ("law", "tiny")])
def test_the_server_gets_the_name_of_an_adapter_that_it_has(named: str, sent: str) -> None:
    facts = EngineFacts("tiny", 4096, 4.0, TEXT | {"adapter:sql"})
    order = WorkOrder(CallTerms("a", named, 0.0, 1e12, False, "", ""), "c-1", 1, {"prompt": "x"}, 4)
    body = server_body(order, facts, {}, continuous_usage=False)
    assert json.loads(json.dumps(body))["model"] == sent
