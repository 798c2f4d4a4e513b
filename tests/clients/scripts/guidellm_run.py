"""GuideLLM: short runs with synthetic prompts, streamed, over each of its request formats; two turns and a tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from steps import API_KEY, BASE_URL, run

REQUESTS = 4
SERVER = BASE_URL.removesuffix("/v1")


def _bench(name: str, request_format: str, data: str = "") -> None:
    """Run GuideLLM. Raises RuntimeError with the error of its first failed request, or with its own error."""
    report = Path(f"{name}.json")
    synthetic = f"kind=synthetic_text,prompt_tokens=32,output_tokens=16{data}"
    command = [
        str(Path(sys.executable).with_name("guidellm")), "run", "--disable-progress",
        "--backend", f"kind=openai_http,target={SERVER},api_key={API_KEY},request_format={request_format}",
        "--tokenizer", f"kind=hf_auto,model={os.environ['CLIENT_TOKENIZER']}",
        "--profile", "kind=synchronous",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", synthetic,
        "--output", f"kind=json,path={report}",
    ]  # fmt: skip
    ran = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(ran.stderr)
    if not report.exists():
        raise RuntimeError(f"no report; guidellm ended with {ran.returncode}: {ran.stderr.strip()[-200:]}")
    benchmark = json.loads(report.read_text())["benchmarks"][0]
    for failed in benchmark["requests"]["errored"]:
        raise RuntimeError(failed["info"]["error"])
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] >= REQUESTS, totals


def chat() -> None:
    _bench("chat", "/v1/chat/completions")


def completions() -> None:
    _bench("completions", "/v1/completions")


def responses() -> None:
    _bench("responses", "/v1/responses")


def embeddings() -> None:
    _bench("embeddings", "/v1/embeddings")


def two_turns_and_a_tool() -> None:
    _bench("tool", "/v1/chat/completions", ",turns=2,tool_call_turns=1")


run(chat, completions, responses, embeddings, two_turns_and_a_tool)
