"""Makes docs/operator-page.png: `python -m tests.support.local.operator_screenshot docs/operator-page.png`.

A local stack with a tenant that floods, one with a guarantee and one that is quiet, as the page shows them after a
minute. It needs Chromium.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import openai

from tests.support.local.browser import browser
from tests.support.local.stack import Running, start, stop

WIDTH, HEIGHT = 1280, 1400
SHOWN_AFTER_S = 60.0
TENANTS = {"acme": ("--rate", "200", "--burst", "1000", "--tier", "premium"), "research": ("--weight", "2")}
EACH_S = {"flood": 0.05, "acme": 0.6, "research": 1.5, "quiet": 3.0}
"""Seconds between two requests of a tenant."""


async def _ask(stack: Running, tenant: str, key: str) -> None:
    """Send requests of the tenant until cancelled."""
    client = openai.AsyncOpenAI(base_url=stack.openai_base_url, api_key=key, max_retries=0)
    sent: set[asyncio.Task[None]] = set()

    async def one() -> None:
        with suppress(openai.APIError):
            await client.completions.create(model=stack.model, prompt="Once upon a time " * 8, max_tokens=48)

    while True:
        task = asyncio.create_task(one())
        sent.add(task)
        task.add_done_callback(sent.discard)
        await asyncio.sleep(EACH_S[tenant])


async def _shot(stack: Running, keys: dict[str, str], folder: Path) -> bytes:
    asking = [asyncio.create_task(_ask(stack, tenant, key)) for tenant, key in keys.items()]
    try:
        await asyncio.sleep(SHOWN_AFTER_S)
        async with browser(folder / "profile") as tab:
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            await tab.command("Emulation.setDeviceMetricsOverride", **size)
            await tab.command("Page.navigate", url=stack.operator_url)
            await tab.until("!!document.querySelector('#token')")
            await tab.value(f"document.querySelector('#token').value = {json.dumps(stack.operator_token)}")
            await tab.value("document.querySelector('main form button').click()")
            await tab.until("!!document.querySelector('table')")
            height = int(await tab.value("document.documentElement.scrollHeight"))
            await tab.command("Emulation.setDeviceMetricsOverride", **{**size, "height": height})
            return base64.b64decode((await tab.command("Page.captureScreenshot", format="png"))["data"])
    finally:
        for task in asking:
            task.cancel()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        stack = start(Path(folder, "stack"), "--engine", "modelled")
        try:
            keys = dict(stack.api_keys)
            for name, options in TENANTS.items():
                keys[name] = str(stack.headgate("tenants", "create", name, *options)["api_key"])
            Path(sys.argv[1]).write_bytes(asyncio.run(_shot(stack, keys, Path(folder))))
        finally:
            stop(stack)
    return 0


if __name__ == "__main__":
    sys.exit(main())
