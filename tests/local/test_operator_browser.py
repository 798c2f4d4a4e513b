"""The operator's page in a real browser: headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.local.browser import CHROMIUM, browser
from tests.support.local.stack import Running

pytestmark = [
    pytest.mark.stack,
    pytest.mark.xdist_group("stack"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


async def test_an_operator_logs_in_and_sees_the_tenants(stack: Running, tmp_path: Path) -> None:
    stack.openai("quiet").completions.create(model=stack.model, prompt="once upon", max_tokens=4)
    async with browser(tmp_path / "profile") as tab:
        await tab.command("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        await tab.command("Page.navigate", url=stack.operator_url)
        await tab.until("!!document.querySelector('#token')")
        await tab.value(f"document.querySelector('#token').value = {json.dumps(stack.operator_token)}")
        await tab.value("document.querySelector('main form button').click()")
        await tab.until("!!document.querySelector('table')")
        await tab.command("Page.navigate", url=f"{stack.operator_url}?refresh=off")  # no question meets the next page
        await tab.until("location.search == '?refresh=off' && document.readyState == 'complete'")
        assert "quiet" in await tab.value("document.body.innerText")
        assert stack.api_keys["quiet"] not in await tab.value("document.documentElement.outerHTML")
        assert await tab.value("document.cookie") == "", "no script reads the session"
        wide = await tab.value("document.documentElement.scrollWidth")
        assert wide <= 400, f"the page is {wide} pixels wide on a screen of 400"
        styled = await tab.value("getComputedStyle(document.querySelector('table')).borderCollapse")
        assert styled == "collapse", "the security policy lets the style sheet in"
        assert [each for each in tab.complaints if "Content Security Policy" in each] == []
        await tab.value("[...document.querySelectorAll('button')].find(b => b.innerText == 'Log out').click()")
        await tab.until("!!document.querySelector('#token')")
