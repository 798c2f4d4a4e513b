"""The Lambda handlers: Runtime, Powertools, batches; and that what they log holds no prompt, answer or key."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import ANY

import pytest

from dispatcher.model.commands import Leave, Tick, UseFormat
from dispatcher.model.errors import ConfigurationError, NoWorker, WorkerFailed
from dispatcher.model.formats import NEWEST
from dispatcher.operations.calls.submit import NewCall
from dispatcher.operations.pools import FRESH_S
from dispatcher.operations.scaling import Waking
from dispatcher.processes.sandbox import Runtime
from functions.ended_calls import FLUSH_S
from functions.execute import handler as execute
from functions.invoke import handler as invoke
from functions.result import handler as result
from functions.sweep import handler as sweep
from tests.support.scaling import CountedService
from tests.support.world.memory_gate import CHAT, Gate, make_gate
from tests.support.world.story import dispatched, queued, take_slots
from tests.support.world.virtual_time import VirtualTimeLoop
from tests.support.world.worker_client import UNREACHABLE, Act, dies_after, refuses


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

    async def busy(self) -> list[NewCall]:
        """Take both slots, from another process, until `end`."""
        other = self.gate.process()
        return [await dispatched(self.gate, "b", context=other) for _ in range(2)]

    async def end(self, running: list[NewCall]) -> None:
        for one in running:
            one.leave()
        await self.gate.quiet()

    def payload(self, **more: Any) -> dict[str, Any]:
        return {"api_key": self.gate.keys["a"], "model": "m", "prompt": "hello", "max_tokens": 3, **more}


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    made = Sandbox()
    for module in (execute, invoke, result, sweep):
        monkeypatch.setattr(module, "runtime", lambda: made.runtime)
    yield made
    made.runner.run(made.gate.at_rest())
    made.runner.close()


def message(invocation_id: str, attempt: int, message_id: str = "1") -> dict[str, Any]:
    body = json.dumps({"id": invocation_id, "attempt": attempt})
    return {"messageId": message_id, "body": body, "eventSource": "aws:sqs", "receiptHandle": "r"}


async def let_go(gate: Gate) -> str:
    """Leave a durable call that is dispatched and not begun, and return its id."""
    busy = await take_slots(gate, max_tokens=1)
    waiting = await queued(gate, "a", "k")
    waiting.leave()
    await busy
    await gate.quiet()
    return waiting.call.id


def test_an_invocation_has_its_line_before_the_function_returns(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    invoke.handler(sandbox.payload(), LambdaContext(aws_request_id="r-7"))
    (line,) = [json.loads(each) for each in capsys.readouterr().out.splitlines() if "invocation ended" in each]
    assert (line["face"], line["function_request_id"], line["tenant"]) == ("invoke", "r-7", "a")
    assert (line["outcome"], line["output_tokens"], "ttft_ms" in line) == ("done", 3, False)


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

    async def left_alone() -> None:
        sandbox.gate.shard.decide(Leave("w"))
        await asyncio.sleep(FRESH_S)

    sandbox.runner.run(left_alone())
    with pytest.raises(NoWorker):
        invoke.handler(sandbox.payload(), LambdaContext())


def test_an_invocation_at_zero_waits_for_the_first_worker(sandbox: Sandbox) -> None:
    """Its deadline begins with the worker: the start-up is longer than the deadline of 300 s."""
    service = CountedService()
    gate = sandbox.gate
    gate.pool.waking = Waking(service, {"m"}, 400.0, gate.clock)

    async def empty() -> asyncio.Task[None]:
        gate.shard.decide(Leave("w"))
        await asyncio.sleep(FRESH_S)
        return asyncio.ensure_future(started())

    async def started() -> None:
        await asyncio.sleep(400.0)
        assert service.sets == [1]
        gate.add_worker("w2")

    starting = sandbox.runner.run(empty())
    assert invoke.handler(sandbox.payload(), LambdaContext(remaining_ms=900_000))["choices"][0]["text"] == "xxx"
    assert starting.done()


def test_an_invocation_whose_function_ends_before_the_first_worker_is_repeated_by_lambda(sandbox: Sandbox) -> None:
    service, gate = CountedService(), sandbox.gate
    gate.pool.waking = Waking(service, {"m"}, 400.0, gate.clock)

    async def empty() -> None:
        gate.shard.decide(Leave("w"))
        await asyncio.sleep(FRESH_S)

    sandbox.runner.run(empty())
    with pytest.raises(NoWorker, match="starting"):
        invoke.handler(sandbox.payload(), LambdaContext(remaining_ms=60_000))
    assert service.sets == [1]


@pytest.mark.parametrize("cold_ms", [0, 4_000])
def test_invoke_leaves_itself_time_to_let_go(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, cold_ms: int) -> None:
    """A cold start takes a part of the function's time."""
    context = LambdaContext(remaining_ms=12_000 + cold_ms)

    def started_cold() -> Runtime:
        context.remaining_ms = 12_000
        return sandbox.runtime

    monkeypatch.setattr(invoke, "runtime", started_cold)
    sandbox.gate.workers.acts.extend([Act(start_s=100.0)] * 2)
    running = sandbox.runner.run(sandbox.busy())
    started = sandbox.gate_now()
    answers = invoke.handler(sandbox.payload(), context)
    queued = {
        "id": "request-1",
        "status": "queued",
        "queue_position": 1,
        "estimated_wait_s": ANY,
        "estimated_wait_p90_s": ANY,
    }
    assert answers == queued
    assert sandbox.gate_now() - started == pytest.approx(12 - invoke.MARGIN_S, abs=0.1)
    sandbox.runner.run(sandbox.end(running))
    execute.handler({"Records": [message(*launched) for launched in sandbox.gate.launcher.launched]}, LambdaContext())
    sandbox.runner.run(sandbox.gate.ended("a", "request-1", "done"))


def test_execute_runs_what_a_message_names_and_ignores_what_is_done(sandbox: Sandbox) -> None:
    call_id = sandbox.runner.run(let_go(sandbox.gate))
    event = {"Records": [message(call_id, 1, "1"), message(call_id, 1, "2"), message("never-1", 1, "3")]}
    assert execute.handler(event, LambdaContext()) == {"batchItemFailures": []}
    assert execute.handler(event, LambdaContext()) == {"batchItemFailures": []}
    answer = sandbox.runner.run(sandbox.gate.ended("a", "k", "done"))
    assert json.loads(answer.body)["choices"][0]["text"] == "xxx"
    assert [order.terms.tenant for _, order in sandbox.gate.workers.orders].count("a") == 1


def test_execute_sends_back_only_what_failed(sandbox: Sandbox) -> None:
    call_id = sandbox.runner.run(let_go(sandbox.gate))
    poison = {**message(call_id, 1, "poison"), "body": "{}"}
    event = {"Records": [poison, message(call_id, 1, "good")]}
    assert execute.handler(event, LambdaContext()) == {"batchItemFailures": [{"itemIdentifier": "poison"}]}


def test_sweep_is_a_tick(sandbox: Sandbox) -> None:
    event = {"id": "e", "source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}
    assert sweep.handler(event, LambdaContext()) == {"ticks": 1}
    assert sandbox.gate.shard.commands[-1] == Tick()
    assert sandbox.gate.link().rests


def test_an_operator_changes_the_format_of_the_logs_by_a_sweep(sandbox: Sandbox) -> None:
    assert sweep.handler({"use_format": NEWEST}, LambdaContext()) == {"format": NEWEST}
    assert sandbox.gate.shard.commands[-1] == UseFormat(NEWEST)
    with pytest.raises(ConfigurationError, match=r"writes the formats 5 to 6, not 7\."):
        sweep.handler({"use_format": 7}, LambdaContext())
    with pytest.raises(ConfigurationError, match="use_format is a number"):
        sweep.handler({"use_format": "6"}, LambdaContext())


def test_a_sweep_publishes_zeros_too(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    event = {"id": "e", "source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}
    sweep.handler(event, LambdaContext())
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
    assert all(record["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "headgate" for record in records)
    values = {
        (name, record.get("tier")): record[name]
        for record in records
        for name in ("workers_wanted", "workers_running", "waiting", "scaling_failed", "oldest_wait_s", "overdue_s")
        if name in record and record["pool"] == "default"
    }
    tiers = ("premium", "standard", "background")
    by_tier = {(name, tier): [0.0] for name in ("waiting", "oldest_wait_s") for tier in tiers}
    assert values == by_tier | {
        ("overdue_s", None): [0.0],
        ("workers_wanted", None): [1.0],
        ("workers_running", None): [0.0],
        ("scaling_failed", None): [0.0],
    }


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
    execute.handler({"Records": [message(sandbox.runner.run(let_go(gate)), 1)]}, LambdaContext())
    out = capsys.readouterr()
    written = out.out + out.err + "".join(record.getMessage() + repr(record.__dict__) for record in caplog.records)
    assert "invocation ended" in written
    metrics = [json.loads(line) for line in out.out.splitlines() if '"_aws"' in line]
    named = [each for each in metrics if "outcome_done" in each]
    assert {(each["pool"], each["tier"]) for each in named} == {("default", "standard")}
    ends = [each for each in metrics if "failed" in each]
    assert {tuple(each["failed"]) for each in ends} <= {(0,), (1,)}, "each caller has a front of its own"
    failures = {name for each in ends if each["failed"] == [1] for name in each if name.startswith("outcome_")}
    assert failures == {"outcome_worker_failed"}, "a refusal and a caller that leaves are no failures"
    assert any(each["failed"] == [0] for each in ends)
    assert not [each for each in metrics if "tenant" in each], "a metric for each tenant would cost too much"
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
    await asyncio.sleep(FLUSH_S)
