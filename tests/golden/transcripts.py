"""The golden file of the HTTP face: requests and answers, head and body, over the whole gate in virtual time.

The workers are scripted (tests/support/world/worker_client.py). Ids count, and time passes only while the gate waits,
so a run repeats to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dispatcher.model.fleet import Capability
from tests.support.asgi import Caller
from tests.support.world.memory_gate import CHAT, COMPLETION, Gate
from tests.support.world.story import batch_gate, ended, runner
from tests.support.world.virtual_time import VirtualTimeLoop
from tests.support.world.worker_client import SHED, dies_after, refuses

RESPONSES, BATCHES, FILES = "/v1/responses", "/v1/batches", "/v1/files"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SEAM = "seam"


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "grüße"}], "max_tokens": 3, **more}


class Transcript:
    """What was asked and answered so far, as text."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self.parts = gate, list[str]()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        tenant: str | None = "a",
        raw: bytes | None = None,
        **head: str,
    ) -> Any:
        """Send a request, note it with its answer, and return the answer's body if it is JSON."""
        caller: Caller = self._gate.caller(tenant)
        path, _, query = path.partition("?")
        reply = await caller.start(method, path, body, raw=raw, query=query, **head).finished()
        sent = "" if body is None else json.dumps(body, ensure_ascii=False)
        lines = [f"> {method} {path}{query and '?' + query} as {tenant}", *(f"> {name}: {head[name]}" for name in head)]
        text = reply.body.decode()
        answered = [f"< {reply.status}", *(f"< {name}: {value}" for name, value in sorted(reply.headers.items()))]
        self.parts.append("\n".join([*lines, sent, *answered, text, ""]))
        return json.loads(text) if text.startswith("{") else None


async def tell(gate: Gate) -> str:
    made = Transcript(gate)
    for story in (models, chats, completions, responses, batches, refusals):
        await story(made, gate)
        await gate.quiet()
    return "\n".join(made.parts)


async def models(made: Transcript, _: Gate) -> None:
    for path in ("/health", "/ready", "/v1/models", "/v1/models/m", "/v1/models/none"):
        await made.ask("GET", path)


async def chats(made: Transcript, gate: Gate) -> None:
    usage = {"stream_options": {"include_usage": True}}
    for more in ({}, {"n": 2}, {"stream": True}, {"stream": True, **usage}, {"logprobs": True, "top_logprobs": 1}):
        await made.ask("POST", CHAT, chat(**more))
    await made.ask("POST", CHAT, chat(tools=[TOOL]), traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    for _ in range(2):
        await made.ask("POST", CHAT, chat(), idempotency_key="once")
    await made.ask("POST", CHAT, chat(max_tokens=4), idempotency_key="once")
    gate.workers.acts.append(dies_after(2))
    await made.ask("POST", CHAT, chat())
    gate.workers.acts.append(SHED)
    await made.ask("POST", CHAT, chat())
    gate.workers.acts.append(refuses(400))
    await made.ask("POST", CHAT, chat(stream=True))


async def completions(made: Transcript, _: Gate) -> None:
    for more in ({}, {"stream": True}, {"echo": True}, {"suffix": "x"}, {"prompt": ["a", "b"]}):
        await made.ask("POST", COMPLETION, {"model": "m", "prompt": "hello", "max_tokens": 2, **more})
    await made.ask("POST", "/v1/embeddings", {"model": "m", "input": ["a", "b"]})


async def responses(made: Transcript, _: Gate) -> None:
    kept = await made.ask("POST", RESPONSES, {"model": "m", "input": "hello", "max_output_tokens": 3})
    await made.ask("POST", RESPONSES, {"model": "m", "input": "hello", "max_output_tokens": 2, "stream": True})
    path = f"{RESPONSES}/{kept['id']}"
    for suffix in ("", "/input_items"):
        await made.ask("GET", path + suffix)
    await made.ask("POST", f"{path}/cancel")
    await made.ask("GET", path, tenant="b")
    await made.ask("DELETE", path)
    await made.ask("GET", path)


async def batches(made: Transcript, gate: Gate) -> None:
    line = {"custom_id": "1", "method": "POST", "url": CHAT, "body": chat()}
    parts = (("purpose", "", b"batch"), ("file", '; filename="f.jsonl"', json.dumps(line).encode()))
    form = b"".join(
        f'--{SEAM}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"
        for name, more, content in parts
    )
    head = {"content_type": f"multipart/form-data; boundary={SEAM}"}
    file = await made.ask("POST", FILES, raw=form + f"--{SEAM}--\r\n".encode(), **head)
    for path in (FILES, f"{FILES}/{file['id']}", f"{FILES}/{file['id']}/content"):
        await made.ask("GET", path)
    asked: Mapping[str, Any] = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = await made.ask("POST", BATCHES, asked)
    for path in (BATCHES, f"{BATCHES}/{batch['id']}"):
        await made.ask("GET", path)
    record = await gate.store.batch("a", batch["id"])
    assert record is not None
    async with runner(gate):
        await ended(gate, record)
    over = await made.ask("GET", f"{BATCHES}/{batch['id']}")
    await made.ask("GET", f"{FILES}/{over['output_file_id']}/content")
    await made.ask("POST", f"{BATCHES}/{batch['id']}/cancel")
    await made.ask("POST", BATCHES, {**asked, "input_file_id": "file-none"})
    await made.ask("DELETE", f"{FILES}/{file['id']}")


async def refusals(made: Transcript, gate: Gate) -> None:
    await made.ask("POST", CHAT, chat(), tenant=None)
    await made.ask("POST", CHAT, chat(), tenant=None, authorization="Bearer hg-unknown")
    for raw in (b"", b"{", b'{"model": NaN}', b"\xff"):
        await made.ask("POST", CHAT, raw=raw)
    changes: list[dict[str, Any]] = [
        {"model": "none"},
        {"max_tokens": 0},
        {"max_tokens": 10**9},
        {"n": 0},
        {"messages": []},
        {"odd": 1},
    ]
    for more in changes:
        await made.ask("POST", CHAT, chat(**more))
    await made.ask("GET", CHAT)
    await made.ask("GET", "/v1/none")
    await made.ask("GET", "/v1/usage?hours=1")
    await made.ask("GET", "/v1/usage?from=0")
    await gate.add_tenant("barred", models=("other",))
    await made.ask("POST", CHAT, chat(), tenant="barred")


def make_transcript() -> str:
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(_run())
    finally:
        loop.close()


async def _run() -> str:
    gate = await batch_gate()
    gate.add_worker(slots=2, capabilities=tuple(sorted(set(Capability) - {Capability.VLLM})))
    text = await tell(gate)
    await gate.at_rest()
    return text
