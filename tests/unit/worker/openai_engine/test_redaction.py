"""What a tenant reads of an engine's error: its own fault, and nothing of how the service is built."""

from __future__ import annotations

import pytest

from gpu_worker.engines.openai.normal.faults import redact

SECRETS = {
    "http://10.0.0.7:8000/v1": "backend http://10.0.0.7:8000/v1 refused",
    "sk-secret-123": "Incorrect API key provided: sk-secret-123.",
    "10.1.2.3": "connect to 10.1.2.3:8000 failed",
    "fd00": "connect to [fd00::1]:8000 failed",
    "vllm-7.prod.svc.cluster.local": "no route to vllm-7.prod.svc.cluster.local:8000",
    "gpu-node-3": "upstream gpu-node-3:8000 is gone",
    "localhost": "localhost:11434 says no",
    "ip-10-0-0-7": "host ip-10-0-0-7 is down",
    "/usr/lib/python3.12": "File /usr/lib/python3.12/site-packages/vllm/engine.py has an error",
    "C:\\models": "cannot read C:\\models\\llama.gguf",
    "hunter22": "password=hunter22 is wrong",
    "eyJhbGciOi": "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc is expired",
    "AKIAIOSFODNN7EXAMPLE": "the credentials AKIAIOSFODNN7EXAMPLE are invalid",
    "hf_abcdefgh12345": "token hf_abcdefgh12345 cannot read the model",
    "9f86d081884c7d65": "id 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "engine.py": 'bad\nTraceback (most recent call last):\n  File "engine.py", line 3',
    "s3://bucket": "cannot load s3://bucket/weights",
    "redis://": "redis://:pw@cache:6379/0 is down",
}
HARMLESS = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (904 in the messages).",
    "temperature must be between 0 and 2, not 3.5",
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "body.messages.0.content: field required",
    "max_tokens: 128000 is too large; the version is 1.2.3",
    "top_k/top_p: only one of them",
    "Invalid schema for function 'get_weather': 'type' must be \"object\"",
    "the token limit is 4096",
    "Unsupported value: 'messages[0].role' does not support 'developer'",
)


@pytest.mark.parametrize(("secret", "text"), SECRETS.items(), ids=SECRETS)
def test_a_secret_is_removed(secret: str, text: str) -> None:
    assert secret not in redact(text)
    assert redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay(text: str) -> None:
    assert redact(text) == text
