"""The Lambda handlers: Runtime, Powertools, batches; and that what they log holds no prompt, answer or key."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dispatcher.bootstrap import Runtime
from dispatcher.model.errors import NoWorker, WorkerFailed
from dispatcher.model.old_invocation import State
from dispatcher.model.old_outcomes import Dispatched
from dispatcher.old_operations.answer import wait_or_detach
from dispatcher.old_operations.settle import settle
from functions.execute import handler as execute
from functions.invoke import handler as invoke
from functions.result import handler as result
from functions.sweep import handler as sweep
from headgate.simulator.virtual_time import VirtualTimeLoop
from tests.support.gate.memory_gate import CHAT, Gate, make_gate
from tests.support.gate.store_faults import Unreachable
from tests.support.gate.story import dispatched, queued
from tests.support.gate.worker_client import UNREACHABLE, Act, dies_after, refuses


@dataclass
class LambdaContext:
    """What Lambda hands over."""

    aws_request_id: str = "request-1"
    function_name: str = "headgate-test"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:eu-central-1:123456789012:function:headgate-test"
    remaining_ms: int = 60_000

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


class Sandbox:
    """One Lambda sandbox in virtual time, over a gate."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.gate: Gate = self.runner.run(make_gate())
        self.runtime = Runtime(self.gate.context)
        self.runtime._runner.close()
        self.runtime._runner = self.runner

    def gate_now(self) -> float:
        return self.runner.get_loop().time()

    async def end(self, running: list[Dispatched]) -> None:
        for one in running:
            await settle(self.gate.context, one.invocation, State.DONE)
        await self.gate.quiet()

    def payload(self, **more: Any) -> dict[str, Any]:
        return {"api_key": self.gate.keys["a"], "model": "m", "prompt": "hello", "max_tokens": 3, **more}


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    made = Sandbox()
    monkeypatch.setenv("AWS_XRAY_SDK_ENABLED", "false")
    monkeypatch.setenv("POWERTOOLS_TRACE_DISABLED", "true")
    for module in (execute, invoke, result, sweep):
        monkeypatch.setattr(module, "runtime", lambda: made.runtime)
    yield made
    made.runner.run(made.gate.at_rest())
    made.runner.close()


def message(tenant: str, invocation_id: str, attempt: int, message_id: str = "1") -> dict[str, Any]:
    body = json.dumps({"tenant": tenant, "id": invocation_id, "attempt": attempt})
    return {"messageId": message_id, "body": body, "eventSource": "aws:sqs", "receiptHandle": "r"}


async def let_go(gate: Gate, invocation_id: str = "k") -> None:
    """One that is detached, and dispatched."""
    await dispatched(gate, "a", invocation_id, keep_body=True, keep_answer=True, detached=True)


def test_invoke_answers_and_result_gives_it_again(sandbox: Sandbox) -> None:
    body = invoke.handler(sandbox.payload(), LambdaContext())
    assert body["choices"][0]["text"] == "xxx"
    assert invoke.handler(sandbox.payload(), LambdaContext()) == body
    fetched = result.handler({"api_key": sandbox.gate.keys["a"], "id": "request-1"}, LambdaContext())
    assert fetched == {"id": "request-1", "status": "done", "response": body}
    assert json.loads(json.dumps(fetched)) == fetched
    assert not sandbox.gate.context.tasks  # nothing goes on while the sandbox is frozen


def test_invoke_answers_users_errors_and_raises_ours(sandbox: Sandbox) -> None:
    assert invoke.handler({"model": "m"}, LambdaContext())["status"] == 401
    assert invoke.handler("x", LambdaContext())["status"] == 400
    worker = sandbox.runner.run(sandbox.gate.store.workers("default"))[0]
    sandbox.runner.run(sandbox.gate.store.leave(worker))
    with pytest.raises(NoWorker):
        invoke.handler(sandbox.payload(), LambdaContext())


def test_invoke_leaves_itself_time_to_let_go(sandbox: Sandbox) -> None:
    async def full() -> list[Any]:
        return [await dispatched(sandbox.gate, "b", f"{n}") for n in range(2)]

    running = sandbox.runner.run(full())
    started = sandbox.gate_now()
    answers = invoke.handler(sandbox.payload(), LambdaContext(remaining_ms=12_000))
    assert answers == {"id": "request-1", "status": "queued"}
    assert sandbox.gate_now() - started == pytest.approx(12 - invoke.MARGIN_S, abs=0.1)
    sandbox.runner.run(sandbox.end(running))
    execute.handler({"Records": [message(*launched) for launched in sandbox.gate.launcher.launched]}, LambdaContext())
    sandbox.runner.run(sandbox.gate.ended("a", "request-1", State.DONE))


def test_execute_runs_what_a_message_names_and_ignores_what_is_done(sandbox: Sandbox) -> None:
    sandbox.runner.run(let_go(sandbox.gate))
    event = {"Records": [message("a", "k", 1, "1"), message("a", "k", 1, "2"), message("a", "never", 1, "3")]}
    assert execute.handler(event, LambdaContext()) == {"batchItemFailures": []}
    assert execute.handler(event, LambdaContext()) == {"batchItemFailures": []}
    ended = sandbox.runner.run(sandbox.gate.ended("a", "k", State.DONE))
    assert ended.result is not None
    assert json.loads(ended.result.body)["choices"][0]["text"] == "xxx"
    assert len(sandbox.gate.workers.orders) == 1


def test_execute_sends_back_only_what_failed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.runner.run(let_go(sandbox.gate))
    poison = {**message("a", "k", 1, "poison"), "body": "{}"}
    event = {"Records": [poison, message("a", "k", 1, "good")]}
    assert execute.handler(event, LambdaContext()) == {"batchItemFailures": [{"itemIdentifier": "poison"}]}

    sandbox.runner.run(let_go(sandbox.gate, "later"))
    monkeypatch.setattr(sandbox.gate.store, "faults", Unreachable())
    with contextlib.suppress(Exception):
        execute.handler({"Records": [message("a", "later", 1)]}, LambdaContext())
    monkeypatch.setattr(sandbox.gate.store, "faults", None)
    execute.handler({"Records": [message("a", "later", 1)]}, LambdaContext())
    sandbox.runner.run(sandbox.gate.ended("a", "later", State.DONE))


def test_sweep_says_what_it_did(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_POOL", "default")

    async def left_behind() -> None:
        await dispatched(sandbox.gate, "a", "k")
        await asyncio.sleep(20)

    sandbox.runner.run(left_behind())
    event = {"id": "e", "source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}
    assert sweep.handler(event, LambdaContext()) == {"reaped": 1, "expired": 0, "dispatched": 0}


CANARIES = ("canary-prompt-8842", "canary-answer-1177", "canary-system-3321")


def test_no_prompt_answer_or_key_is_logged_or_counted(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Through success, refusals, errors of the worker, crashes and disconnects, on every face."""
    caplog.set_level(logging.DEBUG)
    prompt, answer, system = CANARIES
    gate = sandbox.gate
    gate.workers.acts.extend(
        [Act(word=answer), UNREACHABLE, Act(word=answer), dies_after(1), refuses(400, "c", "m"), refuses(500)]
    )
    asked = sandbox.payload(prompt=prompt)
    answers = [invoke.handler(asked, LambdaContext(aws_request_id="r0"))]
    assert answer in json.dumps(answers)
    for number, change in enumerate(({}, {}, {}, {"magic": prompt}, {"max_tokens": prompt}, {"model": "n"}), 1):
        with contextlib.suppress(WorkerFailed):
            answers.append(invoke.handler({**asked, **change}, LambdaContext(aws_request_id=f"r{number}")))
    answers.append(invoke.handler({**asked, "api_key": gate.keys["a"] + "x"}, LambdaContext()))
    answers.append(result.handler({"api_key": gate.keys["a"], "id": "r0"}, LambdaContext()))
    sandbox.runner.run(_faces(gate, prompt, system, answer))
    sandbox.runner.run(let_go(gate))
    execute.handler({"Records": [message("a", "k", 1)]}, LambdaContext())
    out = capsys.readouterr()
    written = out.out + out.err + "".join(record.getMessage() + repr(record.__dict__) for record in caplog.records)
    assert "invocation ended" in written
    assert "outcome_done" in out.out
    for secret in (*CANARIES, *gate.keys.values()):
        assert secret not in written
    errors = [json.dumps(one) for one in answers if "error" in one]
    assert len(errors) >= 4
    assert not [one for one in errors for secret in (*CANARIES, *gate.keys.values()) if secret in one]


async def _faces(gate: Gate, prompt: str, system: str, answer: str) -> None:
    """HTTP: streamed and not, refused, broken off, hung up."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    body = {"model": "m", "messages": messages, "max_tokens": 3}
    gate.workers.acts.extend([Act(word=answer), Act(word=answer), dies_after(1), refuses(422), Act(word=answer)])
    for change in ({}, {"stream": True}, {"stream": True}, {}, {"n": 3}, {"stop": [prompt] * 9}):
        reply = await gate.caller().post(CHAT, {**body, **change})
        if reply.status >= 400:
            assert not [secret for secret in CANARIES if secret.encode() in reply.body]
    for raw in (json.dumps(body).encode()[:-1], json.dumps({**body, prompt: 1, "x": [prompt]}).encode()[:-2]):
        reply = await gate.caller().post(CHAT, raw=raw)
        assert reply.status == 400
        assert prompt.encode() not in reply.body
    call = gate.caller().start("POST", CHAT, {**body, "max_tokens": 50, "stream": True})
    await asyncio.sleep(0.25)
    call.hang_up()
    await asyncio.wait({call.task})
    await gate.quiet()


def test_a_queued_request_is_let_go_and_its_prompt_dropped_at_the_end(sandbox: Sandbox) -> None:
    async def story() -> None:
        gate = sandbox.gate
        running = [await dispatched(gate, "b", f"{n}") for n in range(2)]
        waiting = await queued(gate, "a", "k", keep_body=True, keep_answer=True)
        assert await wait_or_detach(gate.context, waiting.invocation, 1.0) is None
        assert (await gate.invocation("a", "k")).body is not None
        await sandbox.end(running)
        await gate.quiet()

    sandbox.runner.run(story())
    ((tenant, name, attempt),) = sandbox.gate.launcher.launched
    execute.handler({"Records": [message(tenant, name, attempt)]}, LambdaContext())
    assert sandbox.runner.run(sandbox.gate.ended("a", "k", State.DONE)).body is None
