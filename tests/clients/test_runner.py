"""The runner of the clients: what it reads from a script, and that a failure always shows."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.clients.catalogue import FOLDER, Client, chosen, read_clients
from tests.clients.results import ClientResult, mended, page, read_results, unexpected, write_results
from tests.clients.runs import STARTING, StepResult, read_steps, run_script, steady
from tests.clients.tokenizer import byte_characters, write_tokenizer

CLIENTS = read_clients((FOLDER / "clients.toml").read_text())
ENVIRONMENT = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "key", "CLIENT_MODEL": "model"}
SCRIPT = """
import asyncio
from steps import run

def first_step():
    pass

async def second_step():
    raise ValueError("first line\\nlast line")

def last_step():
    {last}

run(first_step, second_step, last_step)
"""


def client(name: str = "one", **fields: object) -> Client:
    known = {"title": "One", "script": "one.py", "requirements": ("one==1.0", "@two/three@4.5"), "limit_s": 10}
    return Client(name=name, **(known | fields))  # type: ignore[arg-type]


def run_steps(folder: Path, last: str, limit_s: float = 60.0) -> dict[str, str]:
    (folder / "script.py").write_text(SCRIPT.format(last=last))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(FOLDER / "scripts")}
    found = run_script([sys.executable, str(folder / "script.py")], environment, folder, limit_s)
    return {each.step: each.error for each in found}


def test_a_failed_step_does_not_stop_the_others(tmp_path: Path) -> None:
    found = run_steps(tmp_path, "pass")
    assert found == {"first step": "", "second step": "ValueError: first line … last line", "last step": ""}


def test_a_script_that_takes_too_long_is_killed_and_its_steps_fail(tmp_path: Path) -> None:
    found = run_steps(tmp_path, "__import__('signal').pause()", limit_s=0.0)
    assert found
    assert all("its time limit of 0 s" in error for error in found.values())


def test_a_script_that_ends_early_fails_its_remaining_steps(tmp_path: Path) -> None:
    assert "ended with status 7" in run_steps(tmp_path, "__import__('os')._exit(7)")["last step"]


def test_a_script_that_names_no_step_has_failed() -> None:
    assert read_steps("", "ModuleNotFoundError: one") == [StepResult(STARTING, "ModuleNotFoundError: one")]


def test_errors_have_no_ports_and_identifiers() -> None:
    error = "POST http://127.0.0.1:40123/v1\n  id 123e4567-e89b-12d3-a456-426614174000 at 0x7f00deadbeef"
    assert steady(error) == "POST http://127.0.0.1:PORT/v1 id … at …"


def test_only_a_failure_without_a_reason_is_unexpected() -> None:
    result = ClientResult((), (StepResult("a", "wrong"), StepResult("b", "wrong"), StepResult("c", "")))
    known = client(failing={"a": "not built yet", "c": "not built yet"})
    assert [step.step for step in unexpected(known, result)] == ["b"]
    assert mended(known, result) == ["c"]


def test_the_page_shows_every_failure_and_every_client() -> None:
    result = ClientResult(("one==1.0",), (StepResult("a", "not <found> | gone"), StepResult("b", "")))
    text = page([client(failing={"a": "no route"}), client("two", title="Two", ci=False)], {"one": result})
    assert "| One | one 1.0 | **a**, b | 1 of 2 | in CI | – |" in text
    assert "| One | a | not &lt;found> \\| gone | no route |" in text
    assert "| Two | one 1.0, @two/three 4.5 | – | not run yet | on request | – |" in text


def test_results_are_kept(tmp_path: Path) -> None:
    assert read_results(tmp_path / "results.json") == {}
    results = {"one": ClientResult(("one==1.0",), (StepResult("a", "wrong"),))}
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results


def test_choice_of_clients() -> None:
    clients = [client("one"), client("two", ci=False)]
    assert [each.name for each in chosen(clients, [])] == ["one"]
    assert chosen(clients, ["all"]) == clients
    assert [each.name for each in chosen(clients, ["two"])] == ["two"]
    with pytest.raises(ValueError, match="no client called three; there are one, two, and all"):
        chosen(clients, ["three"])


@pytest.mark.parametrize("each", CLIENTS, ids=lambda each: each.name)
def test_every_client_has_its_script_and_exact_versions(each: Client) -> None:
    assert each.script_path.exists()
    assert all("==" in text or "@" in text[1:] for text in each.requirements)
    assert each.limit_s > 0


def test_every_script_belongs_to_a_client() -> None:
    scripts = {path.name for path in (FOLDER / "scripts").iterdir() if path.is_file()} - {"steps.py"}
    assert scripts == {each.script for each in CLIENTS}


def test_the_page_is_that_of_the_results() -> None:
    results = read_results(FOLDER / "results.json")
    assert set(results) <= {each.name for each in CLIENTS}
    assert (FOLDER.parents[1] / "docs" / "clients.md").read_text() == page(CLIENTS, results)


def test_the_tokenizer_has_a_token_for_each_byte(tmp_path: Path) -> None:
    assert len(set(byte_characters())) == 256
    write_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert sorted(content["model"]["vocab"].values()) == list(range(256))
