"""A stand-in for vLLM's server that sleeps, on a Unix socket: `python -m tests.support.worker.sleeping_server --uds …`.

vLLM's own sleep needs a GPU. This server has the routes and the answers of vLLM 0.32, and fails as the file
FAULT in the folder of its model names (`--model`); without the file it does not fail.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

FAULT = "fault"


class Server:
    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.folder = Path(self._value("--model"))
        self.sleeps = False
        self.level = 0
        self.is_wrong = False

    def _value(self, name: str) -> str:
        return self.words[self.words.index(name) + 1]

    @property
    def fault(self) -> str:
        file = self.folder / FAULT
        return file.read_text() if file.exists() else ""

    def serve(self) -> None:
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/health", lambda _: Response()),
        ]
        if os.environ.get("VLLM_SERVER_DEV_MODE") == "1" and "--enable-sleep-mode" in self.words:
            routes += [
                Route("/sleep", self.sleep, methods=["POST"]),
                Route("/wake_up", self.wake_up, methods=["POST"]),
                Route("/is_sleeping", self.is_sleeping),
                Route("/collective_rpc", self.collective_rpc, methods=["POST"]),
            ]
        uvicorn.run(Starlette(routes=routes), uds=self._value("--uds"), log_level="error")

    async def models(self, _request: Request) -> Response:
        card = {"id": self._value("--served-model-name"), "object": "model", "owned_by": "vllm", "max_model_len": 1000}
        return JSONResponse({"data": [card]})

    async def completions(self, request: Request) -> Response:
        if self.sleeps:
            return JSONResponse({"error": {"message": "asleep"}}, 500)
        body = await request.json()
        return StreamingResponse(self._tokens(body), media_type="text/event-stream")

    async def _tokens(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        word = "wrong" if self.is_wrong else self.folder.name
        last = body["max_tokens"]
        for number in range(1, last + 1):
            choice = {"index": 0, "text": f" {word}", "finish_reason": "length" if number == last else None}
            usage = {"prompt_tokens": 5, "completion_tokens": number}
            yield b"data: " + json.dumps({"choices": [choice], "usage": usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def sleep(self, request: Request) -> Response:
        if self.fault == "sleep fails":
            return JSONResponse({"error": {"message": "Memory usage increased after sleeping."}}, 500)
        self.sleeps, self.level = self.fault != "sleep lies", int(request.query_params["level"])
        if self.fault == "dies asleep":
            os._exit(1)
        self.is_wrong = self.is_wrong or self.level == 2
        return JSONResponse({"status": "sleeping", "level": self.level})

    async def wake_up(self, request: Request) -> Response:
        if self.fault == "wake fails":
            return JSONResponse({"error": {"message": "out of memory"}}, 500)
        if self.fault == "dies when woken":
            os._exit(1)
        tags = request.query_params.getlist("tags")
        self.sleeps = self.fault in ("wake lies", "wake lies twice") or tags == ["weights"]
        self.is_wrong = self.is_wrong or self.fault == "wrong after wake"
        return JSONResponse({"status": "awake", "tags": tags})

    async def collective_rpc(self, request: Request) -> Response:
        if self.fault == "reload fails":
            return JSONResponse({"error": {"message": "no such file"}}, 500)
        assert (await request.json())["method"] == "reload_weights"
        self.is_wrong = self.fault == "reloads nothing"
        return JSONResponse({"results": [None]})

    async def is_sleeping(self, _request: Request) -> Response:
        if self.fault == "nonsense":
            return JSONResponse([])
        return JSONResponse({"is_sleeping": self.sleeps and self.fault != "wake lies twice"})


if __name__ == "__main__":
    Server(sys.argv[1:]).serve()
