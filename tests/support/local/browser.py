"""Headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.hang_guard import HANG_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class NoAnswerError(Exception):
    """The browser could not do what was asked, for one because it was just leaving the page."""


class Tab:
    """One page of the browser. `complaints`: what the browser logged, such as a violation of the security policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, count(1)
        self.complaints: list[str] = []

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = json.loads(await self._socket.receive_str(timeout=HANG_S))
            if message.get("method") == "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            if message.get("id") == number:
                if "error" in message:
                    raise NoAnswerError(message["error"]["message"])
                result: dict[str, Any] = message["result"]
                return result

    async def value(self, script: str) -> Any:
        return (await self.command("Runtime.evaluate", expression=script, returnByValue=True))["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until it is true. A page that is being left does not answer: the next one is asked."""
        async with asyncio.timeout(HANG_S):
            while True:
                with suppress(NoAnswerError):
                    if await self.value(script):
                        return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
    command = [CHROMIUM, *options, f"--user-data-dir={folder}", "about:blank"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        port = folder / "DevToolsActivePort"
        async with asyncio.timeout(HANG_S):
            while not port.exists() or not port.read_text().strip():
                await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as session:
            targets = await (await session.get(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list")).json()
            page = next(target for target in targets if target["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                await tab.command("Log.enable")
                yield tab
    finally:
        process.kill()
        await process.wait()
