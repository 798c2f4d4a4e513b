"""What a client of `headgate simulate --live` notes of each kind of answer."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from dispatcher.model.answers import DONE, event
from dispatcher.model.errors import TenantError
from headgate.demo.live_fleet import play_requests
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival


def piece(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text}]})


FAILED = event(TenantError("The worker ended.", "worker_failed", None, 500, "server_error").body_with_retry())
REFUSED = b'{"error": {"message": "Too many wait.", "type": "t", "param": null, "code": "queue_full"}}'
ANSWERS = {
    "whole": (200, [piece(""), piece("a"), piece(" word"), DONE], None),
    "failed": (200, [piece("a"), FAILED, DONE], "worker_failed"),
    "cut off": (200, [piece("a")], "no_end"),
    "refused": (429, [REFUSED], "queue_full"),
    "long": (200, [piece("word ") * 1000, DONE], None),
}


async def play(*names: str) -> list[SimRequest]:
    """Send a request for each of these answers, all of one conversation, to a server that gives them in turn."""
    answers = iter(names)

    async def answer(request: web.Request) -> web.StreamResponse:
        status, parts, _ = ANSWERS[next(answers)]
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    requests = [
        SimRequest(f"r{number}", Arrival(0.0, "t", 4, 4, interaction="talk", stage=number), 0.0)
        for number in range(len(names))
    ]
    try:
        await play_requests(f"http://127.0.0.1:{port}/v1", {"t": "key"}, requests)
    finally:
        await runner.cleanup()
    return requests


@pytest.mark.parametrize("name", ANSWERS)
def test_each_kind_of_answer_is_noted(name: str) -> None:
    [request] = asyncio.run(play(name))
    status, _, reason = ANSWERS[name]
    assert request.rejected == reason
    assert request.served == (reason is None)
    assert (request.first_token_s >= 0.0) == (status == 200)


def test_a_stage_waits_for_the_one_before_it() -> None:
    first, second = asyncio.run(play("long", "whole"))
    assert first.release_s == 0.0
    assert second.release_s >= first.finish_s
