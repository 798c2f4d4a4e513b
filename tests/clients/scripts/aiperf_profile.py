"""AIPerf: short profiles with synthetic prompts over each kind of endpoint, streamed where the endpoint streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from steps import API_KEY, BASE_URL, MODEL, run

REQUESTS = 4
SERVER = BASE_URL.removesuffix("/v1")


def _profile(name: str, *arguments: str) -> None:
    """Run AIPerf. Raises RuntimeError with its first error."""
    command = [
        str(Path(sys.executable).with_name("aiperf")), "profile", "--model", MODEL, "--url", SERVER,
        "--api-key", API_KEY, "--tokenizer", os.environ["CLIENT_TOKENIZER"], "--concurrency", "2",
        "--request-count", str(REQUESTS), "--isl", "32", "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics",
        "--artifact-dir", name, *arguments,
    ]  # fmt: skip
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sys.stderr.write(ran.stdout)
    reports = list(Path(name).rglob("profile_export_aiperf.json"))
    if not reports:
        errors = [line for line in ran.stdout.splitlines() if "ERROR" in line] or ran.stdout.splitlines()[-1:]
        raise RuntimeError(f"no report; aiperf ended with {ran.returncode}: {errors[0][-250:] if errors else ''}")
    report = json.loads(reports[0].read_text())
    for failed in report.get("error_summary") or ():
        raise RuntimeError(json.dumps(failed["error_details"]))
    assert report["request_count"]["avg"] == REQUESTS, report["request_count"]


def chat() -> None:
    _profile("chat", "--endpoint-type", "chat", "--streaming", "--osl", "16")


def two_turns_of_chat() -> None:
    _profile(
        "turns", "--endpoint-type", "chat", "--streaming", "--osl", "16", "--conversation-num", "2",
        "--conversation-turn-mean", "2", "--conversation-turn-stddev", "0",
    )  # fmt: skip


def completions() -> None:
    _profile("completions", "--endpoint-type", "completions", "--streaming", "--osl", "16")


def responses() -> None:
    _profile("responses", "--endpoint-type", "responses", "--streaming", "--osl", "16")


def embeddings() -> None:
    _profile("embeddings", "--endpoint-type", "embeddings")


run(chat, two_turns_of_chat, completions, responses, embeddings)
