"""The least that a gateway in Python does: `python -m benchmarks.peers.floor_proxy URL`.

It parses the request, forwards it, and parses what it passes back, with the libraries that such a gateway usually has:
Starlette and aiohttp. It has no keys, no limits, no order, no log and no metrics. It prints one JSON line, `{"url"}`,
and serves until it is killed. uvicorn serves it with h11 and asyncio's own loop, or with --fast with httptools and
uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gpu_worker.__main__ import bound


def make_app(url: str, http: aiohttp.ClientSession) -> Starlette:
    async def chat(request: Request) -> Response:
        body = await request.body()
        is_streamed = json.loads(body).get("stream")
        headers = {"content-type": "application/json", "authorization": "Bearer none"}
        answer = await http.post(f"{url}/v1/chat/completions", data=body, headers=headers)
        if is_streamed:
            return StreamingResponse(_events(answer), media_type="text/event-stream")
        whole = await answer.read()
        json.loads(whole)
        return Response(whole, answer.status, media_type="application/json")

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for line in answer.content:
        if line.startswith(b"data: {"):
            json.loads(line[len(b"data: ") :])
        if line != b"\n":
            yield line + b"\n"


async def serve(url: str, http: str) -> None:
    listening = bound("127.0.0.1", 0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        app = make_app(url, session)
        server = uvicorn.Server(uvicorn.Config(app, http=http, access_log=False, log_level="warning"))
        sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}) + "\n")
        sys.stdout.flush()
        await server.serve(sockets=[listening])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    (uvloop.run if options.fast else asyncio.run)(serve(options.url, "httptools" if options.fast else "h11"))


if __name__ == "__main__":
    main()
