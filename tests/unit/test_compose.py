"""examples/compose/compose.yaml: valid by the Compose specification, and closed to all but this host."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from compose_spec import PyCompose

from gpu_worker.service.options import parse_options
from tests.support.compose import MissingVariable, read_compose

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "compose"
FILE = FOLDER / "compose.yaml"
IMAGE = ROOT / "gpu_worker" / "proxy.Dockerfile"
GIVEN = {"HEADGATE_WORKER_SECRET": "s" * 48, "ENGINE_URL": "http://host.docker.internal:8000/v1"}
OWN = {"table", "gate", "executor", "front", "worker", "headgate"}


def compose() -> dict[str, Any]:
    """The file without `host-gateway`: Docker knows this name for its host, and the specification does not."""
    found = read_compose(FILE, GIVEN)
    assert found["services"]["worker"].pop("extra_hosts") == ["host.docker.internal:host-gateway"]
    return found


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read_compose(FILE, GIVEN)["services"]
    return found


def test_the_file_is_valid() -> None:
    parsed = PyCompose.from_json(json.dumps(compose())).to_spec()
    assert set(parsed.services or {}) == {*OWN, "dynamodb"}


@pytest.mark.parametrize(
    "wrong",
    [{"portz": []}, {"ports": ["a:b:c:d"]}, {"depends_on": {"gate": {"condition": "maybe"}}}, {"restart": "sometimes"}],
)
def test_what_the_specification_does_not_have_is_found(wrong: dict[str, Any]) -> None:
    broken = compose()
    broken["services"]["front"].update(wrong)
    with pytest.raises(ValueError, match=r" at line 1 column "):
        PyCompose.from_json(json.dumps(broken)).to_spec()


@pytest.mark.parametrize("name", sorted(GIVEN))
def test_a_missing_value_is_named(name: str) -> None:
    with pytest.raises(MissingVariable, match=f"{name}: write .* into .env"):
        read_compose(FILE, {other: value for other, value in GIVEN.items() if other != name})


def test_the_example_of_values_has_each_variable() -> None:
    wanted = set(re.findall(r"\$\{([A-Z_]+)", FILE.read_text())) - {"HEADGATE_PORT"}
    assert set(re.findall(r"^([A-Z_]+)=", (FOLDER / "env.example").read_text(), re.MULTILINE)) == wanted


def test_only_this_host_reaches_the_front(services: dict[str, dict[str, Any]]) -> None:
    ports = {name: each["ports"] for name, each in services.items() if "ports" in each}
    assert ports == {"front": ["127.0.0.1:8080:8080"]}


def test_own_processes_may_do_little(services: dict[str, dict[str, Any]]) -> None:
    for name in OWN:
        own = services[name]
        assert own["read_only"] is True
        assert own["cap_drop"] == ["ALL"]
        assert own["security_opt"] == ["no-new-privileges:true"]
    assert "USER headgate" in IMAGE.read_text()


def test_every_command_exists(services: dict[str, dict[str, Any]]) -> None:
    modules = {each["command"][2] for each in services.values() if each.get("command", [""])[0] == "python"}
    assert modules == {"dispatcher", "dispatcher.executor", "functions.http_api.server", "gpu_worker"}
    assert all(importlib.util.find_spec(module) for module in modules)
    options = parse_options(services["worker"]["command"][3:])
    assert (options.engine, options.batch, options.slots) == ("openai", 16, 64)


def test_the_image_has_what_its_build_copies() -> None:
    """.dockerignore shuts out all but what it names."""
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = re.findall(r"^COPY (.+) \S+$", IMAGE.read_text(), re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists()
        assert any(source == each or source.startswith(f"{each}/") for each in allowed), source
