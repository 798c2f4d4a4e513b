"""The lines that a user pastes into a shell to call the local stack with OpenAI's and AWS's clients."""

from __future__ import annotations

import json

from headgate.local.options import Addresses
from headgate.local.seed import CREDENTIALS

VARIABLES = ("AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def lines_to_paste(addresses: Addresses, model: str) -> str:
    """Return the lines, for the first tenant."""
    key = next(iter(addresses.api_keys.values()))
    aws = " ".join(f"{name}={CREDENTIALS[name]}" for name in VARIABLES)
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 32})
    return f"""
Paste into a shell, for OpenAI's SDKs and for curl:

export OPENAI_BASE_URL={addresses.openai_base_url} OPENAI_API_KEY={key}
curl {addresses.openai_base_url}/chat/completions -H 'Authorization: Bearer {key}' \
-H 'Content-Type: application/json' -d '{body}'

For AWS's SDKs and headgate's commands (tenants, top, usage):

export AWS_ENDPOINT_URL={addresses.aws_endpoint_url} {aws}
headgate invoke "What is a headgate?" --lambda --key {key} --model {model}
"""
