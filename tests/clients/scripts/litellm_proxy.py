"""LiteLLM's proxy in front of headgate, and the openai SDK in front of the proxy."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from openai import OpenAI
from steps import API_KEY, BASE_URL, MODEL, run

START_S = 150.0
QUESTION = {"role": "user", "content": "What is the weather like in Paris?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY}
    config = Path("litellm.json")
    config.write_text(json.dumps({"model_list": [{"model_name": "through-the-proxy", "litellm_params": model}]}))
    command = [str(Path(sys.executable).with_name("litellm")), "--config", str(config), "--port", str(port)]
    key = f"sk-{secrets.token_hex(32)}"
    environment = {**os.environ, "LITELLM_MASTER_KEY": key}
    proxy = subprocess.Popen([*command, "--host", "127.0.0.1"], stdout=sys.stderr, env=environment)
    try:
        _wait(proxy, f"http://127.0.0.1:{port}/health/liveliness")
        _run_steps(OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key))
    finally:
        proxy.terminate()
        proxy.wait()


def _wait(proxy: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the proxy answers. Raises RuntimeError if it ends, TimeoutError after START_S seconds."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if proxy.poll() is not None:
            raise RuntimeError(f"the proxy ended with status {proxy.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310, the proxy that this script started
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError("the proxy did not start")


def _run_steps(client: OpenAI) -> None:
    def chat() -> None:
        assert client.chat.completions.create(model="through-the-proxy", messages=[QUESTION]).choices[0].message.content

    def streamed() -> None:
        stream = client.chat.completions.create(
            model="through-the-proxy", messages=[QUESTION], stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert chunks[-1].usage

    def tool_and_second_turn() -> None:
        messages = [QUESTION]
        completion = client.chat.completions.create(model="through-the-proxy", messages=messages, tools=[TOOL])
        message = completion.choices[0].message
        assert message.tool_calls, f"the answer calls no tool: {message}"
        results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
        messages += [message, *results]
        completion = client.chat.completions.create(model="through-the-proxy", messages=messages, tools=[TOOL])
        assert completion.choices[0].message.content

    def responses() -> None:
        assert client.responses.create(model="through-the-proxy", input="Tell me a story.").output_text

    def embeddings() -> None:
        assert len(client.embeddings.create(model="through-the-proxy", input=["good morning", "good night"]).data) == 2

    run(chat, streamed, tool_and_second_turn, responses, embeddings)


if __name__ == "__main__":
    main()
