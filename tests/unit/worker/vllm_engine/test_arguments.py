"""The arguments of vLLM's server: added, replaced, refused; and what they make the server support."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gpu_worker.engines.vllm.arguments import REFUSED, Arguments, capabilities, checked, served_name, server_words
from gpu_worker.service.options import parse_options


def server(words: Sequence[str], *, swap_bytes: int = 0) -> Arguments:
    given = checked(words)
    headgate = {"policy": "tiered:vtc", "tiers": {}}
    return Arguments(
        server_words(given, model="/m/tiny", name="tiny", batch=4, swap_bytes=swap_bytes, headgate=headgate)
    )


def test_the_workers_defaults_reach_the_server() -> None:
    found = server([])
    assert (found.get("--model"), found.get("--served-model-name"), found.get("--max-num-seqs")) == (
        "/m/tiny",
        "tiny",
        "4",
    )
    assert json.loads(found.get("--additional-config") or "") == {"headgate": {"policy": "tiered:vtc", "tiers": {}}}
    assert "--kv-transfer-config" not in found
    assert "--tool-strict-level" not in found


def test_the_operators_arguments_replace_defaults() -> None:
    words = ["--model", "/m/large", "--served_model_name=large", "--max-num-seqs", "256", "--quantization", "fp8"]
    found = server(words)
    assert found.words[: len(words)] == tuple(words)
    assert found.words.count("--max-num-seqs") == 1
    assert "--served-model-name" not in found.words


def test_a_leading_word_is_the_model() -> None:
    given = checked(["/m/large", "--tensor-parallel-size", "4"])
    assert given.get("--model") == "/m/large"
    assert served_name(given, "/m/large") == "large"
    assert served_name(checked(["/m/large", "--served-model-name", "chat"]), "/m/large") == "chat"


def test_swapping_sets_the_connector() -> None:
    transfer = json.loads(server([], swap_bytes=3 << 30).get("--kv-transfer-config") or "")
    assert transfer["kv_connector"] == "SwapConnector"
    assert transfer["kv_connector_extra_config"] == {"swap_gib": 3.0}


def test_a_tool_parser_makes_arguments_follow_their_schemas() -> None:
    found = server(["--tool-call-parser", "hermes"])
    assert found.get("--tool-strict-level") == "parameter"
    assert "--enable-auto-tool-choice" in found
    assert server(["--tool-call-parser", "hermes", "--tool-strict-level", "auto"]).words.count("parameter") == 0


def test_settings_of_the_operator_stay_beside_ours() -> None:
    found = server(["--additional-config", '{"theirs": 1}'])
    last = found.words[len(found.words) - 1 - found.words[::-1].index("--additional-config") + 1]
    assert json.loads(last) == {"theirs": 1, "headgate": {"policy": "tiered:vtc", "tiers": {}}}
    for wrong in ("[]", "{", "1"):
        with pytest.raises(ValueError, match="not a JSON object"):
            server(["--additional-config", wrong])


def test_a_server_that_sleeps_logs_no_stacks() -> None:
    """vLLM's developer mode logs them by default."""
    arguments = checked(["--model", "/m"])
    asleep = {
        sleeps: server_words(arguments, model="/m", name="m", batch=1, swap_bytes=0, headgate={}, sleeps=sleeps)
        for sleeps in (True, False)
    }
    assert set(asleep[True]) - set(asleep[False]) == {"--enable-sleep-mode", "--no-log-error-stack"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_break_the_worker_is_refused_by_name(name: str) -> None:
    for words in ([name, "1"], [f"{name}=1"], [name[:2] + name[2:].replace("-", "_"), "1"]):
        with pytest.raises(ValueError, match=f"^{name} cannot be set after --: "):
            checked(words)


def test_a_part_of_a_refused_value_is_refused() -> None:
    with pytest.raises(ValueError, match="--swap-gib"):
        checked(["--kv-transfer-config.kv_role", "kv_both"])


def test_capabilities_follow_the_arguments() -> None:
    plain = capabilities(checked([]), reads_images=False)
    assert {"chat", "completion", "sampling", "n", "logprobs", "structured", "vllm"} == plain
    assert capabilities(checked(["--tool-call-parser", "hermes"]), reads_images=False) - plain == {"tools"}
    assert capabilities(checked(["--reasoning-parser", "qwen3"]), reads_images=False) - plain == {"reasoning"}
    assert capabilities(checked([]), reads_images=True) - plain == {"images"}
    assert capabilities(checked(["--language-model-only"]), reads_images=True) == plain
    assert capabilities(checked(["--runner", "pooling"]), reads_images=False) == {"embeddings", "vllm"}


def test_the_workers_command_line_splits_at_the_separator(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse_options(["--engine", "vllm", "--slots", "9", "--", "--model", "/m", "--port", "1"])
    assert (options.slots, options.port) == (9, 0)
    assert options.arguments == ["--model", "/m", "--port", "1"]
    assert parse_options(["--engine", "vllm"]).arguments == []
    with pytest.raises(SystemExit):
        parse_options(["--engine", "modelled", "--", "--model", "/m"])
    assert "--engine modelled takes none" in capsys.readouterr().err
