"""vLLM's `bench serve` with each backend of OpenAI's kind.

vLLM's CPU build has another package name, and its command line looks for the metadata of `vllm`. So this calls the
function behind `vllm bench serve`, with the command's own arguments.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from steps import BASE_URL, MODEL, run
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

REQUESTS = 4


def _bench(backend: str, endpoint: str) -> None:
    """Run the benchmark. Raises RuntimeError if not all requests succeed."""
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    report = Path(f"{backend}.json")
    arguments = [
        "--backend", backend, "--base-url", BASE_URL.removesuffix("/v1"), "--endpoint", endpoint,
        "--model", MODEL, "--tokenizer", os.environ["CLIENT_TOKENIZER"], "--dataset-name", "random",
        "--random-input-len", "32", "--random-output-len", "16", "--num-prompts", str(REQUESTS), "--disable-tqdm",
        "--save-result", "--save-detailed", "--result-filename", str(report),
    ]  # fmt: skip
    main(parser.parse_args(arguments))
    found = json.loads(report.read_text())
    errors = [error for error in found.get("errors", ()) if error]
    if found["completed"] != REQUESTS or errors:
        raise RuntimeError(errors[0].strip().splitlines()[-1] if errors else f"completed: {found['completed']}")


def openai() -> None:
    _bench("openai", "/v1/completions")


def openai_chat() -> None:
    _bench("openai-chat", "/v1/chat/completions")


def openai_responses() -> None:
    _bench("openai-responses", "/v1/responses")


def openai_embeddings() -> None:
    _bench("openai-embeddings", "/v1/embeddings")


run(openai, openai_chat, openai_responses, openai_embeddings)
