"""`headgate serve` as processes: no AWS, and everything that was promised survives kills and restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.support.hang_guard import HANG_S
from tests.support.html import Page
from tests.support.local.stack import ROOT, Served, Usage, charges, eventually, run_json, serve, total

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]


def usage(served: Served) -> Usage:
    return total(run_json("usage", "--data", served.data)["usage"])


def complete(served: Served, key: str, max_tokens: int, idempotency_key: str | None = None) -> str:
    """Return the answer's id and text."""
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    answer = served.openai(key).completions.create(
        model=served.model, prompt="once upon", max_tokens=max_tokens, extra_headers=headers
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == max_tokens
    return f"{answer.id} {answer.choices[0].text}"


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    left = [process for process in psutil.process_iter() if str(tmp_path) in " ".join(_command(process))]
    assert not left, "a process outlived its server"


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_restart_keeps_tenants_usage_and_answers(data: Path) -> None:
    first = serve(data)
    key = first.api_keys["default"]
    other = run_json("tenants", "create", "acme", "--weight", "3", "--data", first.data)["api_key"]
    answer = complete(first, key, 6, "once")
    complete(first, other, 4)
    used = charges(lambda: usage(first), 2)
    assert (used.requests, used.output_tokens) == (2, 10)
    assert first.stop() == 0

    again = serve(data)
    assert again.api_keys == {}, "a key is shown once"
    assert usage(again) == used
    assert complete(again, key, 6, "once") == answer
    assert usage(again) == used, "the same key is charged once"
    assert run_json("tenants", "show", "acme", "--data", again.data)["terms"]["weight"] == 3.0
    complete(again, other, 4)
    assert charges(lambda: usage(again), 3).output_tokens == 14
    assert again.stop() == 0


def test_the_operators_page_needs_the_token_of_the_folder(data: Path) -> None:
    served = serve(data)
    complete(served, served.api_keys["default"], 4)
    token = (Path(served.data) / "operator-token").read_text()
    refused = [
        httpx.get(served.operator_url, timeout=HANG_S),
        *(_page(served, wrong) for wrong in (served.api_keys["default"], "x")),
    ]
    assert [page.status_code for page in refused] == [401] * 3
    assert not any("default" in page.text for page in refused)
    shown = _page(served, token)
    assert shown.status_code == 200
    assert any("default" in " ".join(row) for rows in Page(shown.text).tables.values() for row in rows)
    assert served.api_keys["default"] not in shown.text
    assert served.stop() == 0


def _page(served: Served, token: str) -> httpx.Response:
    return httpx.get(served.operator_url, headers={"authorization": f"Bearer {token}"}, timeout=HANG_S)


def test_deferred_requests_use_what_others_leave(data: Path) -> None:
    """A worker of one slot is busy, and two of them wait; the chat that comes last is the first to be answered."""
    tenants = data.parent / "tenants.yaml"
    classes = "{chat: {first_token_s: 20}, night: {first_token_s: 3600, deferred: true}}"
    tenants.write_text(f"tenants: {{acme: {{slo_class: chat}}, late: {{slo_class: night}}}}\nslo_classes: {classes}\n")
    served = serve(data, "--slots", "1", "--tenants", str(tenants))

    def begin(tenant: str, slo_class: str, tokens: int) -> openai.Stream[openai.types.Completion]:
        metadata = {"headgate_slo_class": slo_class}
        return served.openai(served.api_keys[tenant]).completions.create(
            model=served.model,
            prompt="once upon",
            max_tokens=tokens,
            stream=True,
            extra_body={"metadata": metadata},
        )

    def calls() -> tuple[int, int]:
        """Return how many calls run and wait."""
        found = run_json("top", "--once", "--data", served.data)["tenants"]
        return sum(each["running"] for each in found), sum(each["waiting"] for each in found)

    try:
        with pytest.raises(openai.BadRequestError, match="SLO class 'chat' is stricter than 'night'"):
            begin("late", "chat", 20)
        with ThreadPoolExecutor(3) as threads:
            with begin("acme", "night", 4000):
                nights = [threads.submit(lambda: list(begin("acme", "night", 20))) for _ in range(2)]
                eventually(calls, lambda found: found == (1, 2))
                chatting = threads.submit(begin, "acme", "chat", 4000)
                eventually(calls, lambda found: found == (1, 3))
            with chatting.result() as chat:
                assert any(chunk.choices and chunk.choices[0].text for chunk in chat)
                assert calls() == (1, 2), "the chat runs, and the others wait"
            assert all(each.result() for each in nights)
    finally:
        served.stop()


def test_durable_work_survives_a_kill_of_its_front(data: Path) -> None:
    """The executor finishes what the dead front had accepted; the caller reads the answer under its key."""
    served = serve(data, "--slots", "1")
    key = served.api_keys["default"]
    try:
        with ThreadPoolExecutor(3) as threads:
            asked = [threads.submit(complete, served, key, 400, f"call-{number}") for number in range(3)]
            eventually(
                lambda: run_json("top", "--once", "--data", served.data)["tenants"],
                lambda tenants: any(t["running"] == 1 and t["waiting"] == 2 for t in tenants),
            )
            os.kill(served.pid("front"), signal.SIGKILL)
            for each in asked:
                with pytest.raises(openai.APIConnectionError):
                    each.result()
        eventually(lambda: usage(served), lambda found: found.requests == 3)
        eventually(lambda: _answers(served), lambda answers: answers)
        answers = {complete(served, key, 400, f"call-{number}") for number in range(3)}
        assert len(answers) == 3
        assert usage(served) == usage(served)._replace(requests=3, output_tokens=1200)
    finally:
        assert served.stop() == 0


def _answers(served: Served) -> bool:
    """True once the front was started again."""
    try:
        return bool(served.openai("none").models.list())
    except openai.AuthenticationError:
        return True
    except openai.APIConnectionError:
        return False


def test_a_killed_process_is_started_again_and_a_worker_runs_again_what_it_had_begun(data: Path) -> None:
    """A worker keeps its name, so the attempts of the dead process are returned at once, not after their lease."""
    served = serve(data)
    key = served.api_keys["default"]

    def workers() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = run_json("top", "--once", "--data", served.data)["workers"]
        return found

    try:
        (before,) = workers()
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(complete, served, key, 400)
            eventually(workers, lambda found: sum(each["running"] for each in found) == 1)
            os.kill(served.pid("worker"), signal.SIGKILL)
            asked.result()
        (after,) = workers()
        assert after["worker"] == before["worker"]
        assert after["url"] != before["url"]
        used = charges(lambda: usage(served), 1)
        assert (used.requests, used.output_tokens) == (1, 400)
        for role in ("gate", "executor"):
            os.kill(served.pid(role), signal.SIGKILL)
            eventually(lambda: _tokens(served), lambda tokens: tokens == 4)
    finally:
        assert served.stop() == 0


def test_two_shards_answer_every_chat_while_a_gate_process_is_killed(data: Path) -> None:
    tenants = data.parent / "tenants.yaml"
    names = [f"t{number}" for number in range(6)]
    tenants.write_text("tenants: {" + ", ".join(f"{name}: {{weight: 1}}" for name in names) + "}\n")
    served = serve(data, "--shards", "2", "--slots", "4", "--tenants", str(tenants))

    def chat(tenant: str) -> str | None:
        answer = served.openai(served.api_keys[tenant]).chat.completions.create(
            model=served.model, messages=[{"role": "user", "content": "once upon"}], max_tokens=100
        )
        return answer.choices[0].message.content

    try:
        with ThreadPoolExecutor(24) as threads:
            asked = [threads.submit(chat, tenant) for _ in range(6) for tenant in names]
            eventually(lambda: sum(each.done() for each in asked), lambda done: done >= 4)
            os.kill(served.pid("gate"), signal.SIGKILL)
            assert all(each.result() for each in asked)
        used = charges(lambda: usage(served), len(asked))
        assert (used.requests, used.output_tokens) == (len(asked), 100 * len(asked)), "each once"
    finally:
        assert served.stop() == 0


def _tokens(served: Served) -> int:
    """Return the tokens of one answer; 0 while no worker serves."""
    try:
        answer = served.openai(served.api_keys["default"]).completions.create(
            model=served.model, prompt="x", max_tokens=4
        )
    except openai.APIStatusError:
        return 0
    return answer.usage.completion_tokens if answer.usage else 0


def test_two_servers_on_one_folder(data: Path) -> None:
    served = serve(data)
    command = [sys.executable, "-m", "headgate.cli", "serve", "--port", "0", "--data", str(data)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, cwd=ROOT)
    assert served.stop() == 0
    assert ended.returncode == 2
    assert "in use by another" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_server(data: Path, number: signal.Signals) -> None:
    served = serve(data)
    family = [psutil.Process(process["pid"]) for process in served.processes]
    served.stop(number)
    eventually(lambda: [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], lambda p: not p)
